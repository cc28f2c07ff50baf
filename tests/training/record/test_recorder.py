"""From step results to StepMetrics: every step is reported, the device is read once an interval."""

from __future__ import annotations

import math

import pytest
import torch

from minimind.training.engine.engine import Update
from minimind.training.engine.step import RowLosses, StepResult
from minimind.training.record.best import Best
from minimind.training.record.recorder import HISTORY, Progress, Recorder
from minimind.training.values import StepMetrics


def result(loss_sum: float, tokens: int, applied: bool = True, norm: float | torch.Tensor = 1.0) -> StepResult:
    return StepResult(torch.tensor(loss_sum), tokens, Update(applied, norm, 0.1, 1024.0), stop=False)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_progress_counts_attempts_and_what_was_applied() -> None:
    progress = Progress()
    for applied in (True, False, False, True, False):
        progress.advance(result(1.0, 10, applied=applied))
    assert (progress.step, progress.applied, progress.skipped, progress.tokens) == (5, 2, 3, 20)
    assert progress.consecutive_skips == 1  # the applied step between them ended the first two
    assert [entry["step"] for entry in progress.history] == [1, 2, 3, 4, 5]


def test_progress_goes_on_from_its_state() -> None:
    progress = Progress(best=Best(2.5, 1, 2), evaluated_step=3, health={"a": 1}, watch={"b": 2})
    for _ in range(HISTORY + 3):
        progress.advance(result(1.0, 10, norm=torch.tensor(0.5)))
    state = progress.state()
    assert state["best"] == {"loss": 2.5, "step": 1, "without_gain": 2}
    assert all(type(entry["grad_norm"]) is float for entry in state["history"])
    again = Progress.from_state(state)
    assert again == progress and again.best is not progress.best
    again.advance(result(1.0, 10))
    assert len(again.history) == HISTORY and again.history[0]["step"] == 5


@pytest.mark.parametrize("loss", [2.5, math.nan, None])
def test_progress_of_an_earlier_version_is_read(loss: float | None) -> None:
    """Its best stood in three fields of its own, and could be NaN."""
    state = {**Progress(step=7).state(), "best_loss": loss, "best_step": 4, "evaluations_without_gain": 1}
    del state["best"]
    assert Progress.from_state(state).best == (Best(2.5, 4, 1) if loss == 2.5 else Best())


def test_each_step_is_reported_with_its_own_loss_and_totals() -> None:
    reported: list[StepMetrics] = []
    progress, clock, messages = Progress(), Clock(), []

    def sum_over_two_ranks(values: list[float]) -> list[float]:
        messages.append(len(values))
        return [2 * value for value in values]

    recorder = Recorder(reported.append, sum_over_two_ranks, steps_per_epoch=4, clock=clock)
    for step in range(4):
        outcome = result(10.0 * (step + 1), 10, applied=step != 1)
        progress.advance(outcome)
        recorder.add(outcome, progress)
        clock.now += 1.0
        if step % 2:
            recorder.flush()
    assert messages == [2, 2]  # one message an interval
    assert [m.step for m in reported] == [1, 2, 3, 4]
    assert [m.loss for m in reported] == [2.0, 4.0, 6.0, 8.0]
    assert [m.tokens for m in reported] == [10, 10, 20, 30]  # a skipped step trains nothing
    assert [m.skipped for m in reported] == [0, 1, 1, 1]
    assert [m.tokens_per_second for m in reported] == [None, None, 10.0, 10.0]
    assert reported[-1].epoch == 1.0


def test_a_norm_that_the_engine_does_not_know_is_none_and_one_that_is_nan_is_said() -> None:
    reported: list[StepMetrics] = []
    recorder, progress = Recorder(reported.append, list, 1), Progress()
    for outcome in (result(1.0, 8, True, math.nan), result(1.0, 8, False, math.nan), result(1.0, 8, False, math.inf)):
        progress.advance(outcome)
        recorder.add(outcome, progress)
    recorder.flush()
    first, *skipped = (metrics.grad_norm for metrics in reported)
    assert first is None and [str(norm) for norm in skipped] == ["nan", "inf"]


def test_time_outside_training_does_not_count() -> None:
    reported: list[StepMetrics] = []
    clock = Clock()
    recorder, progress = Recorder(reported.append, list, 1, clock), Progress()
    for _ in range(2):
        outcome = result(1.0, 8)
        progress.advance(outcome)
        recorder.add(outcome, progress)
        clock.now += 2.0
        recorder.flush()
        clock.now += 100.0  # an evaluation
        recorder.restart_clock()
    assert reported[1].tokens_per_second == 4.0


def test_progress_survives_its_checkpoint() -> None:
    progress = Progress()
    for applied in (True, False, False):
        progress.advance(result(1.0, 5, applied, norm=float("inf")))
    again = Progress.from_state(progress.state())
    assert again == progress
    assert (again.step, again.tokens, again.skipped, again.consecutive_skips) == (3, 5, 2, 2)
    assert again.history.maxlen == progress.history.maxlen


def test_losses_by_source_are_means_over_the_interval_and_the_ranks() -> None:
    reported: list[StepMetrics] = []
    messages: list[int] = []

    def sum_over_two_ranks(values: list[float]) -> list[float]:
        messages.append(len(values))
        return [2 * value for value in values]

    recorder = Recorder(reported.append, sum_over_two_ranks, 4, sources=("a", "b", "c"))
    progress = Progress()
    for losses in ([3.0, 8.0, 0.0], [1.0, 4.0, 2.0]):
        rows = RowLosses(torch.tensor(losses), (0, 1, -1), (2, 4, 0))
        outcome = StepResult(torch.tensor(sum(losses)), 6, Update(True, 1.0, 0.1, None), False, rows)
        progress.advance(outcome)
        recorder.add(outcome, progress)
    recorder.flush()
    assert messages == [2 + 2 * 3]  # one message, whatever is in it
    assert reported[0].sources == ()
    found = [(part.source, part.loss, part.tokens) for part in reported[1].sources]
    assert found == [("a", 1.0, 8), ("b", 1.5, 16)]  # nothing of c was trained; padding belongs to nobody


def test_a_norm_that_stayed_on_the_device_is_reported_and_saved_as_a_number() -> None:
    reported: list[StepMetrics] = []
    progress, recorder = Progress(), Recorder(reported.append, list, steps_per_epoch=4)
    outcome = result(10.0, 10, norm=torch.tensor(2.5))
    progress.advance(outcome)
    recorder.add(outcome, progress)
    recorder.flush()
    assert reported[0].grad_norm == 2.5
    saved = progress.state()["history"]
    assert type(saved[0]["grad_norm"]) is float and saved[0]["grad_norm"] == 2.5
