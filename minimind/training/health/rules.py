"""The health rules: each a pure function from numbers to a finding or None. No state, no torch.

Contract. A rule that has too few numbers, or numbers too noisy to tell, says nothing: a false alarm costs more trust
than a late one. monitor.py keeps the windows and decides what is new.

Known weakness: a run that has converged at a constant rate looks like a plateau; the advice names that case.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from statistics import fmean, median

from minimind.base.findings import Finding
from minimind.config.health import HealthConfig

MAX_BLOCKS = 64
MIN_BLOCKS = 16
MAD_TO_SIGMA = 1.4826  # of a normal distribution


class Blocks:
    """A whole run in at most 64 block means: when full, neighbours merge and later blocks are twice as long.

    So "the last quarter of the run" is always at hand, at a memory that does not grow.
    """

    def __init__(self, means: Sequence[float] = (), size: int = 1, part: Sequence[float] = ()) -> None:
        self.means, self.size, self.part = list(means), size, list(part)

    def add(self, value: float) -> None:
        """Take one more number."""
        self.part.append(value)
        if len(self.part) < self.size:
            return
        self.means.append(fmean(self.part))
        self.part = []
        if len(self.means) == MAX_BLOCKS:
            self.means = [(a + b) / 2 for a, b in zip(self.means[::2], self.means[1::2], strict=True)]
            self.size *= 2

    def quarters(self, min_count: int) -> list[list[float]] | None:
        """The block means in four equal parts, oldest first; None below ``min_count`` numbers."""
        if len(self.means) * self.size < min_count or len(self.means) < MIN_BLOCKS:
            return None
        width = len(self.means) // 4
        recent = self.means[-4 * width :]
        return [recent[i * width : (i + 1) * width] for i in range(4)]

    def state(self) -> dict[str, object]:
        """Plain numbers for the checkpoint; the constructor's arguments."""
        return {"means": list(self.means), "size": self.size, "part": list(self.part)}


def without_trend(values: Sequence[float]) -> list[float]:
    """The values less their straight line of least squares."""
    middle, mean = (len(values) - 1) / 2, fmean(values)
    spread = sum((i - middle) ** 2 for i in range(len(values)))
    slope = sum((i - middle) * (value - mean) for i, value in enumerate(values)) / spread
    return [value - mean - slope * (i - middle) for i, value in enumerate(values)]


def variance(values: Sequence[float]) -> float:
    """Of a sample. statistics.variance is exact in fractions, and forty times slower."""
    mean = fmean(values)
    return sum((value - mean) ** 2 for value in values) / (len(values) - 1)


def spike(losses: Sequence[float], config: HealthConfig) -> Finding | None:
    """Is the last loss far above the ones before it? Robust z: median and MAD don't feel earlier spikes."""
    *before, last = losses
    if len(before) < config.spike_steps // 2:
        return None
    middle = median(before)
    sigma = MAD_TO_SIGMA * median(abs(loss - middle) for loss in before)
    z = (last - middle) / max(sigma, 1e-9)
    if z < config.spike_z or last < middle * (1 + config.spike_rise):
        return None
    return Finding(
        "loss-spike",
        f"loss {last:.3f} is {z:.0f} robust deviations above the median {middle:.3f} of {len(before)} steps",
        "look at this step's samples (minimind samples); if it comes again, lower the learning rate",
        values={"loss": last, "median": middle, "z": z},
    )


def plateau(blocks: Blocks, config: HealthConfig) -> Finding | None:
    """Has the loss stopped falling? The last quarter of the run against the one before it.

    Relative to the run's own length, because a power law falls by the same share in each doubling of the steps: a
    fixed window would call every long run a plateau. One standard error is granted to the run.
    """
    quarters = blocks.quarters(config.plateau_steps)
    if quarters is None:
        return None
    before, now = quarters[2], quarters[3]
    error = ((variance(before) + variance(now)) / len(now)) ** 0.5
    old, new = fmean(before), fmean(now)
    if old - new + error >= config.plateau_gain * old:
        return None
    steps = len(now) * blocks.size
    return Finding(
        "loss-plateau",
        f"loss does not fall: {new:.3f} over the last {steps} steps, {old:.3f} over the {steps} before",
        "raise the learning rate if it is low for this model, else look at the data; or it has learned all it can",
        values={"loss": new, "loss_before": old, "steps": steps},
    )


