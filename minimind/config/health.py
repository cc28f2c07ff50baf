"""``HealthConfig``: every threshold of the health rules, for the ``health:`` section of the YAML.

Defaults come from practice with MiniMind under fp16 where there is any (loss scale, gradient norms, learning rate);
the others are set so that a healthy run is silent, and are justified beside the rule in training/health/rules.py.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

Steps = Annotated[int, Field(gt=0)]
Positive = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(gt=0, lt=1)]
Range = tuple[Positive, Positive]


class HealthConfig(BaseModel):
    """Thresholds; a window is counted in optimizer steps unless its name says otherwise."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    enabled: bool = True
    heal_steps: Steps = 100  # so long without the symptom before the same code may be reported again
    start_steps: Steps = 100  # overflows and large gradients are normal up to here

    # fp16
    loss_scale_low: Positive = 1000.0
    loss_scale_steps: Steps = 200
    overflow_note_skips: Steps = 4  # so many skips at the start: say that this is normal
    overflow_rate: Share = 0.05
    overflow_steps: Steps = 200

    # Gradient norm before clipping
    grad_norm_band: Range = (0.5, 2.0)
    grad_norm_band_steps: Steps = 500
    grad_norm_high: Positive = 10.0
    grad_norm_high_steps: Steps = 32

    # Loss
    spike_steps: Annotated[int, Field(ge=32)] = 128
    spike_z: Positive = 8.0
    spike_rise: Positive = 0.1  # and at least this much above the median, relative
    plateau_steps: Annotated[int, Field(ge=64)] = 500
    plateau_gain: Positive = 0.005  # relative fall from one quarter of the run to the next that counts as learning
    oscillation_steps: Annotated[int, Field(ge=64)] = 128
    oscillation_amplitude: Positive = 0.05  # relative to the loss
    oscillation_reversals: Annotated[int, Field(ge=3)] = 4
    overfit_evaluations: Annotated[int, Field(ge=2)] = 3  # rises in a row
    overfit_rise: Positive = 0.01  # relative to the lowest held-out loss

    # The machine
    throughput_drop: Share = 0.5  # below this share of the pace before
    throughput_steps: Steps = 100
    throughput_seconds: Positive = 5.0  # shorter is jitter
    memory_growth: Positive = 0.2  # of anonymous host memory, relative
    memory_growth_bytes: Steps = 256 * 2**20
    memory_steps: Annotated[int, Field(ge=64)] = 500
    data_wait: Share = 0.2  # share of the time that steps wait for their data
    data_wait_steps: Steps = 200
    data_wait_seconds: Positive = 2.0

    # Usual peak learning rates, pretraining; training/lr_bands.py says when which holds, and fine-tuning's.
    # With AdamW below 10M parameters: the best rate grows as the width shrinks (muP, arXiv 2203.03466).
    lr_band_tiny: Range = (1e-4, 1e-2)
    # Below 200M: at 26M 2e-3 and 3e-3 do no worse than 1e-3 (docs/LOG.md); SmolLM-135M trained at 3e-3.
    lr_band_small: Range = (1e-4, 3e-3)
    lr_band: Range = (1e-4, 1e-3)  # below 1B
    lr_band_large: Range = (3e-5, 3e-4)  # 1B and more (GPT-3, arXiv 2005.14165 table 2.1; Llama)
    lr_band_muon: Range = (2e-3, 5e-2)  # of the matrices, around Muon's own 0.02, whatever the size

    @model_validator(mode="after")
    def _bands(self) -> HealthConfig:
        bands = {name: value for name, value in self if name == "grad_norm_band" or name.startswith("lr_band")}
        wrong = [name for name, (low, high) in bands.items() if low >= high]
        if wrong:
            raise ValueError(f"{', '.join(wrong)}: the low end must be below the high end")
        return self
