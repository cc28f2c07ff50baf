"""Which learning rate? Verdicts over loss curves: pure functions, no torch.

Sweep: a rate is good if its loss fell fastest among the stable ones and it is at most half of the lowest rate that was
not stable. Range test: the rate at which the loss fell steepest before it turned up. Both only ever recommend what
they saw; where that is not possible they say what to try instead.
Weakness: tens of steps rank rates by how fast they start, and a long run's best rate is often a little lower; the
thresholds are in shares of the first loss, which fits a language model from scratch better than a fine-tuned one.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from minimind.base.charts import running_mean

SAFETY = 2.0  # stay this factor below a rate that diverged: one halving, as the recovery ladder takes
RISE = 0.05  # of the first loss: a smoothed loss this far above its lowest has turned up
SPIKE = 0.10  # of the first loss: a single step this far above the mean before it
FALL = 0.01  # of the first loss: a smaller fall is none
NOISES = 5.0  # rises and spikes are at least this many typical step-to-step changes
FEWEST = 10  # steps with a finite loss that a range test needs


@dataclass(frozen=True)
class Curve:
    """One short run: loss (nats per trainable token; may end in NaN or infinity) of each step, whether its update was
    applied, and the rate it ran at: ``rate`` after warmup in a sweep, ``rates`` step by step in a range test."""

    rate: float
    losses: tuple[float, ...]
    applied: tuple[bool, ...]
    rates: tuple[float, ...] = ()

    @property
    def finite(self) -> int:
        """The number of steps before the first whose loss is not finite."""
        return next((i for i, loss in enumerate(self.losses) if not math.isfinite(loss)), len(self.losses))

    @property
    def width(self) -> int:
        """Steps on either side of one that a range test's mean and slope take in."""
        return max(1, len(self.losses) // 20)

    @property
    def trend(self) -> list[float]:
        """The losses smoothed. A sweep's: a running mean over about a tenth of the curve (at least five steps) of its
        finite values, NaN before them; a range test's: a mean that does not lag."""
        if self.rates:
            windows = (self.losses[max(0, i - self.width) : i + self.width + 1] for i in range(len(self.losses)))
            return [statistics.fmean(window) for window in windows]
        means = running_mean(self.losses, max(5, len(self.losses) // 10))
        return [math.nan if mean is None else mean for mean in means]


class Verdict(NamedTuple):
    """What a sweep's curve shows. ``worst_spike``: how far a step's loss was above the mean before it, at most (at
    least 0, infinite for NaN). ``problem``: why it is not stable; empty if it is."""

    rate: float
    start: float
    end: float
    smoothed_end: float
    worst_spike: float
    skipped: int
    problem: str

    @property
    def stable(self) -> bool:
        return not self.problem


class Recommendation(NamedTuple):
    """``rate`` None: none of those seen can be recommended. ``hint``: what to do next, in the range between ``ends`` if
    there are any; may be empty."""

    rate: float | None
    reason: str
    hint: str = ""
    ends: tuple[float, float] | None = None

    @property
    def advice(self) -> str:
        """The hint as a person can follow it."""
        return self.hint + (f": --from {self.ends[0]:.2g} --to {self.ends[1]:.2g}" if self.ends else "")


def judge(curves: Sequence[Curve]) -> list[Verdict]:
    """A verdict on each. They must share data and initialisation: the calmest tells the data's noise."""
    noise = min((_noise(curve.losses) for curve in curves if curve.finite == len(curve.losses)), default=0.0)
    return [_judge(curve, noise) for curve in curves]


def _noise(losses: Sequence[float]) -> float:
    """The typical change of the loss from one step to the next."""
    changes = [abs(after - before) for before, after in pairwise(losses)]
    return statistics.median(changes) if changes else 0.0


def _judge(curve: Curve, noise: float) -> Verdict:
    trend, start, skipped, half = curve.trend, curve.losses[0], curve.applied.count(False), len(curve.applied) // 2
    spikes = [after - mean for mean, after in zip(trend, curve.losses[1:], strict=False)]
    spike = max(math.inf if math.isnan(spike) else spike for spike in [0.0, *spikes])
    problem = ""
    if curve.finite < len(curve.losses):
        problem = f"loss not finite at step {curve.finite + 1}"
    # fp16 finds its scale in the first steps; overflow later, or in most steps, is the rate's doing
    elif not all(curve.applied[half:]) or skipped > half:
        problem = f"{skipped} steps skipped, gradients not finite"
    elif (rise := trend[-1] - min(trend)) > max(RISE * start, NOISES * noise):
        problem = f"loss turned up by {rise:.2f}"
    elif spike > max(SPIKE * start, NOISES * noise):
        problem = f"spike of {spike:.2f}"
    return Verdict(curve.rate, start, curve.losses[-1], trend[-1], worst_spike=spike, skipped=skipped, problem=problem)


def recommend(verdicts: Sequence[Verdict]) -> Recommendation:
    """The rate with the fastest stable fall that is not at the edge of divergence."""
    verdicts = sorted(verdicts, key=lambda verdict: verdict.rate)
    lowest, highest = verdicts[0].rate, verdicts[-1].rate
    edge = next((verdict for verdict in verdicts if not verdict.stable), None)
    fell = [v for v in verdicts if v.stable and v.start - v.smoothed_end > FALL * v.start]
    safe = [v for v in fell if edge is None or v.rate * SAFETY <= edge.rate]
    if not safe:
        return _none(verdicts, fell, edge)
    best = min(safe, key=lambda verdict: (verdict.smoothed_end, verdict.rate))
    reason = f"fastest stable fall: {best.start:.3f} to {best.smoothed_end:.3f} (smoothed); {_margin(best, fell, edge)}"
    if best.rate == highest and edge is None:
        hint = "it is the highest rate tried, so a higher one may be better"
        return Recommendation(best.rate, reason, hint, (highest, highest * 10))
    if best.rate == lowest:
        hint = "it is the lowest rate tried, so a lower one may be better"
        return Recommendation(best.rate, reason, hint, (lowest / 10, lowest))
    return Recommendation(best.rate, reason)


def _margin(best: Verdict, fell: Sequence[Verdict], edge: Verdict | None) -> str:
    """How far the best rate is from divergence, and which better one is too near."""
    if edge is None:
        return "no rate diverged"
    passed = [verdict.rate for verdict in fell if verdict.smoothed_end < best.smoothed_end]
    beside = f"; {min(passed):.3g} fell further but is too close to it" if passed else ""
    return f"{edge.rate / best.rate:.2g} times below {edge.rate:.3g}, which was not stable ({edge.problem}){beside}"


def _none(verdicts: Sequence[Verdict], fell: Sequence[Verdict], edge: Verdict | None) -> Recommendation:
    """Why no rate can be recommended, and where to look instead. ``verdicts``: by rate."""
    low, high = verdicts[0].rate, verdicts[-1].rate
    if edge is None:
        reason = "no rate lowered the loss: they are too small, or the steps too few"
        return Recommendation(None, reason, "sweep higher", (high, high * 100))
    if not any(verdict.stable for verdict in verdicts):
        hint = "look at the data, and sweep lower"
        return Recommendation(None, "every rate diverged", hint, (low / 100, low / SAFETY))
    unstable = f"{edge.rate:.3g} was not stable ({edge.problem})"
    if fell:
        reason = f"every rate that lowered the loss is at the edge: {unstable}"
        return Recommendation(None, reason, "sweep lower", (edge.rate / 50, edge.rate / SAFETY))
    hint = "sweep between: give rates closer together, or more --steps"
    return Recommendation(None, f"no stable rate lowered the loss, and {unstable}", hint)


def recommend_from_range(curve: Curve) -> Recommendation:
    """The rate of steepest descent (loss by log rate) before the loss turns up, in a run whose rate rises."""
    low, high, steps = curve.rates[0], curve.rates[-1], curve.finite
    lower = ("start lower", (low / 100, high))
    if steps < FEWEST:
        at = curve.rates[min(steps, len(curve.rates) - 1)]
        return Recommendation(None, f"the loss was not finite at {at:.2g}, after {steps} steps", *lower)
    seen = Curve(curve.rate, curve.losses[:steps], curve.applied, curve.rates[:steps])
    trend, start, noise = seen.trend, curve.losses[0], _noise(seen.losses[: steps // 2])
    turn = seen.rates[trend.index(min(trend))]
    turned = steps < len(curve.losses) or trend[-1] - min(trend) > max(RISE * start, NOISES * noise)
    if trend[0] - min(trend) < FALL * start:
        advice = lower if turned else ("go higher", (low, high * 100))
        return Recommendation(None, "the loss did not fall at any rate", *advice)
    limit = turn / SAFETY if turned else turn
    slopes = [(slope, rate) for slope, rate in _slopes(seen) if rate <= limit]
    if not slopes:
        return Recommendation(None, f"the loss turned up at {turn:.2g}, near the start of the range", *lower)
    best = f"{min(slopes)[1]:.2g}"
    if turned:
        return Recommendation(float(best), f"steepest fall of the loss is at {best}; it turned up after {turn:.2g}")
    reason = f"steepest fall of the loss is at {best}; it did not turn up until {high:.2g}"
    return Recommendation(float(best), reason, "a higher rate may be better", (low, high * 10))


def _slopes(curve: Curve) -> list[tuple[float, float]]:
    """Change of the trend per e-fold of the rate, with the rate; 0 where skipped steps left the rate in place."""
    trend, rates, width, slopes = curve.trend, curve.rates, curve.width, []
    for i in range(width, len(rates) - width):
        folds = math.log(rates[i + width] / rates[i - width])
        slopes.append(((trend[i + width] - trend[i - width]) / folds if folds else 0.0, rates[i]))
    return slopes
