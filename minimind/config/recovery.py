"""``RecoveryConfig``, the ``recovery:`` section of the YAML: when a run is in trouble, how often it treats itself."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from minimind.base.defaults import FIXED_LOSS_SCALE

Steps = Annotated[int, Field(gt=0)]


class RecoveryConfig(BaseModel):
    """Thresholds of the ladder in training/recovery.py; steps are optimizer steps."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    enabled: bool = True
    max_rollbacks: Annotated[int, Field(ge=0)] = 3  # in the whole run

    # Trouble
    overflow_patience: Steps = 64  # skips in a row; from scale 2^16 with hysteresis 2, seventeen reach scale 1
    non_finite_patience: Steps = 8  # the same where no dynamic loss scale can heal it
    spike_patience: Steps = 64  # so long after a spike the loss must be back
    parameter_check_steps: Steps = 100  # all parameters are checked for NaN and inf

    # Treatment
    lr_factor: Annotated[float, Field(gt=0, le=1)] = 0.5
    rewarmup_steps: Steps = 50
    loss_scale: Annotated[float, Field(gt=0)] = FIXED_LOSS_SCALE
    heal_steps: Steps = 100  # trouble again within so many steps is the same trouble: the next rung
