"""The learning rate as a pure function of the optimizer step.

Contract: ``schedule.factor(n)`` is the share of the peak learning rate used by the n-th *applied* optimizer step,
n counted from 0. Warmup rises linearly and reaches exactly 1.0 at the last warmup step, so no step ever runs at
learning rate 0 and none runs above the peak (DeepSpeed's own WarmupCosineLR spends its first two steps at 0). The last
step runs at exactly ``min_lr_ratio``. Skipped steps do not advance the schedule.
Weakness: with loss-scale skips the run ends before the schedule does, by as many steps as were skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from minimind.config.schedules import SHAPES


@dataclass(frozen=True)
class Schedule:
    """Linear warmup over ``warmup_steps``, then ``kind`` until ``total_steps``, ending at ``min_lr_ratio``.

    ``kind``: a key of ``SHAPES`` in config/schedules.py.
    """

    kind: str
    total_steps: int
    warmup_steps: int
    min_lr_ratio: float

    def factor(self, step: int) -> float:
        """Share of the peak learning rate for applied step ``step`` (0-based), in [0, 1]."""
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        # The peak is the last warmup step (or step 0 without warmup); the end is the run's last step.
        peak = max(self.warmup_steps - 1, 0)
        span = max(self.total_steps - 1 - peak, 1)
        progress = min((step - peak) / span, 1.0)
        return self.min_lr_ratio + (1.0 - self.min_lr_ratio) * SHAPES[self.kind](progress)


class ScheduleApplier:
    """Gives each parameter group its own peak times the schedule's factor; DeepSpeed steps it after an applied step.

    DeepSpeed calls ``step()`` only when the update was applied (engine.py ``_take_model_step``), which is what makes
    the schedule a function of applied steps. Its state is one number: peaks always come from the configuration, so
    a resumed run with another learning rate uses the new one.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, factor: Callable[[int], float]) -> None:
        self.optimizer = optimizer
        self.factor = factor
        self.peaks = [group["lr"] for group in optimizer.param_groups]
        self.applied_steps = 0
        self._set()

    def _set(self) -> None:
        share = self.factor(self.applied_steps)
        for group, peak in zip(self.optimizer.param_groups, self.peaks, strict=True):
            group["lr"] = peak * share

    def step(self) -> None:
        """Advance by one applied optimizer step."""
        self.applied_steps += 1
        self._set()

    def get_last_lr(self) -> list[float]:
        """The learning rate of each parameter group for the coming step."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        return {"applied_steps": self.applied_steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.applied_steps = int(state["applied_steps"])
        self._set()