def oscillation(losses: Sequence[float], config: HealthConfig) -> Finding | None:
    """Does the loss swing: up and down at each step, or in slow waves?"""
    if len(losses) < config.oscillation_steps:
        return None
    size, level = config.oscillation_steps // 16, max(fmean(losses), 1e-9)
    means = [fmean(losses[i : i + size]) for i in range(0, len(losses) - size + 1, size)]
    jumps = [abs(b - a) for a, b in itertools.pairwise(losses)]
    noise = MAD_TO_SIGMA * median(jumps) / (2 * size) ** 0.5  # of a block mean, if the steps were independent
    waves = reversals(means, max(4 * noise, config.oscillation_amplitude * level))
    deviation = variance(losses) ** 0.5
    # Von Neumann's ratio, 2 (1 - r1): 2 for independent noise, 4 for strict alternation; a trend lowers it.
    ratio = fmean(jump * jump for jump in jumps) / max(deviation**2, 1e-18)
    alternates = ratio > 3.0 and deviation > config.oscillation_amplitude * level
    # Slow waves tie neighbouring steps together (near 0, trend removed). Batches of unlike texts make large block means
    # turn round too, but independently (the built-in corpus: 1.4 to 2.4).
    tied = fmean(jump * jump for jump in jumps) / max(variance(without_trend(losses)), 1e-18)
    swings = waves >= config.oscillation_reversals and tied < 1.0
    if not swings and not alternates:
        return None
    return Finding(
        "loss-oscillates",
        f"loss swings by {deviation:.3f} around {level:.3f} in the last {len(losses)} steps",
        "lower the learning rate, or make the batch larger (gradient_accumulation_steps)",
        values={"loss": level, "deviation": deviation, "reversals": waves, "von_neumann": ratio},
    )


def reversals(values: Sequence[float], threshold: float) -> int:
    """How often a series turns round, counting only moves of at least ``threshold``."""
    low = high = values[0]
    direction, count = 0, 0
    for value in values:
        low, high = min(low, value), max(high, value)
        turned = 1 if direction <= 0 and value - low >= threshold else 0
        turned = -1 if not turned and direction >= 0 and high - value >= threshold else turned
        if turned:
            count += direction != 0
            direction, low, high = turned, value, value
    return count


def loss_scale(low_steps: int, scale: float, config: HealthConfig) -> Finding | None:
    """Has the loss scale been low for ``low_steps`` steps in a row?"""
    if low_steps < config.loss_scale_steps:
        return None
    return Finding(
        "loss-scale-low",
        f"loss scale {scale:g} has been below {config.loss_scale_low:g} for {low_steps} steps",
        "set initial_scale_power to 17, or use bf16 if the GPU has it: small gradients are lost at this scale",
        values={"loss_scale": scale, "steps": low_steps},
    )


def overflow(skips: Sequence[bool], config: HealthConfig) -> Finding | None:
    """Are too many of the recent steps, all after the start, skipped?"""
    rate = sum(skips) / config.overflow_steps
    if rate <= config.overflow_rate:
        return None
    return Finding(
        "overflow-often",
        f"{sum(skips)} of the last {len(skips)} steps were skipped for overflow; one in a thousand is normal",
        "lower the learning rate, or use bf16 if the GPU has it",
        values={"skipped": sum(skips), "steps": len(skips), "rate": rate},
    )


def grad_norm_high(norms: Sequence[float], config: HealthConfig) -> Finding | None:
    """Are gradients huge: median of a short window?"""
    recent = list(norms)[-config.grad_norm_high_steps :]
    if len(recent) < config.grad_norm_high_steps or median(recent) <= config.grad_norm_high:
        return None
    return Finding(
        "grad-norm-high",
        f"gradient norm {median(recent):.1f} (median of {len(recent)} steps) is above {config.grad_norm_high:g}",
        "set gradient_clipping to 0.5",
        values={"grad_norm": median(recent), "steps": len(recent)},
    )


