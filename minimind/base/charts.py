"""What every drawing of a run takes: colours, a running mean, and curves in so many points and no more.

Contract. `Buckets` keep each bucket's mean, lowest and highest value, so that a one-step spike in a million steps stays
visible. Numbers that are missing, not finite, or beyond what a chart's arithmetic holds are gaps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeGuard

COLOURS = ("#2f7ed8", "#e4572e", "#2a9d5c", "#9b59b6", "#d4a017", "#17a2b8", "#c2185b", "#6d4c41")


def drawable(y: float | None) -> TypeGuard[float]:
    """Whether a chart can show it: beyond these the axes' own arithmetic overflows."""
    return y is not None and math.isfinite(y) and (y == 0 or 1e-30 <= abs(y) <= 1e30)


@dataclass(frozen=True)
class Buckets:
    """A curve in buckets: the mean, lowest and highest value of each, None for one that holds none."""

    mean: list[float | None]
    low: list[float | None]
    high: list[float | None]

    @classmethod
    def of(cls, ys: Sequence[float | None], size: int) -> Buckets:
        """``ys`` in buckets of ``size``, the last one perhaps smaller."""
        parts = [[y for y in ys[i : i + size] if drawable(y)] for i in range(0, len(ys), size)]
        return cls(
            [sum(part) / len(part) if part else None for part in parts],
            [min(part, default=None) for part in parts],
            [max(part, default=None) for part in parts],
        )


def running_mean(ys: Sequence[float | None], window: int) -> list[float | None]:
    """Exponential mean over about `window` values, corrected for its start; gaps are passed over."""
    decay, total, weight = 1 - 1 / max(window, 1), 0.0, 0.0
    result: list[float | None] = []
    for y in ys:
        if drawable(y):
            total, weight = decay * total + y, decay * weight + 1
        result.append(total / weight if weight else None)
    return result
