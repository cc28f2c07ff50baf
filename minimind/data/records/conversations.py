"""A record's value -> one document: pretraining text or a list of chat turns, or ``BadRecord`` with the reason.

Contract: the rules are those of the table in docs/data.md, one test a row. Nothing is guessed from a value of
the wrong type (null never becomes the word "None"), and nothing is dropped without being counted:
``Conversation.trimmed`` says how many turns without an answer were cut from the end.

Known weakness: formats are recognised by their keys. A file whose keys mean something else needs ``--format``
or ``--map``.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, get_args

from minimind.base.defaults import Kind as Kind
from minimind.base.errors import UserError
from minimind.data.read.sources import TEXT_FORMATS, is_turns
from minimind.text.chat import Role, Turn

RecordFormat = Literal["text", "conversations", "messages", "sharegpt", "alpaca", "qa", "turns"]
FORMATS: tuple[str, ...] = (*get_args(RecordFormat), *TEXT_FORMATS)
FIELDS = ("text", "prompt", "input", "answer", "system", "turns")

_ROLES: dict[str, Role] = {
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(("user", "human", "prompter"), "user"),
    **dict.fromkeys(("assistant", "gpt", "model", "bot", "chatgpt", "function_call"), "assistant"),
    **dict.fromkeys(("tool", "function", "observation", "ipython"), "tool"),
}
_TURN_KEYS = ("conversations", "messages", "conversation")
_PAIRS = tuple(
    (question, answer)
    for question in ("question", "prompt", "query")
    for answer in ("answer", "response", "completion", "output", "solution")
)
_PREFERENCE = (
    "preference data (a chosen and a rejected answer), which this trainer does not learn from; "
    "for SFT on the chosen answers keep only those"
)


class BadRecord(ValueError):
    """The record can't be used; the text is the reason shown after file:line."""


@dataclass(frozen=True)
class Fields:
    """How to read records: a named format (None: by content) and names of fields, ``{"prompt": "question"}``.

    Raises ``UserError`` for an unknown format or field.
    """

    format: str | None = None
    names: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.format is not None and self.format not in FORMATS:
            raise UserError(f"--format {self.format}: unknown; one of {', '.join(FORMATS)}")
        for name in self.names:
            if name not in FIELDS:
                raise UserError(f"--map {name}=...: unknown field; one of {', '.join(FIELDS)}")
        if "answer" in self.names and "prompt" not in self.names:
            raise UserError("--map answer=... needs prompt=... as well")

    @classmethod
    def parse(cls, format: str | None, text_field: str | None, mapping: str | None) -> Fields:
        """From the command line: ``--format``, ``--text-field body``, ``--map prompt=question,answer=solution``."""
        pairs = [part.partition("=") for part in mapping.split(",")] if mapping else []
        for name, equals, value in pairs:
            if not (name.strip() and equals and value.strip()):
                raise UserError(f"--map {mapping}: write it as prompt=question,answer=solution")
        names = {name.strip(): value.strip() for name, _, value in pairs}
        return cls(format, {**names, "text": text_field} if text_field else names)


class Conversation(NamedTuple):
    """Turns that end with an answer, and how many turns after the last answer were cut off."""

    turns: list[Turn]
    trimmed: int = 0


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
    return _checked(_turns_of(value, found, fields))


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
        raise BadRecord(f"{_name(value)}, not an object")
    if kind == "pretrain" and "text" in value:
        return "text"
    return _by_keys(value)


def text_of(value: object, name: str | None = None) -> str:
    """The pretraining text of a record. Raises ``BadRecord`` for anything but text with a visible character."""
    if isinstance(value, dict):
        key = name or ("text" if "text" in value else "content")
        if key not in value:
            raise BadRecord(f'no field "{key}"; it has: {_keys(value)}')
        return _text(value[key], f'"{key}"')
    if name is not None:
        raise BadRecord(f'{_name(value)}, so it has no field "{name}"')
    return _text(value, "the record")


