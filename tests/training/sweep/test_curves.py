"""The recommendation over made curves: too small, good, diverging, all diverging, and a rate that rises."""

from __future__ import annotations

import math
import random

import pytest

from minimind.training.health.lr_bands import usual_band
from minimind.training.sweep.curves import Curve, judge, recommend, recommend_from_range
from minimind.training.sweep.options import geometric

STEPS = 50
START = 8.7


def falling(rate: float, speed: float, noise: float = 0.02, steps: int = STEPS) -> Curve:
    """A loss that falls from START towards 3 at ``speed`` a step, with the noise that all curves share."""
    draw = random.Random(0)
    losses = [3 + (START - 3) * math.exp(-speed * t) + draw.gauss(0, noise) for t in range(steps)]
    return Curve(rate, tuple(losses), (True,) * steps)


def diverging(rate: float, turn: int = 10) -> Curve:
    """Falls, turns at step ``turn`` and rises above where it began."""
    base = falling(rate, 0.05).losses
    losses = [loss if t < turn else base[turn] + 0.3 * (t - turn) for t, loss in enumerate(base)]
    return Curve(rate, tuple(losses), (True,) * STEPS)


def not_finite(rate: float) -> Curve:
    return Curve(rate, (START, START + 2.0, math.nan), (True, True, False))


def ramp(low: float, high: float, losses: list[float]) -> Curve:
    rates = tuple(low * (high / low) ** (t / (len(losses) - 1)) for t in range(len(losses)))
    return Curve(high, tuple(losses), (True,) * len(losses), rates)


def valley(peak: float, turn: float, steps: int = 100, low: float = 1e-6, high: float = 1.0) -> Curve:
    """A range test whose loss falls steepest at ``peak`` and rises steeply after ``turn``."""
    rates = [low * (high / low) ** (t / (steps - 1)) for t in range(steps)]
    losses = [START - 4 / (1 + math.exp(-4 * math.log10(r / peak))) + max(0.0, 8 * math.log10(r / turn)) for r in rates]
    return ramp(low, high, losses)


def test_the_fastest_stable_fall_is_recommended() -> None:
    curves = [falling(1e-5, 0.0005), falling(1e-4, 0.02), falling(1e-3, 0.08), diverging(1e-2)]
    verdicts = judge(curves)
    assert [verdict.stable for verdict in verdicts] == [True, True, True, False]
    chosen = recommend(verdicts)
    assert chosen.rate == 1e-3
    assert "fastest stable fall" in chosen.reason and "10 times below 0.01" in chosen.reason


def test_a_rate_beside_divergence_is_passed_over() -> None:
    chosen = recommend(judge([falling(2e-4, 0.05), falling(8e-4, 0.08), diverging(1e-3)]))
    assert chosen.rate == 2e-4
    assert "0.0008 fell further but is too close" in chosen.reason


def test_only_rates_at_the_edge_recommend_none_and_say_where_to_look() -> None:
    chosen = recommend(judge([falling(8e-4, 0.08), diverging(1e-3)]))
    assert chosen.rate is None and "edge" in chosen.reason and "--to 0.0005" in chosen.advice


def test_all_diverging_recommends_none() -> None:
    verdicts = judge([diverging(1e-2), not_finite(1e-1)])
    assert not any(verdict.stable for verdict in verdicts)
    chosen = recommend(verdicts)
    assert chosen.rate is None and chosen.reason == "every rate diverged" and "--to 0.005" in chosen.advice


def test_all_too_small_recommends_none_and_points_up() -> None:
    verdicts = judge([falling(1e-8, 0.0), falling(1e-7, 0.0001)])
    assert all(verdict.stable for verdict in verdicts)
    chosen = recommend(verdicts)
    assert chosen.rate is None and "too small" in chosen.reason and "--from 1e-07" in chosen.advice


def test_too_small_below_and_diverging_above_recommends_none() -> None:
    chosen = recommend(judge([falling(1e-8, 0.0), diverging(1.0)]))
    assert chosen.rate is None and "no stable rate lowered the loss" in chosen.reason


@pytest.mark.parametrize(("best", "words"), [(0, "lowest rate tried"), (2, "highest rate tried"), (1, "")])
def test_a_best_rate_at_the_end_of_the_range_says_so(best: int, words: str) -> None:
    curves = [falling(10.0 ** (i - 5), 0.08 if i == best else 0.03) for i in range(3)]
    chosen = recommend(judge(curves))
    assert chosen.rate == curves[best].rate
    assert words in chosen.advice and bool(words) == bool(chosen.advice)


