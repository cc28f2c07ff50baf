"""Trouble: what a run does not get over by itself. Pure: numbers of steps in, a verdict out.

Contract. Every rank watches the same numbers (the loss summed over ranks, whether the update was applied, the global
gradient norm) and comes to the same verdict at the same step. A skipped update alone is no trouble: that is the
lowest rung of the ladder, and DeepSpeed takes it. Trouble is

- ``overflow``: fp16 gradients overflow ``overflow_patience`` times in a row, or at the smallest loss scale;
- ``not-finite``: loss or gradient is NaN or inf ``non_finite_patience`` times in a row where no loss scale can help;
- ``parameters``: a weight itself is NaN or inf;
- ``spike``: the loss jumped (robust z, health/rules.py) and is not back after ``spike_patience`` steps.

Known weakness: in the first 64 steps nothing is known of the loss, so no spike is seen there.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from minimind.config.health import HealthConfig
from minimind.config.recovery import RecoveryConfig
from minimind.training.health.rules import spike

if TYPE_CHECKING:
    from minimind.training.values import StepMetrics

LEAD = 2  # steps before a spike's first from which weights are trusted: its cause may be the update before it
BACK = 8  # losses whose median tells whether a spike has healed


@dataclass(frozen=True)
class Trouble:
    """``step``: where it was proven; ``onset``: the first step that showed it (both 1-based)."""

    code: str
    step: int
    onset: int
    message: str

    @property
    def last_good(self) -> int:
        """The latest step whose weights are trusted."""
        return self.onset - (LEAD if self.code == "spike" else 1)


class Watch:
    """Follows the steps of one run. ``dynamic_scale``: fp16 whose loss scale adapts.

    ``trouble`` is the first that was proven, and stays: what is observed after it changes nothing. Every ``observe``
    returns it.
    """

    def __init__(self, config: RecoveryConfig, health: HealthConfig, dynamic_scale: bool) -> None:
        self.config, self.health, self.dynamic_scale = config, health, dynamic_scale
        self.trouble: Trouble | None = None
        self.losses: deque[float] = deque(maxlen=health.spike_steps)  # of healthy steps
        self.after: deque[float] = deque(maxlen=BACK)  # since the spike
        self.skips = 0
        self.onset: int | None = None  # first of the skipped steps in a row
        self.spike_onset: int | None = None
        self.sound = 0  # the last step after which all parameters were finite

    def observe(self, metrics: StepMetrics) -> Trouble | None:
        """Take the next step's numbers."""
        self.trouble = self.trouble or self._step(metrics)
        return self.trouble

    def observe_exhausted_scale(self, step: int) -> Trouble:
        """An overflow at the smallest loss scale: waiting can't help."""
        onset = self.onset or step
        message = f"gradients overflow at the smallest loss scale since step {onset}"
        self.trouble = self.trouble or Trouble("overflow", step, onset, message)
        return self.trouble

    def observe_parameters(self, step: int, broken: list[str]) -> Trouble | None:
        """``broken``: names of the parameters that are not finite after ``step``."""
        if not broken:
            self.sound = step
            return self.trouble
        names = ", ".join(broken[:3]) + (f" and {len(broken) - 3} more" if len(broken) > 3 else "")
        self.trouble = self.trouble or Trouble("parameters", step, self.sound + 1, f"not finite: {names}")
        return self.trouble

    def observe_end(self, step: int) -> Trouble | None:
        """The run ends after ``step``: a spike that is still open is trouble, if enough was seen of it."""
        if self.spike_onset is not None and len(self.after) == BACK:
            self.trouble = self.trouble or self._not_healed(step)
        return self.trouble

    def open_onset(self) -> int | None:
        """The first step of an illness that is not decided yet: checkpoints from there on are not trusted."""
        return self.spike_onset

    def _step(self, metrics: StepMetrics) -> Trouble | None:
        """The trouble that this step proves."""
        if not metrics.applied or not math.isfinite(metrics.loss):
            return self._skipped(metrics)
        self.skips, self.onset = 0, None
        return self._spike(metrics)

    def _skipped(self, metrics: StepMetrics) -> Trouble | None:
        self.skips += 1
        self.onset = self.onset or metrics.step
        may_heal = self.dynamic_scale and math.isfinite(metrics.loss)
        patience = self.config.overflow_patience if may_heal else self.config.non_finite_patience
        if self.skips < patience:
            return None
        code = "not-finite" if metrics.loss_scale is None or not math.isfinite(metrics.loss) else "overflow"
        what = "the loss is" if not math.isfinite(metrics.loss) else "the gradients are"
        message = f"{what} not finite for {self.skips} steps in a row, since step {self.onset}"
        return Trouble(code, metrics.step, self.onset, message)

    def _spike(self, metrics: StepMetrics) -> Trouble | None:
        if self.spike_onset is None:
            if spike([*self.losses, metrics.loss], self.health) is None:
                self.losses.append(metrics.loss)
                return None
            self.spike_onset = metrics.step
        self.after.append(metrics.loss)
        if len(self.after) == BACK and median(self.after) < self._level():
            self.spike_onset = None
            self.after.clear()
            return None
        late = metrics.step - self.spike_onset + 1 >= self.config.spike_patience
        return self._not_healed(metrics.step) if late else None

    def _not_healed(self, step: int) -> Trouble:
        assert self.spike_onset is not None
        message = (
            f"loss {median(self.after):.3f} has not come back from the spike at step {self.spike_onset} "
            f"(before it: {median(self.losses):.3f})"
        )
        return Trouble("spike", step, self.spike_onset, message)

    def _level(self) -> float:
        """Below this a spike counts as healed."""
        return median(self.losses) * (1 + self.health.spike_rise)

    def state(self) -> dict[str, Any]:
        """Plain values for the checkpoint."""
        return {
            "losses": list(self.losses),
            "after": list(self.after),
            "skips": self.skips,
            "sound": self.sound,
            "onset": self.onset,
            "spike_onset": self.spike_onset,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Go on from ``state()``; nothing (an older checkpoint) leaves it fresh."""
        self.losses.extend(state.get("losses", ()))
        self.after.extend(state.get("after", ()))
        self.skips, self.sound = state.get("skips", 0), state.get("sound", 0)
        self.onset, self.spike_onset = state.get("onset"), state.get("spike_onset")
