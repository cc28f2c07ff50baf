"""The learning-rate schedules by name: each a pure function, after the warmup, from progress to a share of the peak.

Contract: progress goes from 0.0 (the peak) to 1.0 (the last step); the share from 1.0 to 0.0, which training/engine/
schedule.py stretches to ``min_lr_ratio``. A further schedule is one entry here.
"""

from __future__ import annotations

import math
from collections.abc import Callable

WSD_DECAY_SHARE = 0.2  # the last fifth decays; https://arxiv.org/abs/2405.18392 compares shares and shapes
COOLDOWN_SHARE = 0.7  # the last seven tenths fall linearly; nanochat's warmdown takes 0.65 of a run


def _wsd(progress: float) -> float:
    """Stable, then 1 - sqrt over the last 20% (arXiv 2405.18392, figure 6)."""
    decay = (progress - (1.0 - WSD_DECAY_SHARE)) / WSD_DECAY_SHARE
    return 1.0 if decay <= 0 else 1.0 - math.sqrt(min(decay, 1.0))


SHAPES: dict[str, Callable[[float], float]] = {
    "cosine": lambda progress: 0.5 * (1.0 + math.cos(math.pi * progress)),
    "wsd": _wsd,
    "cooldown": lambda progress: min(1.0, (1.0 - progress) / COOLDOWN_SHARE),
    "linear": lambda progress: 1.0 - progress,
    "constant": lambda progress: 1.0,
}
