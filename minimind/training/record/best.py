"""The best held-out loss of a run, and how long it has not improved: the one place that decides what "best" is. Pure.

Contract. Only a finite loss can be the best. One that is NaN or inf says nothing of what was learned, so it neither
improves nor counts towards an early stop; health.py reports it, and broken weights behind it are trouble (trouble.py).
Equal is no gain. Every rank sees the same losses and comes to the same verdict.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass
class Best:
    """``loss``: nats per token, and its ``step``; None before the first. ``without_gain``: finite evaluations since."""

    loss: float | None = None
    step: int | None = None
    without_gain: int = 0

    def observe(self, step: int, loss: float) -> bool:
        """Take the held-out ``loss`` after ``step``; whether it is the best so far."""
        if not math.isfinite(loss):
            return False
        if self.loss is not None and loss >= self.loss:
            self.without_gain += 1
            return False
        self.loss, self.step, self.without_gain = loss, step, 0
        return True

    def state(self) -> dict[str, Any]:
        """Plain values for the checkpoint."""
        return asdict(self)

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Best:
        """Go on from ``state()``. A checkpoint of an earlier version may call a NaN the best: that is forgotten."""
        best = cls(**state)
        return best if best.loss is not None and math.isfinite(best.loss) else cls()
