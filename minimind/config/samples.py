"""``SamplesConfig``, the ``samples:`` section of the YAML: which prompts are answered at each evaluation, and how."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from minimind.base.defaults import SAMPLES_TEMPERATURE, SAMPLES_TOP_P

MOST_PROMPTS, MOST_TOKENS = 32, 1024  # all ranks wait while they are answered


def _as_prompts(value: Any) -> Any:
    """One prompt is a list of one."""
    return [value] if isinstance(value, str) else value


def as_samples(value: Any) -> Any:
    """A prompt or a list of them for ``{prompts: ...}``; null for none."""
    if value is None:
        return {}
    return value if isinstance(value, (Mapping, BaseModel)) else {"prompts": value}


class SamplesConfig(BaseModel):
    """``prompts``: none are answered by default. In SFT a prompt is a question, else a text to go on from.

    ``temperature`` 0 takes the likeliest token; above it, ``seed`` gives the same numbers after each evaluation.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    prompts: Annotated[
        list[Annotated[str, Field(pattern=r"\S", max_length=10_000)]],
        BeforeValidator(_as_prompts),
        Field(max_length=MOST_PROMPTS),
    ] = []
    max_new_tokens: Annotated[int, Field(gt=0, le=MOST_TOKENS)] = 64
    temperature: Annotated[float, Field(ge=0)] = SAMPLES_TEMPERATURE
    top_p: Annotated[float, Field(gt=0, le=1)] = SAMPLES_TOP_P
    seed: Annotated[int, Field(ge=0)] = 0
