"""Which peak learning rates are usual: one answer for a run's finding before it starts and for a sweep's report.

The bands are a prior, not a result; their ends are thresholds of ``HealthConfig`` and can be set in the YAML.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from minimind.base.defaults import MUON_LEARNING_RATES
from minimind.config.deepspeed.optimizers import learning_rate
from minimind.config.health import HealthConfig

# Parameters, where the bands meet
TINY, SMALL, LARGE = 10_000_000, 200_000_000, 1_000_000_000
_ADAM = {"adam": "Adam", "adamw": "AdamW", "adamw8bit": "AdamW8bit"}


@dataclass(frozen=True)
class Band:
    """The rates that models of this size are usually trained with, and where that comes from."""

    low: float
    high: float
    source: str

    def __str__(self) -> str:
        return f"{self.low:.2g} to {self.high:.2g} ({self.source})"

    def holds(self, rate: float) -> bool:
        """Whether ``rate`` is in it; the ends are."""
        return self.low * (1 - 1e-9) <= rate <= self.high * (1 + 1e-9)


def usual_band(
    num_parameters: int, optimizer_type: str, kind: str = "pretrain", thresholds: HealthConfig | None = None
) -> Band:
    """The usual peak rate for a model of ``num_parameters``; for Muon that of its AdamW part."""
    config = thresholds or HealthConfig()
    low, high = _adam_band(num_parameters, config)
    source = f"AdamW at {num_parameters / 1e6:.3g}M parameters"
    if optimizer_type.lower() == "lion":  # three to ten times below AdamW's
        low, high, source = (low / 10, high / 3, f"{source}; for Lion 3 to 10 times lower, arXiv 2302.06675 section 5")
    elif optimizer_type.lower() == "muon":
        source += "; Muon's own muon_lr starts from 0.02, kellerjordan.github.io/posts/muon"
    return _for_kind(low, high, source, kind)


def judged_band(kind: str, optimizer_type: str, num_parameters: int, thresholds: HealthConfig) -> Band | None:
    """The band that the rate of the matrices must be in (Muon: ``muon_lr``); None: there is none known."""
    if optimizer_type.lower() == "muon":
        return _for_kind(*thresholds.lr_band_muon, "Muon's own rate", kind)
    if optimizer_type.lower() not in {*_ADAM, "lion"}:
        return None
    return usual_band(num_parameters, optimizer_type, kind, thresholds)


def start_rate(kind: str, optimizer_type: str, band: Band) -> float:
    """A rate to begin with: the default for this optimizer if it is in the band, else the band's middle."""
    name = optimizer_type.lower()
    muon = name == "muon"
    default = MUON_LEARNING_RATES[kind] if muon else learning_rate(kind, _ADAM.get(name, "Lion"))
    if band.holds(default):
        return default
    middle = math.sqrt(band.low * band.high)
    rounded = (float(f"{middle:.{digits}g}") for digits in range(1, 17))
    return next((rate for rate in rounded if band.holds(rate)), middle)


def _for_kind(low: float, high: float, source: str, kind: str) -> Band:
    """Fine-tuning takes a tenth of the low end to a fifth of the high end."""
    return Band(low / 10, high / 5, f"{source}, fine-tuning") if kind == "sft" else Band(low, high, source)


def _adam_band(num_parameters: int, config: HealthConfig) -> tuple[float, float]:
    if num_parameters < TINY:
        return config.lr_band_tiny
    if num_parameters < SMALL:
        return config.lr_band_small
    return config.lr_band if num_parameters < LARGE else config.lr_band_large
