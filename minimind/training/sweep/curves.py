"""Which learning rate? Verdicts over loss curves: pure functions, no torch.

Sweep: a rate is good if its loss fell fastest among the stable ones and it is at most half of the lowest rate that was
not stable. Range test: the rate at which the loss fell steepest before it turned up. Both only ever recommend what
they saw; where that is not possible they say what to try instead.
Weakness: tens of steps rank rates by how fast they start, and a long run's best rate is often a little lower; the
thresholds are in shares of the first loss, which fits a language model from scratch better than a fine-tuned one.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from minimind.base.charts import running_mean

SAFETY = 2.0  # stay this factor below a rate that diverged: one halving, as the recovery ladder takes
RISE = 0.05  # of the first loss: a smoothed loss this far above its lowest has turned up
SPIKE = 0.10  # of the first loss: a single step this far above the mean before it
FALL = 0.01  # of the first loss: a smaller fall is none
NOISES = 5.0  # ... each at least this many typical step-to-step changes


@dataclass(frozen=True)
class Curve:
    """One short run: loss (nats per trainable token; may end in NaN or infinity) of each step, whether its update
    was applied, and the rate it ran at: ``rate`` after warmup in a sweep, ``rates`` step by step in a range test."""

    rate: float
    losses: tuple[float, ...]
    applied: tuple[bool, ...]
    rates: tuple[float, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """What one curve shows. ``problem``: why it is not stable, empty if it is. Losses in nats per token."""

    rate: float
    start: float
    end: float
    smoothed_end: float
    worst_spike: float
    skipped: int
    problem: str = ""

    @property
    def stable(self) -> bool:
        return not self.problem


@dataclass(frozen=True)
class Recommendation:
    """``rate`` None: none of those seen can be recommended. ``advice``: what to do next, may be empty."""

    rate: float | None
    reason: str
    advice: str = ""


def geometric(low: float, high: float, count: int) -> list[float]:
    """``count`` rates from ``low`` to ``high`` by equal factors, to three digits: what is printed is what runs."""
    ratio = (high / low) ** (1 / (count - 1))
    return [float(f"{low * ratio**index:.3g}") for index in range(count)]


def judge(curves: Sequence[Curve]) -> list[Verdict]:
    """A verdict on each curve. They must share data and initialisation: the calmest one tells the data's noise."""
    complete = [curve.losses for curve in curves if all(map(math.isfinite, curve.losses))]
    noise = min((_noise(losses) for losses in complete), default=0.0)
    return [_judge_one(curve, noise) for curve in curves]


def _noise(losses: Sequence[float]) -> float:
    """The typical change of the loss from one step to the next."""
    changes = [abs(after - before) for before, after in itertools.pairwise(losses)]
    return statistics.median(changes) if changes else 0.0


