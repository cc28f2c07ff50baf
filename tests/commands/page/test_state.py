"""How a run is, by its last line and its lock: never "going on" for one that is dead."""

import fcntl
import json
import os
from pathlib import Path

import pytest

from minimind.commands.page.records import load_records
from minimind.commands.page.state import ask, state_of
from minimind.training.process.run_lock import RunLock, is_held
from tests.commands.page.runs import START, about, end, finding, train, write

GOING = [about(9), train(1), train(2)]


@pytest.mark.parametrize(
    ("records", "held", "after", "code"),
    [
        ([*GOING, end(2)], False, 9e5, "finished"),
        ([*GOING, end(2, "failed"), finding(None, "wandb-slow", "it took long")], None, 9e5, "failed"),
        ([*GOING, end(2, "stopped"), about(9, step=2)], True, 5, "running"),  # resumed
        ([*GOING, end(2, "stopped")], True, 1e5, "starting"),  # resumed, before its first line
        ([*GOING, end(2, "stopped")], True, 4, "stopped"),  # it holds its lock a moment longer
        (GOING, True, 30, "running"),
        (GOING, True, 5000, "quiet"),
        (GOING, False, 5, "killed"),
        (GOING, None, 30, "elsewhere"),
        (GOING, None, 5000, "stale"),
        ([], True, 0, "starting"),
        ([], False, 0, "empty"),
    ],
)
def test_states(tmp_path: Path, records: list[dict[str, object]], held: bool | None, after: float, code: str) -> None:
    run = load_records(write(tmp_path, records))
    assert state_of(run, held, now=START + after)["code"] == code


def test_the_length_is_that_of_all_sessions(tmp_path: Path) -> None:
    resumed = [about(400, step=300, time=START + 9e5), train(301, time=START + 9e5 + 1), end(301)]
    run = load_records(write(tmp_path, [about(400), train(300), *resumed]))
    assert state_of(run, False)["seconds"] == 301.0


def test_a_run_that_hung_left_its_stacks(tmp_path: Path) -> None:
    run = load_records(write(tmp_path, GOING))
    (tmp_path / "hang").mkdir()
    assert state_of(run, False)["code"] == "hung"
    os.utime(tmp_path / "hang", (1, 1))  # of an earlier start
    assert state_of(run, False)["code"] == "killed"


def test_slow_steps_are_not_quiet(tmp_path: Path) -> None:
    slow = [about(9), *(train(step, time=START + 60 * step) for step in (1, 2, 3))]
    run = load_records(write(tmp_path, slow))
    assert state_of(run, True, now=START + 180 + 1000)["code"] == "running"
    assert state_of(run, True, now=START + 180 + 1300)["code"] == "quiet"


def test_the_lock_is_asked(tmp_path: Path) -> None:
    run = load_records(write(tmp_path, GOING))
    assert is_held(tmp_path) is None
    with RunLock() as lock:
        lock.take(tmp_path)
        assert is_held(tmp_path) is True and ask(run)["code"] == "quiet"
    assert is_held(tmp_path) is False and ask(run)["code"] == "killed"


def test_a_copy_of_a_living_runs_lock_says_nothing(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_text(json.dumps({"host": "another", "pid": 1, "since": "x"}))
    assert is_held(tmp_path) is None
    with (tmp_path / ".lock").open("r+") as file:  # but a shared file system's does
        fcntl.flock(file, fcntl.LOCK_EX)
        assert is_held(tmp_path) is True