def grad_norm_band(norms: Sequence[float], flat: bool, config: HealthConfig) -> Finding | None:
    """Is the median of a long window out of the healthy band?

    Small gradients are a symptom only while the loss does not fall (``flat``): trained models and large batches have
    norms of 0.2 in good health.
    """
    if len(norms) < config.grad_norm_band_steps:
        return None
    low, high = config.grad_norm_band
    middle = median(norms)
    values = {"grad_norm": middle, "steps": len(norms), "low": low, "high": high}
    seen = f"gradient norm {middle:.3g} (median of {len(norms)} steps) is outside the usual {low:g} to {high:g}"
    if middle > high:
        return Finding("grad-norm-above-band", seen, "lower the learning rate or enlarge the batch", values=values)
    if middle < low and flat:
        advice = "raise the learning rate; under fp16 also raise initial_scale_power"
        return Finding("grad-norm-below-band", f"{seen} and the loss does not fall", advice, values=values)
    return None


def overfitting(evaluations: Sequence[tuple[float, float]], config: HealthConfig) -> Finding | None:
    """``evaluations``: (held-out loss, training loss) pairs, oldest first. Rising while falling?"""
    if len(evaluations) <= config.overfit_evaluations:
        return None
    held = [loss for loss, _ in evaluations]
    rising = all(a < b for a, b in itertools.pairwise(held))
    (first, train_first), (last, train_last) = evaluations[0], evaluations[-1]
    if not rising or last < first * (1 + config.overfit_rise) or train_last >= train_first:
        return None
    return Finding(
        "overfitting",
        f"held-out loss rose from {first:.3f} to {last:.3f} in {len(held) - 1} evaluations, "
        f"training loss fell from {train_first:.3f} to {train_last:.3f}",
        "stop here and keep `best` (early_stopping_patience does so), or add data",
        values={"held_out": last, "held_out_before": first, "train": train_last, "train_before": train_first},
    )


def throughput(paces: Sequence[tuple[float, float]], config: HealthConfig) -> Finding | None:
    """``paces``: (tokens/s, seconds of the step). The last steps against those before them."""
    recent = list(paces)[-config.throughput_steps :]
    before = [pace for pace, _ in list(paces)[: -config.throughput_steps]]
    if len(before) < config.throughput_steps or sum(s for _, s in recent) < config.throughput_seconds:
        return None
    now, usual = median(pace for pace, _ in recent), median(before)
    if now >= config.throughput_drop * usual:
        return None
    return Finding(
        "throughput-drop",
        f"{now:,.0f} tokens/s over the last {len(recent)} steps, {usual:,.0f} before",
        "look for another process, a hot GPU (nvidia-smi) or a slow disk",
        values={"tokens_per_second": now, "before": usual},
    )


def memory_growth(blocks: Blocks, config: HealthConfig) -> Finding | None:
    """Does host memory grow without end? It must have grown in each quarter: what fills up once, stops."""
    quarters = blocks.quarters(config.memory_steps)
    if quarters is None:
        return None
    levels = [fmean(quarter) for quarter in quarters]
    growth = levels[3] - levels[0]
    steady = all(b - a >= growth / 6 for a, b in itertools.pairwise(levels))
    if not steady or growth < max(config.memory_growth * levels[0], config.memory_growth_bytes):
        return None
    return Finding(
        "memory-growth",
        f"host memory grew steadily from {levels[0] / 2**30:.2f} to {levels[3] / 2**30:.2f} GiB",
        "save and resume before it runs out, and report it: memory should not depend on the run's length",
        values={"bytes": levels[3], "bytes_before": levels[0]},
    )


def data_stall(waits: Sequence[tuple[float, float]], config: HealthConfig) -> Finding | None:
    """``waits``: (seconds waited for data, seconds of the step)."""
    waited, total = sum(w for w, _ in waits), sum(s for _, s in waits)
    if len(waits) < config.data_wait_steps or waited < max(config.data_wait_seconds, config.data_wait * total):
        return None
    return Finding(
        "data-stall",
        f"steps waited {waited:.1f} of {total:.1f} s for their data in the last {len(waits)} steps",
        "put the store (MINIMIND_CACHE) on a local disk, or free CPU cores",
        values={"waited_seconds": waited, "seconds": total, "share": waited / max(total, 1e-9)},
    )
