"""Health: windows over a run's recent numbers, and which findings of the rules are news. Pure: no torch, no I/O.

Contract. Feed every step and every evaluation in order; what comes back is new: a code is reported once an episode, and
again only after ``heal_steps`` steps without the symptom (one healthy evaluation for codes that evaluations bring).
``state()`` is plain numbers: a run that resumes from it reports what the uninterrupted one would have. The rules
themselves, with their reasons, are in health/rules.py; every threshold is in HealthConfig.

Known weakness: the machine's rules (pace, memory, data) see wall-clock numbers, so those findings are not repeatable.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING, Any

from minimind.base.findings import Finding
from minimind.config.health import HealthConfig
from minimind.training.health import rules
from minimind.training.health.lr_bands import judged_band, start_rate
from minimind.training.health.rules import Blocks

if TYPE_CHECKING:
    from minimind.training.values import StepMetrics

PACES = 10  # throughput windows that make up "before"
WINDOWS = ("losses", "norms", "skips", "paces", "waits", "evaluations")
NUMBERS = ("low_scale_steps", "start_skips", "peak_lr", "tokens", "loss_sum", "loss_count")


class Health:
    """The health of one run. Every rank may keep one; the findings are for rank 0 to report."""

    def __init__(self, thresholds: HealthConfig | None = None) -> None:
        self.thresholds = config = thresholds or HealthConfig()
        self.losses: deque[float] = deque(maxlen=max(config.spike_steps + 1, config.oscillation_steps))
        self.norms: deque[float] = deque(maxlen=config.grad_norm_band_steps)
        self.skips: deque[bool] = deque(maxlen=config.overflow_steps)
        self.paces: deque[tuple[float, float]] = deque(maxlen=PACES * config.throughput_steps)
        self.waits: deque[tuple[float, float]] = deque(maxlen=config.data_wait_steps)
        self.evaluations: deque[tuple[float, float]] = deque(maxlen=config.overfit_evaluations + 1)
        self.loss_blocks, self.memory_blocks = Blocks(), Blocks()
        self.low_scale_steps, self.start_skips, self.tokens = 0, 0, 0
        self.peak_lr, self.loss_sum, self.loss_count = 0.0, 0.0, 0
        self.episodes: dict[str, int] = {}  # code -> steps since the symptom was last there
        self.evaluation_episodes: dict[str, int] = {}

    def observe_step(
        self, metrics: StepMetrics, memory_bytes: int | None = None, data_wait: float | None = None
    ) -> list[Finding]:
        """What this step's numbers show that is new.

        ``memory_bytes``: anonymous host memory of this process; ``data_wait``: seconds this step waited for its data.
        """
        if not self.thresholds.enabled:
            return []
        found = [*self._precision(metrics), *self._gradients(metrics), *self._machine(metrics, memory_bytes, data_wait)]
        found += self._loss(metrics)
        found += [finding for rule in STEP_RULES if (finding := rule(self, metrics))]
        return _news(found, self.episodes, self.thresholds.heal_steps, metrics.step)

    def observe_evaluation(self, step: int, loss: float) -> list[Finding]:
        """What a held-out ``loss`` after ``step`` shows that is new."""
        if not self.thresholds.enabled:
            return []
        found = []
        if not math.isfinite(loss):
            found = [_not_finite("held-out loss", "evaluation-not-finite", loss)]
        elif self.loss_count:
            self.evaluations.append((loss, self.loss_sum / self.loss_count))
            self.loss_sum, self.loss_count = 0.0, 0
            found = _some(rules.overfitting(list(self.evaluations), self.thresholds))
        return _news(found, self.evaluation_episodes, 1, step)

    def state(self) -> dict[str, Any]:
        """Plain lists and numbers, for the checkpoint."""
        return {
            **{name: list(getattr(self, name)) for name in WINDOWS},
            **{name: getattr(self, name) for name in NUMBERS},
            "loss_blocks": self.loss_blocks.state(),
            "memory_blocks": self.memory_blocks.state(),
            "episodes": dict(self.episodes),
            "evaluation_episodes": dict(self.evaluation_episodes),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any] | None, thresholds: HealthConfig | None = None) -> Health:
        """The health that ``state()`` described; with nothing (an older checkpoint) a fresh one."""
        health = cls(thresholds)
        if not state:
            return health
        for name in WINDOWS:
            getattr(health, name).extend(tuple(value) if isinstance(value, list) else value for value in state[name])
        for name in NUMBERS:
            setattr(health, name, state[name])
        health.loss_blocks, health.memory_blocks = (Blocks(**state["loss_blocks"]), Blocks(**state["memory_blocks"]))
        health.episodes, health.evaluation_episodes = (dict(state["episodes"]), dict(state["evaluation_episodes"]))
        return health

    def _precision(self, metrics: StepMetrics) -> list[Finding]:
        """Loss scale and overflows; a step whose loss is not finite has its own finding and is not counted."""
        config, scale = self.thresholds, metrics.loss_scale
        if scale is None or not math.isfinite(metrics.loss):
            return []
        self.low_scale_steps = self.low_scale_steps + 1 if scale < config.loss_scale_low else 0
        found = _some(rules.loss_scale(self.low_scale_steps, scale, config))
        if metrics.step > config.start_steps:
            self.skips.append(not metrics.applied)
            return found + _some(rules.overflow(self.skips, config))
        self.start_skips += not metrics.applied
        if not metrics.applied and self.start_skips == config.overflow_note_skips:
            found.append(_overflow_note(metrics, self.start_skips))
        return found

    def _gradients(self, metrics: StepMetrics) -> list[Finding]:
        """Gradient norms after the start; without a loss scale a gradient that is not finite is never normal."""
        norm, config = metrics.grad_norm, self.thresholds
        if not metrics.applied and metrics.loss_scale is None and math.isfinite(metrics.loss):
            return [_not_finite("gradient", "gradient-not-finite", math.nan if norm is None else norm)]
        if norm is None or not math.isfinite(norm) or not metrics.applied:
            return []
        if metrics.step > config.start_steps:
            self.norms.append(norm)
        return _some(rules.grad_norm_high(self.norms, config))

    def _loss(self, metrics: StepMetrics) -> list[Finding]:
        loss, config = metrics.loss, self.thresholds
        if not math.isfinite(loss):
            return [_not_finite("loss", "loss-not-finite", loss)]
        self.losses.append(loss)
        self.loss_blocks.add(loss)
        self.loss_sum, self.loss_count = self.loss_sum + loss, self.loss_count + 1
        self.peak_lr = max(self.peak_lr, metrics.lr)
        swings = _some(rules.oscillation(list(self.losses)[-config.oscillation_steps :], config))
        # Late in a schedule the loss is flat because the rate is small: that is its purpose, not an illness.
        decaying = metrics.lr < self.peak_lr / 2
        flat = [] if decaying or swings else _some(rules.plateau(self.loss_blocks, config))
        high = "grad-norm-high" in self.episodes
        band = [] if high else _some(rules.grad_norm_band(self.norms, bool(flat), config))
        # Small gradients explain a plateau: one illness, one finding, once the norms' window is full.
        small = bool(self.norms) and median(self.norms) < config.grad_norm_band[0]
        return [*swings, *band, *([] if small else flat)]

    def _machine(self, metrics: StepMetrics, memory_bytes: int | None, data_wait: float | None) -> list[Finding]:
        """Pace, data and memory. The recorder spreads an interval's pace over its steps, by their tokens."""
        config, found = self.thresholds, []
        tokens, self.tokens = metrics.tokens - self.tokens, metrics.tokens
        if metrics.tokens_per_second and tokens > 0:
            seconds = tokens / metrics.tokens_per_second
            self.paces.append((metrics.tokens_per_second, seconds))
            found += _some(rules.throughput(self.paces, config))
            if data_wait is not None:
                self.waits.append((data_wait, seconds))
                found += _some(rules.data_stall(self.waits, config))
        if memory_bytes is not None and metrics.step > config.start_steps:
            self.memory_blocks.add(float(memory_bytes))
            found += _some(rules.memory_growth(self.memory_blocks, config))
        return found


