"""The learning rate: exact endpoints, no zero step, no overshoot, skipped steps do not count."""

from __future__ import annotations

import math

import pytest
import torch

from minimind.config.schedules import SHAPES
from minimind.training.engine.schedule import Schedule, ScheduleApplier


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("warmup", [0, 1, 10])
@pytest.mark.parametrize("total", [11, 100, 1000])
def test_stays_in_the_band_and_hits_the_peak(kind: str, warmup: int, total: int) -> None:
    schedule = Schedule(kind, total, warmup, min_lr_ratio=0.1)
    factors = [schedule.factor(step) for step in range(total)]
    assert max(factors) == 1.0
    assert min(factors) > 0.0
    assert factors[max(warmup - 1, 0)] == 1.0
    assert factors[:warmup] == [(n + 1) / warmup for n in range(warmup)]


@pytest.mark.parametrize("kind", ["cosine", "wsd", "cooldown", "linear"])
@pytest.mark.parametrize("min_ratio", [0.0, 0.1])
def test_last_step_is_the_minimum_and_stays_there(kind: str, min_ratio: float) -> None:
    schedule = Schedule(kind, 100, 5, min_ratio)
    assert schedule.factor(99) == pytest.approx(min_ratio, abs=1e-12)
    assert schedule.factor(500) == schedule.factor(99)


def test_cosine_midpoint_and_monotone_decay() -> None:
    schedule = Schedule("cosine", 101, 0, 0.1)
    assert schedule.factor(50) == pytest.approx(0.55)
    decay = [schedule.factor(step) for step in range(101)]
    assert decay == sorted(decay, reverse=True)


def test_wsd_is_flat_for_four_fifths_then_falls_as_one_minus_sqrt() -> None:
    schedule = Schedule("wsd", 101, 0, 0.0)
    assert schedule.factor(80) == 1.0
    assert schedule.factor(85) == pytest.approx(1 - math.sqrt(0.25))


def test_cooldown_is_flat_for_three_tenths_then_falls_linearly() -> None:
    schedule = Schedule("cooldown", 101, 0, 0.0)
    assert [schedule.factor(step) for step in (0, 30)] == [1.0, 1.0]
    assert [schedule.factor(step) for step in (65, 93, 100)] == pytest.approx([0.5, 0.1, 0.0])


def test_one_step_run() -> None:
    assert Schedule("cosine", 1, 0, 0.1).factor(0) == 1.0
    assert Schedule("cosine", 1, 1, 0.1).factor(0) == 1.0


def test_applier_sets_each_group_from_its_own_peak_and_new_peaks_win_on_resume() -> None:
    def build(lr: float) -> ScheduleApplier:
        groups = [{"params": [torch.nn.Parameter(torch.zeros(2))], "lr": lr * scale} for scale in (1.0, 10.0)]
        return ScheduleApplier(torch.optim.SGD(groups, lr=lr), Schedule("linear", 11, 0, 0.0).factor)

    first = build(1.0)
    assert first.get_last_lr() == [1.0, 10.0]
    for _ in range(5):
        first.step()
    assert first.get_last_lr() == pytest.approx([0.5, 5.0])
    resumed = build(2.0)
    resumed.load_state_dict(first.state_dict())
    assert resumed.get_last_lr() == pytest.approx([1.0, 10.0])


@pytest.mark.parametrize("kind", SHAPES)
def test_a_resumed_schedule_goes_on_as_if_never_interrupted(kind: str) -> None:
    def build() -> ScheduleApplier:
        return ScheduleApplier(torch.optim.SGD([torch.zeros(1)], lr=1.0), Schedule(kind, 20, 3, 0.1).factor)

    def rates(applier: ScheduleApplier, steps: int) -> list[float]:
        found = []
        for _ in range(steps):
            found += applier.get_last_lr()
            applier.step()
        return found

    whole, first, second = build(), build(), build()
    expected = rates(whole, 20)
    assert rates(first, 8) == expected[:8]
    second.load_state_dict(first.state_dict())
    assert rates(second, 12) == expected[8:]
