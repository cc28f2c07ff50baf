"""Where each setting of a run was given: the line of a YAML, the ``--set`` text or the option."""

from __future__ import annotations

from typing import Any

from minimind.base.findings import Finding


class Places(dict[tuple[str, ...], str]):
    """The place of each key. Two runs with equal settings are equal wherever those were given."""

    __hash__ = None

    def __init__(self, *places: Any) -> None:
        super().__init__(*places)
        self.remarks: list[Finding] = []  # what of a YAML has no effect

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Places)

    def place(self, name: str) -> str:
        """``run.yaml:3``, ``--set learning_rate=3e-4``, ``--max-steps``; "the YAML" for a run made in Python."""
        return self.get((name,), "the YAML")

    def origin(self, name: str) -> str:
        """The same as the end of a sentence: "in run.yaml:3", "by --max-steps"."""
        return f"{'by' if self.commanded(name) else 'in'} {self.place(name)}"

    def commanded(self, name: str) -> bool:
        """Whether it was given on the command line."""
        return self.place(name).startswith("--")
