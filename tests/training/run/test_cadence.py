"""Default cadence: evaluations planned from sizes, saves decided by rank 0's clock; each within 2% of a run."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from minimind.config.run import load_run_config
from minimind.data.store.prepare import prepare
from minimind.data.store.store import TokenStore
from minimind.text.tokenizer import Tokenizer
from minimind.training.checkpoint.writer import Saver
from minimind.training.run import loop, main
from minimind.training.run.cadence import FORWARD, SHARE, SaveClock, evaluation_remark, evaluation_steps
from minimind.training.run.setup import Plan, plan_steps
from tests.support import run_ranks
from tests.training.run.test_main import launch, records

BY_DEFAULT = ("--set", "save_steps=null")  # launch() names 2


@pytest.fixture
def _one_rank_with_its_signals(one_rank: None) -> Iterator[None]:
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


# Evaluations


@pytest.mark.parametrize("total", [1, 7, 150, 1000, 9_999, 80_000])
@pytest.mark.parametrize("held_out", [1, 5_000, 300_000, 10**9])
def test_evaluations_cost_two_percent_at_most_and_are_as_many_as_that_allows(total: int, held_out: int) -> None:
    positions = 4096
    every = evaluation_steps(total, positions, held_out)
    count = -(-total // every)
    budget = SHARE * total * positions
    assert count == 1 or count * held_out * FORWARD <= budget
    usual = min(1000, -(-total // 10))
    assert every >= usual
    if every > usual and count > 1:  # cut down: one step closer would be one evaluation too many, or no more of them
        closer = -(-total // (every - 1))
        assert closer == count or closer * held_out * FORWARD > budget


def test_a_small_held_out_file_is_evaluated_ten_times_and_nothing_is_said() -> None:
    assert evaluation_steps(150, 4096, 1000) == 15
    assert evaluation_remark(150, 15) is None
    assert evaluation_remark(4, 1) is None


@pytest.mark.parametrize(
    ("total", "held_out", "remark"),
    [
        (150, 10**6, "evaluated once, at the end: more would cost over 2% of the training"),
        (150, 12_000, "evaluated 3 times, every 50 steps: more would cost over 2% of the training"),
        (80_000, 1000, "evaluated 80 times, every 1,000 steps: never further apart"),
        (80_000, 10**6, "evaluated 19 times, every 4,211 steps: more would cost over 2% of the training"),
    ],
)
def test_another_number_than_ten_is_explained(total: int, held_out: int, remark: str) -> None:
    assert evaluation_remark(total, evaluation_steps(total, 4096, held_out)) == remark


def planned(files: dict[str, Path], tmp_path: Path, *settings: str, kind: Any = "pretrain") -> Plan:
    """The plan of 1,000 steps of 4 x 64 positions with the tiny corpus as held-out data."""
    tokenizer = Tokenizer.load(files["tokenizer"])
    store = TokenStore.open(prepare([files[kind]], tokenizer, tmp_path / "held", kind, 64))
    config = load_run_config(None, ["max_seq_length=64", "max_steps=1000", *settings])
    batches: Any = SimpleNamespace(steps_per_epoch=7, rows_per_step=4)
    return plan_steps(config, batches, store)


def test_the_plan_counts_the_positions_of_the_held_out_store(files: dict[str, Path], tmp_path: Path) -> None:
    plan = planned(files, tmp_path)
    store = TokenStore.open(tmp_path / "held")
    assert store.num_predictions == store.num_trainable == sum(store.lengths - 1)
    assert plan.eval_steps == evaluation_steps(1000, 4 * 64, store.num_predictions) > 100
    assert plan.eval_remark == evaluation_remark(1000, plan.eval_steps)


def test_supervised_data_cost_all_their_positions(files: dict[str, Path], tmp_path: Path) -> None:
    """Most tokens of a conversation carry no loss, and cost as much."""
    plan = planned(files, tmp_path, kind="sft")
    store = TokenStore.open(tmp_path / "held")
    assert store.num_predictions == int((store.lengths - 1).sum()) > 2 * store.num_trainable
    assert plan.eval_steps == evaluation_steps(1000, 4 * 64, store.num_predictions)
    assert plan.eval_steps > evaluation_steps(1000, 4 * 64, store.num_trainable)


def test_early_stopping_keeps_its_evaluations_and_a_given_number_is_taken(
    files: dict[str, Path], tmp_path: Path
) -> None:
    stopping = planned(files, tmp_path / "a", "early_stopping_patience=3")
    assert (stopping.eval_steps, stopping.eval_remark) == (100, None)
    given = planned(files, tmp_path / "b", "eval_steps=7")
    assert (given.eval_steps, given.eval_remark) == (7, None)
    shares = planned(files, tmp_path / "c", "eval_steps=0.0125", "save_steps=0.5")
    assert (shares.eval_steps, shares.save_steps, shares.save_by_time) == (13, 500, False)
    batches: Any = SimpleNamespace(steps_per_epoch=7, rows_per_step=4)
    assert plan_steps(load_run_config(None, []), batches, None).eval_steps is None


@pytest.mark.usefixtures("_one_rank_with_its_signals")
def test_a_resumed_run_evaluates_at_the_same_steps(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held_out = tmp_path / "held.jsonl"
    held_out.write_text("\n".join(files["pretrain"].read_text("utf-8").splitlines()[:5]), "utf-8")
    options = ("--max-steps", "30", "--eval-file", str(held_out), *BY_DEFAULT)
    assert launch("pretrain", "fp32.json", files, tmp_path / "whole", *options) == 0
    whole = [record["step"] for record in records(tmp_path / "whole", "eval")]
    assert 2 <= len(whole) < 10 and whole[-1] == 30

    def stopping(run: loop.Run) -> str:
        advance = run.progress.advance

        def counted(result: Any) -> None:
            advance(result)
            run.stop.requested |= run.progress.step == whole[0] + 1

        run.progress.advance = counted  # type: ignore[method-assign]
        return loop.train(run)

    with monkeypatch.context() as patch:
        patch.setattr(main, "train", stopping)
        assert launch("pretrain", "fp32.json", files, tmp_path / "parts", *options) == 0
    assert launch("pretrain", "fp32.json", files, tmp_path / "parts", *options, "--resume") == 0
    assert [record["step"] for record in records(tmp_path / "parts", "eval")] == whole


# Saves


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def save_for(clock: Clock, saves: SaveClock, seconds: float) -> None:
    with saves.saving():
        clock.now += seconds


def test_a_planned_save_waits_until_fifty_times_the_last_hold_up_has_passed() -> None:
    clock = Clock()
    saves = SaveClock(clock)
    save_for(clock, saves, 2.0)
    clock.now += 99.0
    assert not saves.due(planned=True, writing=False)
    clock.now += 1.0
    assert saves.due(planned=True, writing=False)
    assert not saves.due(planned=False, writing=False)


def test_before_the_first_save_a_second_is_assumed() -> None:
    clock = Clock()
    clock.now = 1e6  # the machine has been up for long
    saves = SaveClock(clock)
    clock.now += 49.0
    assert not saves.due(planned=True, writing=False)
    clock.now += 1.0
    assert saves.due(planned=True, writing=False)
    saves.restart()
    assert not saves.due(planned=True, writing=False)


def test_after_ten_minutes_one_is_added_unless_that_would_cost_too_much() -> None:
    clock = Clock()
    saves = SaveClock(clock)
    save_for(clock, saves, 1.0)
    clock.now += 600.0
    assert not saves.due(planned=False, writing=False)
    clock.now += 1.0
    assert saves.due(planned=False, writing=False)
    assert not saves.due(planned=True, writing=True)  # it would wait for the one before
    save_for(clock, saves, 20.0)
    clock.now += 999.0
    assert not saves.due(planned=False, writing=False)
    clock.now += 1.0
    assert saves.due(planned=False, writing=False)


@dataclass
class Machine:
    """One whose step takes ``step`` seconds by the clock that decides about saves, and whose save holds up ``save``.

    ``saved``: the steps that were saved, each written before training goes on.
    """

    step: float
    save: float = 0.0
    held: float = 0.0
    saved: list[int] = field(default_factory=list)

    def train(self, run: loop.Run) -> str:
        """In place of ``loop.train``."""
        run.save_clock = SaveClock(lambda: run.progress.step * self.step + self.held)
        return loop.train(run)

    def saves(self, original: Callable[..., None]) -> Callable[..., None]:
        """In place of ``Saver.save``."""

        def save(saver: Saver, step: int, *rest: Any) -> None:
            self.held += self.save
            self.saved.append(step)
            original(saver, step, *rest)
            saver.finish()

        return save


def steps_saved(machine: Machine, files: dict[str, Path], out: Path, *options: str) -> list[int]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(main, "train", machine.train)
        patch.setattr(Saver, "save", machine.saves(Saver.save))
        assert launch("pretrain", "fp32.json", files, out, *options) == 0
    return machine.saved


@pytest.mark.usefixtures("_one_rank_with_its_signals")
@pytest.mark.parametrize(
    ("machine", "total", "expected"),
    [
        (Machine(step=0.5), 40, [40]),  # over in 20 s: the end is enough
        (Machine(step=30.0), 20, list(range(2, 21, 2))[1:]),  # at step 2 only 30 s have passed
        (Machine(step=30.0, save=10.0), 40, [4, 24, 40]),  # 500 s at least, of 120 s planned
        (Machine(step=250.0), 60, sorted({*range(6, 61, 6), *range(4, 61, 6)})),  # 1,500 s planned, 600 s allowed
    ],
)
def test_a_run_saves_as_its_clock_says(
    machine: Machine, total: int, expected: list[int], files: dict[str, Path], tmp_path: Path
) -> None:
    assert steps_saved(machine, files, tmp_path, "--max-steps", str(total), *BY_DEFAULT) == expected


@pytest.mark.usefixtures("_one_rank_with_its_signals")
def test_a_given_save_steps_is_done_exactly(files: dict[str, Path], tmp_path: Path) -> None:
    slow_save = Machine(step=1.0, save=10.0)
    options = ("--max-steps", "9", "--set", "save_steps=4", "--set", "eval_steps=100")
    assert steps_saved(slow_save, files, tmp_path / "a", *options) == [4, 8, 9]
    slow_step = Machine(step=1000.0)
    assert steps_saved(slow_step, files, tmp_path / "b", *options) == [4, 8, 9]


def saves_of_a_rank(files: dict[str, Path], out: Path) -> list[int]:
    import torch.distributed as dist

    rank_0, rank_1 = Machine(step=30.0, save=10.0), Machine(step=10_000.0)
    machine = (rank_0, rank_1)[dist.get_rank()]
    sizes = ("--set", "per_device_train_batch_size=1", "--set", "gradient_accumulation_steps=1")
    return steps_saved(machine, files, out, "--max-steps", "40", *sizes, *BY_DEFAULT)


def test_all_ranks_save_when_rank_0s_clock_says_so(files: dict[str, Path], tmp_path: Path) -> None:
    assert run_ranks(2, saves_of_a_rank, files, tmp_path) == [[4, 24, 40]] * 2
