"""A record's value -> one document: pretraining text or a list of chat turns, or ``BadRecord`` with the reason.

Contract: the rules are those of the table in docs/data.md, one test a row. Nothing is guessed from a value of
the wrong type (null never becomes the word "None"), and nothing is dropped without being counted:
``Conversation.trimmed`` says how many turns without an answer were cut from the end.

Formats are told apart in formats.py, their fields read in exchanges.py and turns.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, get_args

from minimind.base.defaults import Kind as Kind
from minimind.base.defaults import Reasoning
from minimind.base.errors import UserError
from minimind.data.read.sources import TEXT_FORMATS, is_turns
from minimind.data.records.exchanges import Fielded, turns_in
from minimind.data.records.formats import LONE, Columns, format_of, is_lone_turn, refuse_comparisons, refuse_labels
from minimind.data.records.turns import MEDIA, Notes, refuse_media, turn_list
from minimind.data.records.unread import unread_of
from minimind.data.records.values import BadRecord as BadRecord
from minimind.data.records.values import keys_of, name_of, visible
from minimind.text.chat import Turn, is_answer

RecordFormat = Literal["text", "conversations", "messages", "sharegpt", "alpaca", "qa", "turns"]
FORMATS: tuple[str, ...] = (*get_args(RecordFormat), *TEXT_FORMATS)
FIELDS = ("text", "prompt", "input", "answer", "system", "turns")


@dataclass(frozen=True)
class Fields:
    """How to read records: a named format (None: by content), names of fields, ``{"prompt": "question"}``, and whether
    reasoning is trained or dropped.

    Raises ``UserError`` for an unknown format or field.
    """

    format: str | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    reasoning: Reasoning = "train"

    def __post_init__(self) -> None:
        if self.format is not None and self.format not in FORMATS:
            raise UserError(f"--format {self.format}: unknown; one of {', '.join(FORMATS)}")
        for name in self.names:
            if name not in FIELDS:
                raise UserError(f"--map {name}=...: unknown field; one of {', '.join(FIELDS)}")
        if "answer" in self.names and "prompt" not in self.names:
            raise UserError("--map answer=... needs prompt=... as well")

    @classmethod
    def parse(
        cls, format: str | None, text_field: str | None, mapping: str | None, reasoning: Reasoning = "train"
    ) -> Fields:
        """From the command line: ``--format``, ``--text-field body``, ``--map prompt=question,answer=solution``."""
        pairs = [part.partition("=") for part in mapping.split(",")] if mapping else []
        for name, equals, value in pairs:
            if not (name.strip() and equals and value.strip()):
                raise UserError(f"--map {mapping}: write it as prompt=question,answer=solution")
        names = {name.strip(): value.strip() for name, _, value in pairs}
        return cls(format, {**names, "text": text_field} if text_field else names, reasoning)

    @property
    def columns(self) -> Columns:
        """The columns of a table that may be read."""
        return Columns(self.names.values())


class Conversation(NamedTuple):
    """Turns that end with an answer, and how many turns after the last answer were cut off.

    ``unread``: fields that say something and were not read; ``dropped``: answers whose reasoning was left out.
    """

    turns: list[Turn]
    trimmed: int = 0
    unread: tuple[str, ...] = ()
    dropped: int = 0


def to_document(value: object, kind: Kind, fields: Fields) -> str | Conversation:
    """The document that a record holds. Raises ``BadRecord``."""
    found = detect_format(value, kind, fields)
    if kind == "pretrain":
        if found != "text":
            raise BadRecord(
                f"a {found} record, but pretraining needs text; train on it with launch/sft.py, or name --text-field"
            )
        return text_of(value, fields.names.get("text"))
    if found == "text":
        raise BadRecord(
            "text without turns, but SFT needs conversations; train on it with launch/pretrain.py, or name --map"
        )
    notes = Notes(fields.reasoning)
    return _checked(_turns_of(value, found, fields, notes), notes)


def unread_fields(value: object, document: str | Conversation, fields: Fields) -> Iterable[str]:
    """The fields of a record that say something and are not in its document."""
    if isinstance(document, Conversation):
        return document.unread
    return unread_of(value, (_text_key(value, fields.names.get("text")),)) if isinstance(value, dict) else ()


def detect_format(value: object, kind: Kind | None, fields: Fields) -> str:
    """The record's format (``text``, ``conversations``, ...). ``kind`` breaks the tie where a record holds both."""
    if fields.format is not None:
        return "text" if fields.format in TEXT_FORMATS else fields.format
    if fields.names:
        return "qa" if "answer" in fields.names else "conversations" if "turns" in fields.names else "text"
    if isinstance(value, str):
        return "text"
    if isinstance(value, list):
        if is_turns(value):
            return "turns"
        raise BadRecord("a list, but not of turns (objects with a role and a content)")
    if not isinstance(value, dict):
        raise BadRecord(f"{name_of(value)}, not an object")
    found = "text" if kind == "pretrain" and "text" in value else format_of(value)
    if found == "text":
        if is_lone_turn(value):
            raise BadRecord(LONE)
        refuse_media(value, MEDIA[:3])
    return found


def text_of(value: object, name: str | None = None) -> str:
    """The pretraining text of a record. Raises ``BadRecord`` for anything but text with a visible character."""
    if isinstance(value, dict):
        key = _text_key(value, name)
        if key not in value:
            raise BadRecord(f'no field "{key}"; it has: {keys_of(value)}')
        return visible(value[key], f'"{key}"')
    if name is not None:
        raise BadRecord(f'{name_of(value)}, so it has no field "{name}"')
    return visible(value, "the record")


def _text_key(value: Mapping[str, object], name: str | None) -> str:
    return name or ("text" if "text" in value else "content")


def _turns_of(value: object, found: str, fields: Fields, notes: Notes) -> list[Turn]:
    if found == "turns":
        return turn_list(value, notes)
    if not isinstance(value, dict):
        raise BadRecord(f"{name_of(value)}, not an object, so it is no {found} record")
    if fields.format is not None:
        refuse_comparisons(value)  # else `detect` has
    if not fields.names:
        refuse_labels(value)
    refuse_media(value)
    record = Fielded(value)
    turns = turns_in(record, found, fields.names, notes)
    notes.unread.update(unread_of(record, record.read))
    return turns


def _checked(turns: list[Turn], notes: Notes) -> Conversation:
    """The rules about the order of turns; see docs/data.md."""
    answers = [i for i, turn in enumerate(turns) if is_answer(turn)]
    if not answers:
        raise BadRecord(f"{_missing(turns)}: nothing to learn")
    for before, after in itertools.pairwise(answers):
        if after == before + 1:
            raise BadRecord(f"two answers in a row (turns {before + 1} and {after + 1})")
    if not any(turn.role == "user" for turn in turns):
        raise BadRecord("an answer without a question: no user turn")
    kept = turns[: answers[-1] + 1]
    return Conversation(kept, len(turns) - len(kept), tuple(sorted(notes.unread)), notes.dropped)


def _missing(turns: list[Turn]) -> str:
    if all(turn.role == "system" for turn in turns):
        return "only system turns"
    excluded = any(turn.role == "assistant" for turn in turns)
    return "no assistant turn that is to be trained" if excluded else "no assistant turn"
