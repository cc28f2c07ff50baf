"""How the ranks of several hosts come to one task: what is wrong on one of them is said on all."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest

from minimind.base.command_lines import Started
from minimind.base.errors import UserError
from minimind.base.findings import Finding
from minimind.base.hardware import Hardware
from minimind.config.heartbeat import HeartbeatConfig
from minimind.training.process.heart.heartbeat import Agreement
from minimind.training.process.meeting import PeerLost
from minimind.training.run import task as module
from minimind.training.run.task import join

ARGUMENTS: Any = SimpleNamespace(words=())


@dataclass(frozen=True)
class FakeTask:
    """What joining needs of one."""

    config: Any = field(default_factory=lambda: SimpleNamespace(emulate_fp16=True, heartbeat=HeartbeatConfig()))
    arguments: Any = field(default_factory=lambda: ARGUMENTS)
    started: Started | None = None


TASK = FakeTask()
HAPPENED: list[Any] = []


def watch(agreement: Agreement, task: Any) -> list[Finding]:
    HAPPENED.append((type(agreement).__name__, task))
    return [Finding("watched", "m", "a")]


class Ranks:
    """Two ranks that agree on what this one says; ``said``: what the other one has to complain of."""

    rank, world_size = 0, 2
    said: str | None = None

    def gather(self, value: Any) -> list[Any]:
        return [value, value]

    def from_first(self, value: Any) -> Any:
        return value

    def all_raise(self, error: str | None) -> None:
        HAPPENED.append(("told", error))
        if (first := error or self.said) is not None:
            raise UserError(first)


@pytest.fixture(autouse=True)
def _two_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    HAPPENED.clear()
    monkeypatch.setattr(Ranks, "said", None)
    monkeypatch.setattr(module, "Control", type("Control", (Ranks,), {}))
    monkeypatch.setattr(module, "meet", lambda limit: Ranks())
    monkeypatch.setattr(module, "start_processes", lambda emulate: HAPPENED.append(("processes", emulate)))
    monkeypatch.setattr(module, "make_task", lambda *_: TASK)
    for name, value in (("WORLD_SIZE", "2"), ("LOCAL_WORLD_SIZE", "1")):
        monkeypatch.setenv(name, value)


def fail(*_: object) -> None:
    raise UserError("run.yaml: no such file")


def lost(limit: float) -> None:
    raise PeerLost("rank 1 did not start")


def test_several_hosts_are_watched_from_their_meeting_on() -> None:
    """Before torch and gloo connect, who would wait half an hour for a rank that is lost meanwhile."""
    task, _, notes = join("pretrain", ARGUMENTS, watch)
    assert task.config is TASK.config and [note.code for note in notes] == ["watched"]
    assert [("told", None), ("Ranks", task), ("processes", True)] == HAPPENED


def test_one_host_is_watched_once_its_ranks_are_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "meet", lambda limit: None)
    task, _, _ = join("pretrain", ARGUMENTS, watch)
    assert [("processes", True), ("Control", task)] == HAPPENED


def test_another_ranks_error_is_this_ranks_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ranks, "said", "node2 (rank 1): run.yaml: no such file")
    with pytest.raises(UserError, match=r"^node2"):
        join("pretrain", ARGUMENTS, watch)
    assert HAPPENED == [("told", None)], "nothing is started for it"


def test_a_rank_that_fails_meets_the_others_first_to_tell_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "make_task", fail)
    with pytest.raises(UserError, match=r"^run\.yaml"):
        join("pretrain", ARGUMENTS, watch)
    monkeypatch.setattr(Ranks, "rank", 1)
    with pytest.raises(UserError, match=r"\(rank 1\): run\.yaml"):
        join("pretrain", ARGUMENTS, watch)
    assert [what for what, _ in HAPPENED] == ["told", "told"]


def test_on_one_host_nobody_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The launcher ends the others: no process group is made for an error."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setattr(module, "make_task", fail)
    with pytest.raises(UserError, match=r"^run\.yaml"):
        join("pretrain", ARGUMENTS, watch)
    assert HAPPENED == []


def test_the_hosts_own_error_comes_before_that_of_the_meeting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "meet", lost)
    with pytest.raises(PeerLost, match="did not start"):
        join("pretrain", ARGUMENTS, watch)
    monkeypatch.setattr(module, "make_task", fail)
    with pytest.raises(UserError, match=r"^run\.yaml"):
        join("pretrain", ARGUMENTS, watch)


def test_a_rank_that_sees_no_gpu_of_its_own_says_so_on_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """--gpus-per-task shows each task one GPU; by its number on the host it would ask for another."""
    one = Hardware("cuda", fp16=True, bf16=True)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    for local_rank in "0", "3":
        monkeypatch.setenv("LOCAL_RANK", local_rank)
        with pytest.raises(UserError, match=r"4 ranks on .*, and a process sees 1 GPU: .* --gpus-per-node 4"):
            module._require_devices(one)
        module._require_devices(replace(one, count=4))
        module._require_devices(Hardware("cpu", fp16=False, bf16=True))
