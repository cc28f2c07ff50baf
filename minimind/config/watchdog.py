"""``WatchdogConfig``, the ``watchdog:`` section of the YAML: after how long without progress a run counts as hung."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Seconds = Annotated[float, Field(gt=0)]


class WatchdogConfig(BaseModel):
    """Limits of training/watchdog.py. ``watchdog: off`` in the YAML is ``enabled: false``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    enabled: bool = True
    limit: Seconds | None = None  # None: from the run's own pace, at least ten minutes
    start_limit: Seconds = 3600.0  # what has not been done before: building, loading, the first compiled step