def _spike(health: Health, metrics: StepMetrics) -> Finding | None:
    if not math.isfinite(metrics.loss):
        return None
    config = health.thresholds
    return rules.spike(list(health.losses)[-config.spike_steps - 1 :], config)


# Asked after each step, when the windows have it: rules that hang on no other rule's answer. One more is one entry.
STEP_RULES: list[Callable[[Health, StepMetrics], Finding | None]] = [_spike]


def before_run(
    kind: str,
    optimizer: str,
    lr: float,
    num_parameters: int,
    thresholds: HealthConfig | None = None,
    sweep: str | None = None,
) -> list[Finding]:
    """Is the peak learning rate usual for this model, optimizer and ``kind`` ("pretrain" or "sft")?

    ``lr`` is the rate of the matrices (Muon: ``muon_lr``). An optimizer without a known band gives nothing. ``sweep``:
    the command that compares rates, if there is one.
    """
    config = thresholds or HealthConfig()
    band = judged_band(kind, optimizer, num_parameters, config)
    if not config.enabled or band is None or band.holds(lr):
        return []
    side = "below" if lr < band.low else "above"
    task = "fine-tuning" if kind == "sft" else "pretraining"
    start = start_rate(kind, optimizer, band)
    return [
        Finding(
            f"lr-{side}-band",
            f"learning rate {lr:g} is {side} the usual {band.low:.3g} to {band.high:.3g} for {task} "
            f"{num_parameters / 1e6:.3g}M parameters with {optimizer}",
            f"start from {start:g}" + (f", or compare a few: {sweep}" if sweep else ""),
            values={"lr": lr, "low": band.low, "high": band.high, "start": start},
        )
    ]


def _news(found: Iterable[Finding], episodes: dict[str, int], heal: int, step: int) -> list[Finding]:
    """Those of ``found`` whose code has no open episode; opens theirs and closes the healed ones."""
    current = {finding.code: finding for finding in found}
    news = [replace(finding, step=step) for code, finding in current.items() if code not in episodes]
    for code in [code for code in episodes if code not in current]:
        episodes[code] += 1
        if episodes[code] >= heal:
            del episodes[code]
    episodes.update(dict.fromkeys(current, 0))
    return news


def _some(finding: Finding | None) -> list[Finding]:
    return [] if finding is None else [finding]


def _not_finite(what: str, code: str, value: float) -> Finding:
    advice = "look at this step's samples (minimind samples), then lower the learning rate"
    return Finding(code, f"the {what} is {value}", advice, values={"value": value})


def _overflow_note(metrics: StepMetrics, skips: int) -> Finding:
    return Finding(
        "overflow-at-start",
        f"{skips} of the first {metrics.step} steps were skipped: the loss scale is still finding its level",
        "nothing to do: this is normal at the start of fp16 training",
        values={"skipped": skips, "loss_scale": metrics.loss_scale or 0.0},
    )
