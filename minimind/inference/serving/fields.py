"""What the parts of a request have in common: no unknown fields, no conversions, bounded objects, Unicode text."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict

from minimind.inference.serving.errors import printable

MAX_FIELDS = 64  # of an object


def few_fields(values: Any) -> Any:
    """Each unknown field becomes an error that takes time."""
    if isinstance(values, dict) and len(values) > MAX_FIELDS:
        raise ValueError(f"has {len(values):,} fields, {MAX_FIELDS} at most are read")
    return values


def unicode_text(text: str) -> str:
    """ValueError for half a character."""
    if printable(text) != text:
        raise ValueError("holds a lone surrogate, half of a character: not Unicode text")
    return text


Text = Annotated[str, AfterValidator(unicode_text)]


class Strict(BaseModel):
    """No unknown fields and no conversions ("1" is not 1)."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
