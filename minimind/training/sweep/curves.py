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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from minimind.base.charts import running_mean

SAFETY = 2.0  # stay this factor below a rate that diverged: one halving, as the recovery ladder takes
RISE = 0.05  # of the first loss: a smoothed loss this far above its lowest has turned up
SPIKE = 0.10  # of the first loss: a single step this far above the mean before it
FALL = 0.01  # of the first loss: a smaller fall is none
NOISES = 5.0  # ... each at least this many typical step-to-step changes
FEWEST = 10  # steps with a finite loss that a range test needs


@dataclass(frozen=True)
class Curve:
    """One short run: loss (nats per trainable token; may end in NaN or infinity) of each step, whether its update was
    applied, and the rate it ran at: ``rate`` after warmup in a sweep, ``rates`` step by step in a range test.
    ``problem``: why `judge` found it not stable; empty if it is.
    """

    rate: float
    losses: tuple[float, ...]
    applied: tuple[bool, ...]
    rates: tuple[float, ...] = ()
    problem: str = ""

    @property
    def stable(self) -> bool:
        return not self.problem

    @property
    def start(self) -> float:
        return self.losses[0]

    @property
    def end(self) -> float:
        return self.losses[-1]

    @property
    def skipped(self) -> int:
        return self.applied.count(False)

    @cached_property
    def finite(self) -> int:
        """The number of steps before the first whose loss is not finite."""
        return next((i for i, loss in enumerate(self.losses) if not math.isfinite(loss)), len(self.losses))

    @cached_property
    def trend(self) -> list[float]:
        """The losses smoothed. A sweep's: a running mean over about a tenth of the curve (at least five steps) of its
        finite values, NaN before them; a range test's: a mean that does not lag."""
        if self.rates:
            width = _width(self)
            windows = (self.losses[max(0, i - width) : i + width + 1] for i in range(len(self.losses)))
            return [statistics.fmean(window) for window in windows]
        means = running_mean(self.losses, max(5, len(self.losses) // 10))
        return [math.nan if mean is None else mean for mean in means]

    @property
    def smoothed_end(self) -> float:
        return self.trend[-1]

    @property
    def worst_spike(self) -> float:
        """How far a step's loss was above the mean before it, at most: at least 0, infinite for NaN."""
        spikes = [after - mean for mean, after in zip(self.trend, self.losses[1:], strict=False)]
        return max(math.inf if math.isnan(spike) else spike for spike in [0.0, *spikes])


@dataclass(frozen=True)
class Recommendation:
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


def geometric(low: float, high: float, count: int) -> list[float]:
    """``count`` rates from ``low`` to ``high`` by equal factors, to three digits: what is printed is what runs."""
    return [float(f"{low * (high / low) ** (i / (count - 1)):.3g}") for i in range(count)]


def judge(curves: Sequence[Curve]) -> list[Curve]:
    """The curves with their problems. They must share data and initialisation: the calmest tells the data's noise."""
    noise = min((_noise(curve.losses) for curve in curves if curve.finite == len(curve.losses)), default=0.0)
    return [replace(curve, problem=_problem(curve, noise)) for curve in curves]


def _noise(losses: Sequence[float]) -> float:
    """The typical change of the loss from one step to the next."""
    changes = [abs(after - before) for before, after in pairwise(losses)]
    return statistics.median(changes) if changes else 0.0


def _problem(curve: Curve, noise: float) -> str:
    """Why the curve is not stable; empty if it is."""
    if curve.finite < len(curve.losses):
        return f"loss not finite at step {curve.finite + 1}"
    # fp16 finds its scale in the first steps; overflow later, or in most steps, is the rate's doing
    half = len(curve.applied) // 2
    if not all(curve.applied[half:]) or curve.skipped > half:
        return f"{curve.skipped} steps skipped, gradients not finite"
    if (rise := curve.smoothed_end - min(curve.trend)) > max(RISE * curve.start, NOISES * noise):
        return f"loss turned up by {rise:.2f}"
    if curve.worst_spike > max(SPIKE * curve.start, NOISES * noise):
        return f"spike of {curve.worst_spike:.2f}"
    return ""


def recommend(curves: Sequence[Curve]) -> Recommendation:
    """The rate with the fastest stable fall that is not at the edge of divergence. ``curves``: as judged."""
    curves = sorted(curves, key=lambda curve: curve.rate)
    edge = next((curve for curve in curves if not curve.stable), None)
    fell = [curve for curve in curves if curve.stable and curve.start - curve.smoothed_end > FALL * curve.start]
    safe = [curve for curve in fell if edge is None or curve.rate * SAFETY <= edge.rate]
    if not safe:
        return _none(curves, fell, edge)
    best = min(safe, key=lambda curve: (curve.smoothed_end, curve.rate))
    return Recommendation(best.rate, _reason(best, fell, edge), *_next(best.rate, curves, edge))


def _reason(best: Curve, fell: Sequence[Curve], edge: Curve | None) -> str:
    fall = f"fastest stable fall: {best.start:.3f} to {best.smoothed_end:.3f} (smoothed)"
    if edge is None:
        return f"{fall}; no rate diverged"
    passed = [curve.rate for curve in fell if curve.smoothed_end < best.smoothed_end]
    beside = f"; {min(passed):.3g} fell further but is too close to it" if passed else ""
    margin = f"{edge.rate / best.rate:.2g} times below {edge.rate:.3g}, which was not stable ({edge.problem})"
    return f"{fall}; {margin}{beside}"


def _next(best: float, curves: Sequence[Curve], edge: Curve | None) -> tuple[str, tuple[float, float] | None]:
    """Hint and range where the best rate is the first or last of ``curves``, which are in order of rate."""
    if best == curves[-1].rate and edge is None:
        return "it is the highest rate tried, so a higher one may be better", (best, best * 10)
    if best == curves[0].rate:
        return "it is the lowest rate tried, so a lower one may be better", (best / 10, best)
    return "", None


def _none(curves: Sequence[Curve], fell: Sequence[Curve], edge: Curve | None) -> Recommendation:
    """Why no rate can be recommended, and where to look instead. ``curves``: by rate."""
    if edge is None:
        reason, high = "no rate lowered the loss: they are too small, or the steps too few", curves[-1].rate
        return Recommendation(None, reason, "sweep higher", (high, high * 100))
    if not any(curve.stable for curve in curves):
        hint, low = "look at the data, and sweep lower", curves[0].rate
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
    seen = replace(curve, losses=curve.losses[:steps], rates=curve.rates[:steps])
    least, noise = min(seen.trend), _noise(seen.losses[: steps // 2])
    turn = seen.rates[seen.trend.index(least)]
    turned = steps < len(curve.losses) or seen.smoothed_end - least > max(RISE * curve.start, NOISES * noise)
    if seen.trend[0] - least < FALL * curve.start:
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


def _slopes(curve: Curve) -> Iterator[tuple[float, float]]:
    """Change of the trend per e-fold of the rate, with the rate; 0 where skipped steps left the rate in place."""
    width = _width(curve)
    for i in range(width, len(curve.rates) - width):
        folds = math.log(curve.rates[i + width] / curve.rates[i - width])
        yield (curve.trend[i + width] - curve.trend[i - width]) / folds if folds else 0.0, curve.rates[i]


def _width(curve: Curve) -> int:
    """Steps on either side of one that its mean and slope take in."""
    return max(1, len(curve.losses) // 20)
