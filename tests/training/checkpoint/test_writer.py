"""Saving in the background: with a fake engine where the claim is about threads and disks, on real ranks below."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from minimind.training.checkpoint import directory as checkpoints
from minimind.training.checkpoint import snapshot, space
from minimind.training.checkpoint import writer as saver
from minimind.training.checkpoint.directory import (
    BEST,
    LATEST,
    Checkpoint,
    all_checkpoints,
    pointed,
    problem,
    resolve_resume,
)
from minimind.training.checkpoint.writer import Saver
from tests.support import FakeEngine, OneRank, fake_saver, run_ranks, save_steps
from tests.waiting import PATIENCE, wait_for

open_file = snapshot.open_file
SECOND = "zero_pp_rank_0_mp_rank_00_optim_states.pt"


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saver, "PAUSES", (0.0, 0.0))


def steps(run_dir: Path) -> list[int]:
    """The visible checkpoints, newest first; each must be complete."""
    found = all_checkpoints(run_dir)
    assert [problem(checkpoint.path) for checkpoint in found] == [None] * len(found)
    return [checkpoint.step for checkpoint in found]


def failing(times: int, number: int, message: str) -> Callable[[Path], BinaryIO]:
    """``open_file`` that fails for the second file, the first ``times`` times."""
    left = iter(range(times))

    def open_or_fail(path: Path) -> BinaryIO:
        if path.name == SECOND and next(left, None) is not None:
            raise OSError(number, message, str(path))
        return open_file(path)

    return open_or_fail


def test_save_returns_before_the_files_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_steps(tmp_path, 10)
    reached, go_on = threading.Event(), threading.Event()

    def blocked(path: Path) -> BinaryIO:
        if path.name == SECOND:
            reached.set()
            assert go_on.wait(PATIENCE)
        return open_file(path)

    monkeypatch.setattr(snapshot, "open_file", blocked)
    ours = fake_saver(tmp_path)
    ours.save(20, {"step": 20}, {}, best=True)
    assert reached.wait(PATIENCE)
    assert (tmp_path / "checkpoints" / ".incomplete-step-00000020").is_dir()
    assert steps(tmp_path) == [10] and resolve_resume(tmp_path)[0].step == 10
    assert pointed(tmp_path / LATEST) == tmp_path / "checkpoints" / "step-00000010"
    assert pointed(tmp_path / BEST) is None and ours.poll() == []
    go_on.set()
    assert ours.finish() and ours.poll() == []
    assert steps(tmp_path) == [20, 10]
    for pointer in (LATEST, BEST):
        assert pointed(tmp_path / pointer) == tmp_path / "checkpoints" / "step-00000020"


@pytest.mark.parametrize(
    ("number", "message", "advice"),
    [(errno.ENOSPC, "No space left on device", "free space"), (errno.EIO, "Input/output error", "check the disk")],
)
def test_a_failed_save_is_reported_and_the_last_one_stays(
    number: int, message: str, advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_steps(tmp_path, 5, 10)
    monkeypatch.setattr(snapshot, "open_file", failing(3, number, message))
    ours = fake_saver(tmp_path, keep=1)
    ours.save(20, {}, {}, best=True)
    assert not ours.finish()
    (finding,) = ours.poll()
    assert finding.code == "checkpoint-not-saved" and finding.step == 20
    assert "the next save tries again" in finding.advice
    assert "step 20 was not saved after 3 attempts" in finding.message and message in finding.message
    assert finding.message.endswith("the newest complete one is step-00000010") and advice in finding.advice
    assert ours.poll() == []
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == [
        "step-00000005",  # a failed save deletes nothing
        "step-00000010",
    ]
    assert pointed(tmp_path / LATEST).name == "step-00000010" and pointed(tmp_path / BEST) is None
    ours.save(30, {}, {})  # and the next one tries again
    assert ours.finish() and ours.poll() == [] and steps(tmp_path) == [30]


def test_after_the_last_save_no_other_is_promised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_steps(tmp_path, 5)
    monkeypatch.setattr(snapshot, "open_file", failing(3, errno.ENOSPC, "No space left on device"))
    ours = fake_saver(tmp_path)
    ours.save(20, {}, {})
    assert not ours.finish()
    (finding,) = ours.poll(last=True)
    assert "tries again" not in finding.advice and "saves no more" in finding.advice
    assert finding.advice.startswith("free space")


@pytest.mark.parametrize("times", [1, 2])
def test_a_retry_that_succeeds_is_reported_too(times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "open_file", failing(times, errno.EIO, "Input/output error"))
    ours = fake_saver(tmp_path)
    ours.save(10, {}, {})
    assert ours.finish() and steps(tmp_path) == [10]
    (finding,) = ours.poll()
    assert finding.code == "checkpoint-retried" and f"after {times} failed attempts" in finding.message


def test_too_little_space_writes_nothing_and_names_the_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_steps(tmp_path, 10)
    asked = []

    def nearly_full(directory: Path) -> int:
        asked.append(directory)
        return 1_900_000

    def never(path: Path) -> BinaryIO:
        raise AssertionError(f"{path} was opened")

    monkeypatch.setattr(space, "free_bytes", nearly_full)
    monkeypatch.setattr(snapshot, "open_file", never)
    ours = fake_saver(tmp_path)
    ours.save(20, {}, {})
    assert not ours.finish() and steps(tmp_path) == [10]
    assert set(asked) == {tmp_path / "checkpoints"}
    (finding,) = ours.poll()
    assert "No space left on device (2 MB needed, 2 MB free)" in finding.message


@pytest.mark.parametrize("stage", ["manifest", "rename"])
def test_a_failure_after_the_files_leaves_the_last_one(
    stage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_steps(tmp_path, 10)

    def broken(*_: Any) -> None:
        raise OSError(errno.EIO, "Input/output error")

    target = (checkpoints, "write_durably") if stage == "manifest" else (checkpoints.os, "rename")
    with monkeypatch.context() as patch:
        patch.setattr(*target, broken)
        ours = fake_saver(tmp_path)
        ours.save(20, {}, {})
        assert not ours.finish()
    assert [finding.code for finding in ours.poll()] == ["checkpoint-not-saved"]
    assert steps(tmp_path) == [10] and pointed(tmp_path / LATEST).name == "step-00000010"


def test_a_complete_checkpoint_that_latest_can_not_name_is_kept_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_steps(tmp_path, 10)

    def broken(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    written = []
    monkeypatch.setattr(saver, "point", broken)
    monkeypatch.setattr(snapshot, "open_file", lambda path: written.append(path) or open_file(path))
    ours = fake_saver(tmp_path, keep=1)
    ours.save(20, {}, {})
    assert ours.finish() and steps(tmp_path) == [20, 10]
    (finding,) = ours.poll()
    assert "--resume finds it, but `latest` could not be replaced" in finding.message
    assert len(written) == len(set(written))  # the retries did not write the files again


def test_an_old_checkpoint_that_can_not_be_deleted_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise OSError(errno.EACCES, "Permission denied", "old")

    monkeypatch.setattr(saver, "clean_up", broken)
    ours = fake_saver(tmp_path)
    ours.save(20, {}, {})
    assert ours.finish()
    assert [finding.code for finding in ours.poll()] == ["checkpoint-not-deleted"]


def test_what_is_no_error_of_the_disk_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def bug(path: Path) -> BinaryIO:
        raise ValueError("a bug")

    monkeypatch.setattr(snapshot, "open_file", bug)
    ours = fake_saver(tmp_path)
    ours.save(10, {}, {})
    with pytest.raises(ValueError, match="a bug"):
        ours.finish()
    assert not ours.finish()  # raised once, and not forgotten
    ours.save(20, {}, {})
    with pytest.raises(ValueError, match="a bug"):  # polled until the thread has died
        wait_for(ours.poll)


def test_the_limit_spares_newest_best_and_resumed_from(tmp_path: Path) -> None:
    save_steps(tmp_path, 1)
    ours = fake_saver(tmp_path, keep=2, protected={tmp_path / "checkpoints" / "step-00000001"})
    for step in range(2, 8):
        ours.save(step, {}, {}, best=step == 3)
    assert ours.finish() and ours.poll() == []
    assert steps(tmp_path) == [7, 6, 3, 1]


def test_nothing_to_save_is_nothing_that_failed(tmp_path: Path) -> None:
    assert fake_saver(tmp_path).finish()  # a run that was resumed at its end


def test_after_a_rollback_the_new_engine_is_saved_and_its_checkpoint_spared(tmp_path: Path) -> None:
    save_steps(tmp_path, 1, 2)
    first, engine = tmp_path / "checkpoints" / "step-00000001", FakeEngine()
    taken: list[dict[str, Any]] = []
    engine.snapshot = lambda state: taken.append(state) or FakeEngine().snapshot(state)  # type: ignore[method-assign, func-returns-value]
    told: list[int | None] = []  # which checkpoint is the last complete one
    ours = Saver(FakeEngine(), OneRank(), tmp_path, 1, set(), complete=lambda last: told.append(last and last.step))
    ours.follow(engine, Checkpoint(first, 1))
    ours.save(3, {"step": 3}, {})
    assert ours.finish() and steps(tmp_path) == [3, 1] and taken == [{"step": 3}]
    ours.follow(engine, None)  # back to the beginning
    assert told == [1, 3, None]


def test_the_first_rank_is_told_of_a_checkpoint_before_any_other_hears_of_it(tmp_path: Path) -> None:
    """What it knows is what all hosts are told when a rank is lost."""
    happened: list[str] = []

    class First(OneRank):
        def first_does(self, work: Callable[[], Any]) -> Any:
            result = work()
            happened.append("the others go on")
            return result

    ours = Saver(FakeEngine(), First(), tmp_path, 1, set(), complete=lambda last: happened.append("told"))
    ours.save(1, {}, {})
    assert ours.finish()
    assert happened[happened.index("told") + 1] == "the others go on" and happened.count("told") == 1


def test_what_a_save_is_told_to_need_is_spared_by_that_save(tmp_path: Path) -> None:
    save_steps(tmp_path, 1, 2, 3)
    second = tmp_path / "checkpoints" / "step-00000002"
    ours = fake_saver(tmp_path, keep=1)
    ours.save(4, {}, {}, needed={second})
    assert ours.finish() and steps(tmp_path) == [4, 2]
    ours.save(5, {}, {})
    assert ours.finish() and steps(tmp_path) == [5]


def test_what_a_killed_process_left_is_removed_by_the_next_save(tmp_path: Path) -> None:
    save_steps(tmp_path, 10)
    ready = tmp_path / "ready"
    process = multiprocessing.get_context("spawn").Process(target=_save_and_hang, args=(tmp_path, ready))
    process.start()
    wait_for(lambda: ready.exists() or not process.is_alive())
    assert process.is_alive()
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    names = {path.name for path in (tmp_path / "checkpoints").iterdir()}
    assert names == {"step-00000010", ".incomplete-step-00000020"}
    assert resolve_resume(tmp_path)[0].step == 10 and steps(tmp_path) == [10]
    assert pointed(tmp_path / LATEST).name == "step-00000010"
    save_steps(tmp_path, 30)
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {"step-00000010", "step-00000030"}


def _save_and_hang(run_dir: Path, ready: Path) -> None:
    """A run whose second file never gets to the disk."""

    def slow(path: Path) -> BinaryIO:
        if path.name == SECOND:
            ready.touch()
            time.sleep(PATIENCE)
        return open_file(path)

    snapshot.open_file = slow
    ours = fake_saver(run_dir)
    ours.save(20, {}, {})
    ours.finish()


def test_two_ranks_agree_on_a_failure_of_one(tmp_path: Path) -> None:
    first, second = run_ranks(2, _saves_of_a_rank, str(tmp_path))
    assert first == second  # outcomes and findings
    assert [saved for saved, _ in first] == [True, False, True, True]
    codes = [[finding.code for finding in findings] for _, findings in first]
    assert codes == [[], ["checkpoint-not-saved"], ["checkpoint-retried"], []]
    assert "rank_1" in first[1][1][0].message and "step-00000001" in first[1][1][0].message
    assert steps(tmp_path) == [4, 3]
    assert len(list((tmp_path / "checkpoints" / "step-00000004" / "engine").iterdir())) == 3


def _saves_of_a_rank(run_dir: str) -> list[Any]:
    """Four saves of a real engine between steps; rank 1 fails throughout the second and once in the third."""
    from minimind.training.engine.engine import Engine
    from minimind.training.engine.step import train_step
    from minimind.training.process.ranks import Control
    from tests.support import random_rows, split, tiny_model
    from tests.training.engine.test_engine import load

    saver.PAUSES = (0.0, 0.0)
    engine = Engine(tiny_model(), load("bf16_zero2.json", world=2), lambda step: 1.0)
    ours = saver.Saver(engine, Control("saving"), Path(run_dir), 2, set())
    failures: Iterator[bool] = iter([False, True, True, True, True, False, False])

    def on_one_rank(path: Path) -> BinaryIO:
        if "rank_1_" in path.name and next(failures):
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return open_file(path)

    snapshot.open_file = on_one_rank
    outcomes = []
    for step in range(1, 5):
        ours.save(step, {"step": step}, {})
        for seed in range(3):  # collectives of the main threads while the others write
            train_step(engine, split(random_rows(4, seed=seed), 2, engine.rank, 2))
        outcomes.append((ours.finish(), ours.poll()))
    return outcomes
