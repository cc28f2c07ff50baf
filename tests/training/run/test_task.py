"""How the ranks of several hosts come to one task: what is wrong on one of them is said on all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from minimind.base.command_lines import Started
from minimind.base.errors import UserError
from minimind.base.findings import Finding
from minimind.config.heartbeat import HeartbeatConfig
from minimind.training.process.heart.heartbeat import Agreement
from minimind.training.run import task as module
from minimind.training.run.task import join

ARGUMENTS: Any = SimpleNamespace(words=())


@dataclass(frozen=True)
class FakeTask:
    """What joining needs of one."""

    config: Any = field(default_factory=lambda: SimpleNamespace(emulate_fp16=True, heartbeat=HeartbeatConfig()))
    started: Started | None = None


TASK = FakeTask()
WATCHED: list[Any] = []


def watch(agreement: Agreement, task: Any) -> list[Finding]:
    WATCHED.append((type(agreement).__name__, task))
    return [Finding("watched", "m", "a")]


class Joined:
    """A control that has the other ranks' outcomes, and remembers that this rank has joined."""

    others: UserError | None = None
    joined: list[bool] = []  # noqa: RUF012 (a fixture makes it anew)

    rank, world_size = 0, 2

    def gather(self, value: Any) -> list[Any]:
        return [value, value]

    def from_first(self, value: Any) -> Any:
        return value

    def all_do(self, work: Callable[[], Any]) -> Any:
        result = work()
        if self.others is not None:
            raise self.others
        return result


@pytest.fixture(autouse=True)
def _two_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Joined, "joined", [])
    WATCHED.clear()
    monkeypatch.setattr(module, "Control", Joined)
    monkeypatch.setattr(module, "meet", lambda limit: None)
    monkeypatch.setattr(module, "start_processes", Joined.joined.append)
    monkeypatch.setattr(module, "make_task", lambda *_: TASK)
    for name, value in (("WORLD_SIZE", "2"), ("LOCAL_WORLD_SIZE", "1")):
        monkeypatch.setenv(name, value)


def fail(*_: object) -> None:
    raise UserError("run.yaml: no such file")


def test_the_task_is_what_all_have() -> None:
    task, control, notes = join("pretrain", ARGUMENTS, watch)
    assert (task.config, type(control), Joined.joined) == (TASK.config, Joined, [True])
    assert [note.code for note in notes] == ["watched"] and [("Joined", task)] == WATCHED


def test_several_hosts_are_watched_from_their_meeting_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before torch and gloo connect, who would wait half an hour for a rank that is lost meanwhile."""

    class Meeting(Joined):
        pass

    monkeypatch.setattr(module, "meet", lambda limit: Meeting())
    monkeypatch.setattr(module, "start_processes", lambda emulate: WATCHED.append("processes"))
    task, _, notes = join("pretrain", ARGUMENTS, watch)
    assert [note.code for note in notes] == ["watched"] and [("Meeting", task), "processes"] == WATCHED
    WATCHED.clear()
    monkeypatch.setattr(module, "make_task", fail)
    with pytest.raises(UserError, match=r"^run\.yaml"):
        join("pretrain", ARGUMENTS, watch)
    assert WATCHED == [("Meeting", None), "processes"], "a rank without a task beats until it has said why"


def test_another_ranks_error_is_this_ranks_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Joined, "others", UserError("node2 (rank 1): run.yaml: no such file"))
    with pytest.raises(UserError, match=r"^node2"):
        join("pretrain", ARGUMENTS, watch)


def test_a_rank_that_fails_meets_the_others_first_to_tell_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "make_task", fail)
    with pytest.raises(UserError, match=r"^run\.yaml"):
        join("pretrain", ARGUMENTS, watch)
    assert Joined.joined == [False]


def test_on_one_host_nobody_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The launcher ends the others: no process group is made for an error."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setattr(module, "make_task", fail)
    with pytest.raises(UserError, match=r"^run\.yaml"):
        join("pretrain", ARGUMENTS, watch)
    assert Joined.joined == []


def test_the_hosts_own_error_comes_before_that_of_the_meeting(monkeypatch: pytest.MonkeyPatch) -> None:
    def alone(emulate: bool) -> None:
        raise UserError("the ranks could not meet")

    monkeypatch.setattr(module, "start_processes", alone)
    with pytest.raises(UserError, match="could not meet"):
        join("pretrain", ARGUMENTS, watch)
    monkeypatch.setattr(module, "make_task", fail)
    with pytest.raises(UserError, match=r"^run\.yaml"):
        join("pretrain", ARGUMENTS, watch)
