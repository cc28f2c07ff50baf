"""A record's value -> one document: pretraining text or a list of chat turns, or ``BadRecord`` with the reason.

Contract: the rules are those of the table in docs/data.md, one test a row. Nothing is guessed from a value of
the wrong type (null never becomes the word "None"), and nothing is dropped without being counted:
``Conversation.trimmed`` says how many turns without an answer were cut from the end.

Known weakness: formats are recognised by their keys. A file whose keys mean something else needs ``--format``
or ``--map``.
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
from minimind.data.records.turns import (
    MEDIA,
    REASONING,
    ROLE_NAMES,
    TOOLS,
    Notes,
    reasoned_turn,
    refuse_media,
    system_turns,
    turn_list,
)
from minimind.data.records.unread import unread_of
from minimind.data.records.values import BadRecord as BadRecord
from minimind.data.records.values import clean, keys_of, name_of, parsed, says_nothing, string, visible
from minimind.text.chat import Role, Turn, is_answer

RecordFormat = Literal["text", "conversations", "messages", "sharegpt", "alpaca", "qa", "turns"]
FORMATS: tuple[str, ...] = (*get_args(RecordFormat), *TEXT_FORMATS)
FIELDS = ("text", "prompt", "input", "answer", "system", "turns")

_TURN_KEYS = ("conversations", "messages", "conversation")
_QUESTIONS, _ANSWERS = ("question", "prompt", "query"), ("answer", "response", "completion", "output", "solution")
_PLAIN_PAIRS = tuple((question, answer) for question in _QUESTIONS for answer in _ANSWERS)
_PAIRS = (
    *_PLAIN_PAIRS,
    *((question, "target") for question in _QUESTIONS),
    *(("input", answer) for answer in ("target", *_ANSWERS)),  # Firefly
    ("inputs", "targets"),
)
_ALPACA_ANSWERS = ("output", "response", "answer", "completion", "solution", "target")
_EXTRAS = ("input", "context")  # stand under the question
_LABELS = ("label", "kto_tag")
_PREFERENCE = (
    "preference data (a chosen and a rejected answer), which this trainer does not learn from; "
    "for SFT on the chosen answers keep only those"
)
_KTO = "KTO data (a label says whether the answer is wanted); for SFT keep the rows with true, and leave the label out"
_LONE = "a chat turn outside a conversation; write the turns of each conversation as one list"

COLUMNS = frozenset(
    {"text", "content", "role", "from", "value", "instruction", "instances", "history", "system", "loss_mask"}
    | {*_TURN_KEYS, *_ALPACA_ANSWERS, *_EXTRAS, *_LABELS, *MEDIA, *REASONING, *TOOLS, "chosen", "rejected"}
    | {name for pair in _PAIRS for name in pair}
)
"""The fields of a record that some format reads, or refuses by name; those that begin with ``rejected_`` too."""


class Columns:
    """The columns of a table that are worth converting for these fields."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = COLUMNS | set(names)

    def __contains__(self, name: object) -> bool:
        return name in self._names or str(name).startswith("rejected_")


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
    found = "text" if kind == "pretrain" and "text" in value else _by_keys(value)
    if found == "text":
        if _is_turn(value):
            raise BadRecord(_LONE)
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


def _is_turn(value: Mapping[str, object]) -> bool:
    """Whether a record is one message, as one turn a line has it."""
    sender = value.get("role") or value.get("from")
    return isinstance(sender, str) and sender.strip().lower() in ROLE_NAMES


def _by_keys(value: Mapping[str, object]) -> str:
    _refuse_comparisons(value)
    for key in _TURN_KEYS:
        if key in value:
            turns = value[key]
            first = turns[0] if isinstance(turns, list) and turns else None
            if isinstance(first, dict) and "from" in first:
                return "sharegpt"
            return "messages" if key == "messages" else "conversations"
    plain = "text" in value or "content" in value
    answers = _ALPACA_ANSWERS[:2] if plain or _pair(value, _PLAIN_PAIRS) else _ALPACA_ANSWERS
    if "instruction" in value and any(key in value for key in (*answers, "instances")):
        return "alpaca"
    if _pair(value, _PLAIN_PAIRS if plain else _PAIRS):  # beside a text, an input is a part of some other format
        return "qa"
    if plain or _is_turn(value):
        return "text"
    raise BadRecord(f"no known format (fields: {keys_of(value)}); name --text-field, or --map prompt=...,answer=...")


def _refuse_comparisons(value: Mapping[str, object]) -> None:
    """Rows that say which answer is better: trained as SFT they would teach the worse one too."""
    if value.get("chosen") is not None and value.get("rejected") is not None:
        raise BadRecord(_PREFERENCE, "sft")
    for key in value:
        if (key == "rejected" or key.startswith("rejected_")) and not says_nothing(value[key]):
            raise BadRecord(_PREFERENCE, "sft")


def _refuse_labels(value: Mapping[str, object]) -> None:
    for key in _LABELS:
        label = value.get(key)
        if isinstance(label, bool) or (isinstance(label, str) and label.strip().lower() in ("true", "false")):
            raise BadRecord(f'"{key}": {_KTO}', "sft")


