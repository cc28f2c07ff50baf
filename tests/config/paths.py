"""The dotted paths of nested sections."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def leaves(section: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The dotted path and value of everything that is no section."""
    for key, value in section.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