def test_the_order_of_the_curves_does_not_matter() -> None:
    curves = [falling(1e-4, 0.02), falling(1e-3, 0.08), diverging(1e-2)]
    assert recommend(judge(curves)) == recommend(judge(curves[::-1]))


def test_a_stable_rate_above_one_that_was_not_is_never_recommended() -> None:
    assert recommend(judge([falling(1e-4, 0.02), diverging(1e-3), falling(1e-2, 0.08)])).rate == 1e-4


def test_what_makes_a_curve_unstable() -> None:
    good = falling(1e-3, 0.05)
    spiked = Curve(1e-3, (*good.losses[:30], 9.5, *good.losses[31:]), good.applied)
    late = Curve(1e-3, good.losses, (*good.applied[:-1], False))
    calibrating = Curve(1e-3, good.losses, (False, False, *good.applied[2:]))
    assert [verdict.problem.split(" ")[0] for verdict in judge([good, spiked, late, calibrating])] == [
        "",
        "spike",
        "1",
        "",
    ]
    (verdict,) = judge([not_finite(1.0)])
    assert verdict.problem == "loss not finite at step 3"
    assert judge([spiked])[0].worst_spike == pytest.approx(9.5 - good.losses[29], abs=1.5)
    assert [verdict.skipped for verdict in judge([late, calibrating])] == [1, 2]


def test_noise_of_the_data_is_not_taken_for_divergence() -> None:
    assert all(verdict.stable for verdict in judge([falling(1e-4, 0.01, noise=0.3), falling(1e-3, 0.03, noise=0.3)]))


def test_the_range_test_takes_the_steepest_point_before_the_turn() -> None:
    chosen = recommend_from_range(valley(peak=1e-3, turn=0.1))
    assert chosen.rate == pytest.approx(1e-3, rel=0.3)
    assert "turned up after" in chosen.reason and not chosen.advice


def test_the_range_test_ignores_what_happens_after_divergence() -> None:
    curve = valley(peak=1e-3, turn=0.1)
    # falls off a cliff after the turn: steeper than anything before, and meaningless
    cliff = ramp(1e-6, 1.0, [*curve.losses[:-3], START, 6.0, math.nan])
    assert recommend_from_range(cliff).rate == recommend_from_range(curve).rate


def test_a_range_that_ends_too_early_says_so() -> None:
    rising_end = [START - 4 / (1 + math.exp(-4 * (t / 99 * 6 - 5))) for t in range(100)]
    chosen = recommend_from_range(ramp(1e-6, 1.0, rising_end))
    assert chosen.rate == pytest.approx(10**-1, rel=0.4) and "--to 10" in chosen.advice


@pytest.mark.parametrize(
    ("losses", "reason", "advice"),
    [
        ([START] * 100, "did not fall", "--to 10"),
        ([START + 0.1 * t for t in range(100)], "did not fall", "--from 1e-06"),
        ([START, 11.0, math.inf], "not finite", "--from 1e-06"),
    ],
)
def test_a_range_test_without_a_fall_recommends_none(losses: list[float], reason: str, advice: str) -> None:
    chosen = recommend_from_range(ramp(1e-4, 1e-1, losses))
    assert chosen.rate is None and reason in chosen.reason and advice in chosen.advice


def test_skipped_steps_do_not_move_the_rate() -> None:
    """fp16 skips while it finds its scale; the rate stays and no slope is made of it."""
    curve = valley(peak=1e-3, turn=0.1)
    early = Curve(1.0, (START,) * 4 + curve.losses, (False,) * 4 + curve.applied, (1e-6,) * 4 + curve.rates)
    assert recommend_from_range(early).rate == pytest.approx(1e-3, rel=0.3)


def test_geometric_rates() -> None:
    assert geometric(1e-5, 1e-2, 7) == [1e-5, 3.16e-5, 1e-4, 3.16e-4, 1e-3, 3.16e-3, 1e-2]


@pytest.mark.parametrize(
    ("size", "published"), [(19e6, 1e-3), (125e6, 6e-4), (135e6, 3e-3), (350e6, 3e-4), (1.3e9, 2e-4)]
)
def test_the_band_holds_published_rates(size: float, published: float) -> None:
    band = usual_band(int(size), "AdamW")
    assert band.low <= published <= band.high


def test_the_band_follows_the_optimizer() -> None:
    adamw, lion, muon = (usual_band(26_000_000, name) for name in ("AdamW8bit", "Lion", "Muon"))
    assert (lion.low, lion.high) == (adamw.low / 10, adamw.high / 3)
    assert (muon.low, muon.high) == (adamw.low, adamw.high) and "muon_lr" in muon.source
