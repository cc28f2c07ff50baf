"""How files are read, as one value for commands, YAML and Python.

Contract. Names are those of the command line (``--text-field``) and of ``RunConfig``. A value that exists is valid:
what can't be meant raises UserError when it is made. Importing this costs nothing, so that the command line may.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, get_args

from minimind.base.defaults import MAX_BAD_RATIO, Reasoning
from minimind.base.errors import UserError

if TYPE_CHECKING:
    from minimind.config.run import RunConfig
    from minimind.data.records.conversations import Fields

LIMITS = ("skip_bad", "max_bad_ratio")  # what becomes of bad records
READING = ("format", "text_field", "map", "encoding", "allow_special", "reasoning")  # what a record is


@dataclass(frozen=True)
class ReadingOptions:
    """How records are found and understood, and how many bad ones are borne. The defaults go by content, strictly.

    ``format``: a name of docs/data.md. ``text_field``: the field with the text. ``map``: ``prompt=question,answer=a``.
    ``encoding``: of the bytes. ``allow_special``: texts were written with begin and end marks. ``reasoning``: of
    answers that bring theirs, "train" or "drop". ``skip_bad``: bad records are left out, up to ``max_bad_ratio`` of a
    source. Raises UserError for an unknown format, field or treatment of reasoning.
    """

    format: str | None = None
    text_field: str | None = None
    map: str | None = None
    encoding: str | None = None
    allow_special: bool = False
    reasoning: Reasoning = "train"
    skip_bad: bool = False
    max_bad_ratio: float = MAX_BAD_RATIO

    def __post_init__(self) -> None:
        if self.reasoning not in get_args(Reasoning):
            raise UserError(f"--reasoning {self.reasoning}: not one of {', '.join(get_args(Reasoning))}")
        if {self.format, self.text_field, self.map} != {None}:
            _ = self.fields  # raises

    @classmethod
    def of(cls, config: RunConfig) -> ReadingOptions:
        """Those of a run."""
        return cls(**{name: getattr(config, name) for name in (*READING, *LIMITS)})

    @cached_property
    def fields(self) -> Fields:
        """``format``, ``text_field``, ``map`` and ``reasoning``, understood."""
        from minimind.data.records.conversations import Fields

        return Fields.parse(self.format, self.text_field, self.map, self.reasoning)

    def words(self, names: tuple[str, ...] = READING) -> list[str]:
        """The options of a command that reads as this does, without those that have their default."""
        words: list[str] = []
        for name in names:
            value = getattr(self, name)
            if value != getattr(ReadingOptions, name):
                words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
        return words


BY_CONTENT = ReadingOptions()
