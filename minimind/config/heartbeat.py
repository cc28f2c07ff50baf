"""``HeartbeatConfig``, the ``heartbeat:`` section of the YAML: after how long a silent host counts as lost."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Seconds = Annotated[float, Field(ge=5, le=86400)]


class HeartbeatConfig(BaseModel):
    """Limits of training/process/heart and meeting.py. ``heartbeat: off`` in the YAML is ``enabled: false``.

    The default leaves ten seconds for ending, so that within a minute all hosts have ended.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    enabled: bool = True
    limit: Seconds = 50.0  # without an answer, or stopped
    start_limit: Seconds = 50.0  # for all hosts to start, from the moment that one has
