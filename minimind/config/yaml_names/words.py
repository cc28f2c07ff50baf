"""A YAML's values while other people's names in it are replaced."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from minimind.base.findings import Finding


@dataclass
class Words:
    """A YAML's values on their way, the place of each, and what was found."""

    values: dict[str, Any]
    places: dict[tuple[str, ...], str]
    problems: list[str]
    findings: list[Finding] = field(default_factory=list)
    overriding: bool = False  # a second name for one value is the command line's, which wins

    def place(self, key: str) -> str:
        """Where ``key`` was given."""
        return self.places.get((key,), "the YAML")

    def problem(self, key: str, message: str) -> None:
        """Record ``place: key: message``."""
        self.problems.append(f"{self.place(key)}: {key}: {message}")

    def move(self, key: str, name: str, value: Any) -> None:
        """``value``, given as ``key``, is ``name``'s."""
        del self.values[key]
        self.take(key, name, value)

    def take(self, key: str, name: str, value: Any) -> None:
        """Set ``name`` to what ``key`` says; twice is a problem unless both are equal."""
        if not self.overriding and name in self.values and self.values[name] != value:
            self.problem(key, f"is {name}, which is set in {self.place(name)} too: keep one")
            return
        self.values[name] = value
        self.places[(name,)] = self.place(key)
