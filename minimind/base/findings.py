"""A finding: one health or configuration verdict, with the numbers behind it and one piece of advice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Finding:
    """One verdict.

    ``code`` is a stable short name (``loss-scale-low``), ``message`` says what was seen, ``advice`` what to do,
    ``step`` the optimizer step it was seen at (None: before the run), ``values`` the numbers that triggered it.
    """

    code: str
    message: str
    advice: str
    step: int | None = None
    values: Mapping[str, float] = field(default_factory=dict)
