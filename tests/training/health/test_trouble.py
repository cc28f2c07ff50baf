"""Trouble is seen when it is proven, and not before: every rank from the same numbers."""

from __future__ import annotations

import math
from typing import Any

import pytest

from minimind.config.health import HealthConfig
from minimind.config.recovery import RecoveryConfig
from minimind.training.health.trouble import Trouble, Watch
from minimind.training.values import StepMetrics

CONFIG = RecoveryConfig(overflow_patience=6, non_finite_patience=3, spike_patience=20)


def numbers(step: int, loss: float = 3.0, applied: bool = True, scale: float | None = None) -> StepMetrics:
    return StepMetrics(step, step * 10, loss, 1.0, 1e-3, scale, 0, applied, None, 0.1, 0.0)


def watch(dynamic: bool = False) -> Watch:
    return Watch(CONFIG, HealthConfig(), dynamic)


def feed(watched: Watch, steps: list[StepMetrics]) -> Trouble | None:
    return next((trouble for step in steps if (trouble := watched.observe(step)) is not None), None)


def noise(step: int) -> float:
    return 3.0 + 0.05 * math.sin(step * 12.9898)


def test_overflow_has_patience_where_the_scale_can_heal_it() -> None:
    skips = [numbers(step, applied=False, scale=1024.0) for step in range(10, 20)]
    adaptive, fixed = feed(watch(dynamic=True), skips), feed(watch(dynamic=False), skips)
    assert adaptive is not None and fixed is not None
    assert (adaptive.code, adaptive.step, adaptive.onset, adaptive.last_good) == ("overflow", 15, 10, 9)
    assert (fixed.code, fixed.step) == ("overflow", 12)


def test_an_applied_step_in_between_is_health() -> None:
    skips = [numbers(step, applied=step % 3 == 0, scale=1.0) for step in range(1, 100)]
    assert feed(watch(dynamic=True), skips) is None


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_is_not_healed_by_any_scale(loss: float) -> None:
    trouble = feed(watch(dynamic=True), [numbers(step, loss, applied=False, scale=8.0) for step in range(5, 20)])
    assert trouble is not None
    assert (trouble.code, trouble.step, trouble.onset) == ("not-finite", 7, 5)


def test_the_smallest_scale_is_trouble_at_once() -> None:
    watched = watch(dynamic=True)
    assert watched.observe(numbers(4, applied=False, scale=1.0)) is None
    assert watched.observe_exhausted_scale(4) == Trouble(
        "overflow", 4, 4, "gradients overflow at the smallest loss scale since step 4"
    )


def spiking(at: int, back: int | None, end: int = 200) -> list[StepMetrics]:
    high = [at <= step and (back is None or step < back) for step in range(1, end)]
    return [numbers(step, noise(step) + 2.0 * high[step - 1]) for step in range(1, end)]


def test_a_spike_that_heals_is_no_trouble() -> None:
    for width in (1, 3, 10):
        watched = watch()
        assert feed(watched, spiking(100, 100 + width)) is None
        assert watched.open_onset() is None


def test_a_spike_that_stays_is_trouble_after_the_patience() -> None:
    watched = watch()
    trouble = feed(watched, spiking(100, None))
    assert trouble is not None
    assert (trouble.code, trouble.onset, trouble.step, trouble.last_good) == ("spike", 100, 119, 98)
    assert watched.open_onset() == 100


def test_a_spike_that_the_end_finds_open_is_trouble_too() -> None:
    watched = watch()
    assert feed(watched, spiking(100, None, end=112)) is None
    trouble = watched.observe_end(111)
    assert trouble is not None and trouble.onset == 100
    early = watch()
    assert feed(early, spiking(100, None, end=103)) is None and early.observe_end(102) is None


def test_broken_parameters_are_named_and_date_from_the_last_sound_check() -> None:
    watched = watch()
    assert watched.observe_parameters(100, []) is None
    trouble = watched.observe_parameters(200, ["a", "b", "c", "d"])
    assert trouble == Trouble("parameters", 200, 101, "not finite: a, b, c and 1 more")


def test_the_last_sound_check_is_saved_too() -> None:
    first, second = watch(), watch()
    assert first.observe_parameters(100, []) is None
    second.load(first.state())
    trouble = second.observe_parameters(150, ["a"])
    assert trouble is not None and (trouble.onset, trouble.last_good) == (101, 100)


def test_a_spike_after_one_that_healed_begins_where_it_begins() -> None:
    steps = [numbers(step, noise(step) + 2.0 * (step in (100, 101) or step >= 150)) for step in range(1, 200)]
    trouble = feed(watch(), steps)
    assert trouble is not None and (trouble.onset, trouble.step) == (150, 169)


def test_one_low_loss_does_not_heal_a_spike() -> None:
    steps = [numbers(step, noise(step) + 2.0 * (step >= 100 and step != 107)) for step in range(1, 200)]
    trouble = feed(watch(), steps)
    assert trouble is not None and (trouble.onset, trouble.step) == (100, 119)


STORIES = {
    "spike": spiking(100, None),
    "overflow": [numbers(step, applied=step < 100, scale=8.0) for step in range(1, 120)],
    "not finite": [numbers(step, 3.0 if step < 100 else math.nan, step < 100, 8.0) for step in range(1, 120)],
}


@pytest.mark.parametrize(
    ("story", "cuts"), [("spike", (50, 101, 110)), ("overflow", (100, 104)), ("not finite", (101,))]
)
def test_a_watch_that_is_saved_and_loaded_comes_to_the_same_verdict(story: str, cuts: tuple[int, ...]) -> None:
    steps, expected = STORIES[story], feed(watch(dynamic=True), STORIES[story])
    assert expected is not None
    for cut in cuts:
        first, second = watch(dynamic=True), watch(dynamic=True)
        assert feed(first, steps[:cut]) is None
        state: dict[str, Any] = first.state()
        second.load(state)
        assert feed(second, steps[cut:]) == expected


def test_a_spike_heals_at_the_same_step_after_a_resume() -> None:
    steps = spiking(100, 102)
    whole, second = watch(), watch()
    feed(whole, steps[:104])
    second.load(whole.state())
    for step in steps[104:115]:
        assert whole.observe(step) is second.observe(step) is None
        assert whole.open_onset() == second.open_onset()
        assert whole.state() == second.state()
    assert whole.open_onset() is None


def test_the_first_trouble_stays() -> None:
    watched = watch()
    first = watched.observe_parameters(7, ["a"])
    assert watched.trouble is first is not None
    assert feed(watched, spiking(100, None)) is first
    assert watched.observe_exhausted_scale(200) is watched.observe_end(200) is watched.trouble is first