def _pair(record: Mapping[str, object], pairs: Iterable[tuple[str, str]] = _PAIRS) -> tuple[str, str] | None:
    """The names of question and answer; of several the first that are not null."""
    found = [pair for pair in pairs if pair[0] in record and pair[1] in record]
    full = [pair for pair in found if record[pair[0]] is not None and record[pair[1]] is not None]
    return next(iter(full or found), None)


def _turns_of(value: object, found: str, fields: Fields, notes: Notes) -> list[Turn]:
    if found == "turns":
        return turn_list(value, notes)
    if not isinstance(value, dict):
        raise BadRecord(f"{name_of(value)}, not an object, so it is no {found} record")
    if fields.format is not None:
        _refuse_comparisons(value)  # else `detect` has
    if not fields.names:
        _refuse_labels(value)
    refuse_media(value)
    record = _Record(value)
    turns = _by_format(record, found, fields, notes)
    notes.unread.update(unread_of(record, record.read))
    return turns


class _Record(dict[str, object]):
    """A record that notes which of its fields were read."""

    def __init__(self, value: Mapping[str, object]) -> None:
        super().__init__(value)
        self.read: set[str] = set()

    def take(self, name: str) -> object:
        """The field's value; None if there is none."""
        self.read.add(name)
        return self.get(name)


def _by_format(record: _Record, found: str, fields: Fields, notes: Notes) -> list[Turn]:
    if found == "alpaca":
        return _alpaca(record, notes)
    if found == "qa":
        return _question_answer(record, fields.names, notes)
    key = fields.names.get("turns") or next((key for key in _TURN_KEYS if key in record), _TURN_KEYS[0])
    if key not in record:
        raise BadRecord(f'no field "{key}"; it has: {keys_of(record)}')
    return [*_system(record), *turn_list(record.take(key), notes, record.take("loss_mask"))]


def _system(record: _Record, name: str = "system") -> list[Turn]:
    """A system turn from the fields beside the turns, if they say anything."""
    tools = [record[key] for key in TOOLS if not says_nothing(record.take(key))]
    return system_turns(record.take(name), next(iter(tools), None))


def _alpaca(record: _Record, notes: Notes) -> list[Turn]:
    """instruction/input/output (or response), with optional system and history; one nested instance (seed tasks)."""
    if isinstance(instances := record.get("instances"), list) and "output" not in record:
        if len(instances) != 1 or not isinstance(instances[0], dict):
            raise BadRecord(f'"instances" holds {len(instances)} items; split the record into one item each')
        record.take("instances")
        record.update(instances[0])
    answer = next((name for name in _ALPACA_ANSWERS if name in record), None)
    if answer is None:
        raise BadRecord(f'no field "output"; it has: {keys_of(record)}')
    return [*_system(record), *_history(record), *_exchange(record, "instruction", _EXTRAS, answer, notes)]


def _question_answer(record: _Record, names: Mapping[str, str], notes: Notes) -> list[Turn]:
    if "prompt" in names:
        question, answer = names["prompt"], names.get("answer", "answer")
        extras: tuple[str, ...] = (names["input"],) if "input" in names else ()
    else:
        question, answer = _pair(record) or _PAIRS[0]
        extras = tuple(name for name in _EXTRAS if name != question)
    for key in (question, answer):
        if key not in record:
            raise BadRecord(f'no field "{key}"; it has: {keys_of(record)}')
    system = _system(record, names.get("system", "system"))
    history = [] if names else _history(record)  # named fields are all that is read
    return [*system, *history, *_exchange(record, question, extras, answer, notes)]


def _exchange(record: _Record, question: str, extras: Iterable[str], answer: str, notes: Notes) -> list[Turn]:
    """A question and its answer; either may be a list of turns (TRL)."""
    return [*_asked(record, question, extras, notes), *_answered(record, answer, notes)]


def _asked(record: _Record, name: str, extras: Iterable[str], notes: Notes) -> list[Turn]:
    question = record.take(name)
    if is_turns(question):
        return turn_list(question, notes)
    parts = [visible(question, f'"{name}"')]
    for extra in extras:
        if not says_nothing(value := record.take(extra)):
            parts += [string(text, f'"{extra}"') for text in (value if isinstance(value, list) else [value])]
    return [Turn("user", clean("\n".join(parts), f'"{name}"'))]


def _answered(record: _Record, name: str, notes: Notes) -> list[Turn]:
    answer = record.take(name)
    if is_turns(answer):
        return turn_list(answer, notes)
    text = visible(answer, f'"{name}"')
    thought = next((key for key in REASONING if isinstance(record.get(key), str) and record[key]), None)
    return [reasoned_turn(text, record.take(thought) if thought else None, f'"{name}"', notes)]


def _history(record: _Record) -> list[Turn]:
    """What was said before: [[question, answer], ...] (LLaMA-Factory, ms-swift), or a list of turns (ChatGLM)."""
    history = parsed(record.take("history") or None, '"history"') or []
    if is_turns(history):
        return turn_list(history, Notes())
    if not isinstance(history, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in history):
        raise BadRecord('"history" is not a list of [question, answer]')
    roles: tuple[Role, Role] = ("user", "assistant")
    return [
        Turn(role, visible(text, f'"history" {role}'))
        for pair in history
        for role, text in zip(roles, pair, strict=True)
    ]


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