def _by_keys(value: Mapping[str, object]) -> str:
    if "chosen" in value and "rejected" in value:
        raise BadRecord(_PREFERENCE)
    for key in _TURN_KEYS:
        if key in value:
            turns = value[key]
            first = turns[0] if isinstance(turns, list) and turns else None
            return (
                "sharegpt"
                if isinstance(first, dict) and "from" in first
                else "messages"
                if key == "messages"
                else "conversations"
            )
    if "instruction" in value and any(key in value for key in ("output", "response", "instances")):
        return "alpaca"
    if any(question in value and answer in value for question, answer in _PAIRS):
        return "qa"
    if "text" in value or "content" in value:
        return "text"
    raise BadRecord(f"no known format (fields: {_keys(value)}); name --text-field, or --map prompt=...,answer=...")


def _turns_of(value: object, found: str, fields: Fields) -> list[Turn]:
    if found == "turns":
        return _turn_list(value)
    if not isinstance(value, dict):
        raise BadRecord(f"{_name(value)}, not an object, so it is no {found} record")
    if found == "alpaca":
        return _alpaca(value)
    if found == "qa":
        return _question_answer(value, fields.names)
    key = fields.names.get("turns") or next((key for key in _TURN_KEYS if key in value), _TURN_KEYS[0])
    if key not in value:
        raise BadRecord(f'no field "{key}"; it has: {_keys(value)}')
    return [*_system(value), *_turn_list(value[key])]


def _system(record: Mapping[str, object]) -> list[Turn]:
    """A system turn from the ``system`` and ``tools`` fields beside the turns, if they say anything."""
    parts = []
    if record.get("system") not in (None, ""):
        parts.append(_string(record["system"], '"system"'))
    if (tools := record.get("tools")) not in (None, "", "[]", []):
        parts.append("# Tools\n" + (tools if isinstance(tools, str) else json.dumps(tools, ensure_ascii=False)))
    text = "\n\n".join(part for part in parts if part.strip())
    return [Turn("system", _clean(text, '"system"'))] if text else []


def _alpaca(record: Mapping[str, object]) -> list[Turn]:
    """instruction/input/output (or response), with optional system and history; one nested instance (seed tasks)."""
    if isinstance(instances := record.get("instances"), list) and "output" not in record:
        if len(instances) != 1 or not isinstance(instances[0], dict):
            raise BadRecord(f'"instances" holds {len(instances)} items; split the record into one item each')
        record = {**record, **instances[0]}
    answer = "output" if "output" in record else "response"
    if answer not in record:
        raise BadRecord(f'no field "output"; it has: {_keys(record)}')
    return [*_system(record), *_history(record), *_exchange(record, "instruction", "input", answer)]


def _question_answer(record: Mapping[str, object], names: Mapping[str, str]) -> list[Turn]:
    if "prompt" in names:
        question, answer = names["prompt"], names.get("answer", "answer")
    else:
        question, answer = next((pair for pair in _PAIRS if pair[0] in record and pair[1] in record), _PAIRS[0])
    for key in (question, answer):
        if key not in record:
            raise BadRecord(f'no field "{key}"; it has: {_keys(record)}')
    system = names.get("system", "system")
    return [
        *_system({**record, "system": record.get(system)}),
        *_exchange(record, question, names.get("input"), answer),
    ]


def _exchange(record: Mapping[str, object], question: str, extra: str | None, answer: str) -> list[Turn]:
    text = _text(record.get(question), f'"{question}"')
    if extra is not None and record.get(extra) not in (None, ""):
        text += "\n" + _string(record[extra], f'"{extra}"')
    return [Turn("user", _clean(text, f'"{question}"')), Turn("assistant", _text(record[answer], f'"{answer}"'))]


def _history(record: Mapping[str, object]) -> list[Turn]:
    """LLaMA-Factory's ``history``: [[question, answer], ...]."""
    history = record.get("history") or []
    if not isinstance(history, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in history):
        raise BadRecord('"history" is not a list of [question, answer]')
    roles: tuple[Role, Role] = ("user", "assistant")
    return [
        Turn(role, _text(text, f'"history" {role}')) for pair in history for role, text in zip(roles, pair, strict=True)
    ]


def _turn_list(turns: object) -> list[Turn]:
    if not isinstance(turns, list):
        raise BadRecord(f"the turns are {_name(turns)}, not a list")
    if not turns:
        raise BadRecord("no turns (an empty list)")
    made = [_turn(turn, number) for number, turn in enumerate(turns, 1)]
    return [turn for turn in made if turn is not None]