def smoothed(losses: Sequence[float]) -> list[float]:
    """Running mean over about a tenth of the curve (at least five steps) of its finite values; NaN before them."""
    means = running_mean(losses, max(5, len(losses) // 10))
    return [math.nan if mean is None else mean for mean in means]


def _judge_one(curve: Curve, noise: float) -> Verdict:
    means = smoothed(curve.losses)
    spikes = [loss - mean for loss, mean in zip(curve.losses[1:], means, strict=False)]
    worst = max((math.inf if math.isnan(spike) else spike for spike in spikes), default=0.0)
    return Verdict(
        rate=curve.rate,
        start=curve.losses[0],
        end=curve.losses[-1],
        smoothed_end=means[-1],
        worst_spike=max(worst, 0.0),
        skipped=curve.applied.count(False),
        problem=_problem(curve, means, worst, noise),
    )


def _problem(curve: Curve, means: Sequence[float], worst: float, noise: float) -> str:
    """Why the curve is not stable; empty if it is."""
    for step, loss in enumerate(curve.losses, start=1):
        if not math.isfinite(loss):
            return f"loss not finite at step {step}"
    # fp16 finds its scale in the first steps; overflow later, or in most steps, is the rate's doing
    half = len(curve.applied) // 2
    late, skipped = curve.applied[half:].count(False), curve.applied.count(False)
    if late or skipped > half:
        return f"{skipped} steps skipped, gradients not finite"
    rise = means[-1] - min(means)
    if rise > max(RISE * curve.losses[0], NOISES * noise):
        return f"loss turned up by {rise:.2f}"
    if worst > max(SPIKE * curve.losses[0], NOISES * noise):
        return f"spike of {worst:.2f}"
    return ""


def recommend(verdicts: Sequence[Verdict]) -> Recommendation:
    """The rate with the fastest stable fall that is not at the edge of divergence."""
    by_rate = sorted(verdicts, key=lambda verdict: verdict.rate)
    edge = next((verdict for verdict in by_rate if not verdict.stable), None)
    fell = [v for v in by_rate if v.stable and v.start - v.smoothed_end > FALL * v.start]
    safe = [verdict for verdict in fell if edge is None or verdict.rate * SAFETY <= edge.rate]
    if not safe:
        return _none(by_rate, fell, edge)
    best = min(safe, key=lambda verdict: (verdict.smoothed_end, verdict.rate))
    return Recommendation(
        best.rate, _reason(best, fell, edge), _next(best.rate, by_rate[0].rate, by_rate[-1].rate, edge)
    )


def _none(by_rate: Sequence[Verdict], fell: Sequence[Verdict], edge: Verdict | None) -> Recommendation:
    """Why no rate can be recommended, and where to look instead."""
    lowest, highest = by_rate[0].rate, by_rate[-1].rate
    if edge is None:
        reason = "no rate lowered the loss: they are too small, or the steps too few"
        return Recommendation(None, reason, f"sweep higher: --from {highest:.2g} --to {highest * 100:.2g}")
    if not any(verdict.stable for verdict in by_rate):
        advice = f"sweep lower: --from {lowest / 100:.2g} --to {lowest / SAFETY:.2g}; then look at the data"
        return Recommendation(None, "every rate diverged", advice)
    if fell:
        reason = f"every rate that lowered the loss is at the edge: {edge.rate:.3g} was not stable ({edge.problem})"
        advice = f"sweep lower: --from {edge.rate / 50:.2g} --to {edge.rate / SAFETY:.2g}"
        return Recommendation(None, reason, advice)
    reason = f"no stable rate lowered the loss, and {edge.rate:.3g} was not stable ({edge.problem})"
    return Recommendation(None, reason, "sweep between: give rates closer together, or more --steps")


def _reason(best: Verdict, fell: Sequence[Verdict], edge: Verdict | None) -> str:
    fall = f"fastest stable fall: {best.start:.3f} to {best.smoothed_end:.3f} (smoothed)"
    if edge is None:
        return f"{fall}; no rate diverged"
    passed = [verdict.rate for verdict in fell if verdict.smoothed_end < best.smoothed_end]
    beside = f"; {min(passed):.3g} fell further but is too close to it" if passed else ""
    margin = f"{edge.rate / best.rate:.2g} times below {edge.rate:.3g}, which was not stable ({edge.problem})"
    return f"{fall}; {margin}{beside}"


def _next(best: float, lowest: float, highest: float, edge: Verdict | None) -> str:
    if best == highest and edge is None:
        return f"it is the highest rate tried, so a higher one may be better: --from {best:.2g} --to {best * 10:.2g}"
    if best == lowest:
        return f"it is the lowest rate tried, so a lower one may be better: --from {best / 10:.2g} --to {best:.2g}"
    return ""


def recommend_from_range(curve: Curve) -> Recommendation:
    """The rate of steepest descent (loss by log rate) before the loss turns up, in a run whose rate rises."""
    finite = next((i for i, loss in enumerate(curve.losses) if not math.isfinite(loss)), len(curve.losses))
    losses, rates = curve.losses[:finite], curve.rates[:finite]
    if finite < 10:
        at = curve.rates[min(finite, len(curve.rates) - 1)]
        return Recommendation(
            None,
            f"the loss was not finite at {at:.2g}, after {finite} steps",
            f"start lower: --from {curve.rates[0] / 100:.2g}",
        )
    width = max(1, finite // 20)
    means = centred(losses, width)
    noise = _noise(losses[: finite // 2])
    bottom = min(range(finite), key=means.__getitem__)
    turned = finite < len(curve.losses) or means[-1] - means[bottom] > max(RISE * losses[0], NOISES * noise)
    if means[0] - means[bottom] < FALL * losses[0]:
        advice = f"start lower: --from {rates[0] / 100:.2g}" if turned else f"go higher: --to {rates[-1] * 100:.2g}"
        return Recommendation(None, "the loss did not fall at any rate", advice)
    limit = rates[bottom] / SAFETY if turned else rates[bottom]
    inner = [i for i in range(width, finite - width) if rates[i] <= limit]
    if not inner:
        return Recommendation(
            None,
            f"the loss turned up at {rates[bottom]:.2g}, near the start of the range",
            f"start lower: --from {rates[0] / 100:.2g}",
        )
    best = min(inner, key=lambda i: _slope(means, rates, i, width))
    reason = f"steepest fall of the loss is at {rates[best]:.2g}; it "
    reason += f"turned up after {rates[bottom]:.2g}" if turned else f"did not turn up until {rates[-1]:.2g}"
    return Recommendation(
        float(f"{rates[best]:.2g}"), reason, "" if turned else f"a higher rate may be better: --to {rates[-1] * 10:.2g}"
    )


def centred(values: Sequence[float], width: int) -> list[float]:
    """Mean over ``width`` values on either side; it does not lag, which would move the steepest point up."""
    windows = (values[max(0, i - width) : i + width + 1] for i in range(len(values)))
    return [statistics.fmean(window) for window in windows]


def _slope(means: Sequence[float], rates: Sequence[float], i: int, width: int) -> float:
    """Change of loss per e-fold of the rate around point ``i``; 0 where skipped steps left the rate in place."""
    folds = math.log(rates[i + width] / rates[i - width])
    return (means[i + width] - means[i - width]) / folds if folds else 0.0