def _turn(turn: object, number: int) -> Turn | None:
    """One turn; None for an empty system turn, which says nothing."""
    if not isinstance(turn, dict):
        raise BadRecord(f"turn {number} is {_name(turn)}, not an object")
    sender = turn.get("role") or turn.get("from")  # a Parquet row has every field of its schema, some of them null
    if not isinstance(sender, str) or sender.strip().lower() not in _ROLES:
        raise BadRecord(f"turn {number}: unknown role {_short(sender)}; known: {', '.join(_ROLES)}")
    role = _ROLES[sender.strip().lower()]
    content = turn["content"] if turn.get("content") is not None else turn.get("value")
    where = f"turn {number} ({role})"
    if role == "assistant" and turn.get("tool_calls"):
        return Turn(role, _clean(_with_calls(content, turn["tool_calls"], where), where))
    text = _string(content, where) if not isinstance(content, list) else _joined(content, where)
    if sender.strip().lower() == "function_call":
        text = f"<tool_call>\n{text}\n</tool_call>"
    if not text.strip():
        if role == "system":
            return None
        raise BadRecord(f"{where} is empty" if role != "assistant" else f"turn {number}: the answer is empty")
    return Turn(role, _clean(text, where))


def _joined(parts: Sequence[object], where: str) -> str:
    """OpenAI's list of content parts: the text of all parts; any other type of part is refused by name."""
    texts = []
    for part in parts:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, dict) and part.get("type", "text") == "text":
            texts.append(_string(part.get("text", part.get("value")), f"{where}: the text part"))
        else:
            kind = _short(part.get("type")) if isinstance(part, dict) else _name(part)
            raise BadRecord(f"{where}: a content part of type {kind}; only text can be learned")
    return "".join(texts)


def _with_calls(content: object, calls: object, where: str) -> str:
    """OpenAI's ``tool_calls`` as text that the model can learn to say: one <tool_call> block a call."""
    if not isinstance(calls, list):
        raise BadRecord(f"{where}: tool_calls is {_name(calls)}, not a list")
    said = (
        []
        if content in (None, "")
        else [_joined(content, where) if isinstance(content, list) else _string(content, where)]
    )
    for call in calls:
        function = call.get("function", call) if isinstance(call, dict) else call
        said.append(f"<tool_call>\n{json.dumps(function, ensure_ascii=False)}\n</tool_call>")
    return "\n".join(said)


def _checked(turns: list[Turn]) -> Conversation:
    """The rules about the order of turns; see docs/data.md."""
    answers = [i for i, turn in enumerate(turns) if turn.role == "assistant"]
    if not answers:
        only_system = all(turn.role == "system" for turn in turns)
        raise BadRecord("only system turns: nothing to learn" if only_system else "no assistant turn: nothing to learn")
    for before, after in itertools.pairwise(answers):
        if after == before + 1:
            raise BadRecord(f"two answers in a row (turns {before + 1} and {after + 1})")
    if not any(turn.role == "user" for turn in turns):
        raise BadRecord("an answer without a question: no user turn")
    return Conversation(turns[: answers[-1] + 1], len(turns) - answers[-1] - 1)


def _text(value: object, where: str) -> str:
    text = _clean(_string(value, where), where)
    if not text or text.isspace():
        raise BadRecord(f"{where} is empty")
    return text


def _string(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise BadRecord(f"{where} is {_name(value)}, not a string")
    return value


_UNUSABLE = re.compile("[\0\ud800-\udfff]")


def _clean(text: str, where: str) -> str:
    """The text, unless it holds NUL or half of a surrogate pair (which is also how undecodable bytes arrive)."""
    if found := _UNUSABLE.search(text):
        code = ord(found[0])
        what = "a NUL character" if not code else f"a lone surrogate (U+{code:04X})"
        if 0xDC80 <= code <= 0xDCFF:
            what = f"a byte that is not text in the file's encoding (0x{code - 0xDC00:02X}) or a lone surrogate"
        raise BadRecord(f"{where} holds {what} at character {found.start() + 1}")
    return text


def _name(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return "a number"
    return {"str": "a string", "list": "a list", "dict": "an object"}.get(
        type(value).__name__, f"a {type(value).__name__}"
    )


def _keys(record: Mapping[str, object]) -> str:
    keys = [str(key)[:40] for key in record]
    return ", ".join(keys[:8]) + (", ..." if len(keys) > 8 else "") if keys else "no fields"


def _short(value: object) -> str:
    return repr(value)[:60] if isinstance(value, str) else _name(value)
