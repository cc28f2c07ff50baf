"""Records of questions and answers, or of turns with something beside them -> turns: each format's own fields."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from minimind.data.read.sources import is_turns
from minimind.data.records.formats import ALPACA_ANSWERS, EXTRAS, PAIRS, SYSTEM, TURN_KEYS, pair_of
from minimind.data.records.turns import REASONING, TOOLS, Notes, only_tools, reasoned_turn, system_turns, turn_list
from minimind.data.records.values import BadRecord, clean, keys_of, parsed, says_nothing, string, visible
from minimind.text.chat import Role, Turn


class Fielded(dict[str, object]):
    """A record that notes which of its fields were read."""

    def __init__(self, value: Mapping[str, object]) -> None:
        super().__init__(value)
        self.read: set[str] = set()

    def take(self, name: str) -> object:
        """The field's value; None if there is none."""
        self.read.add(name)
        return self.get(name)


def turns_in(record: Fielded, found: str, names: Mapping[str, str], notes: Notes) -> list[Turn]:
    """The turns of a record of the format ``found``. ``names``: fields as the user named them. BadRecord."""
    if found == "alpaca":
        return _alpaca(record, notes)
    if found == "qa":
        return _question_answer(record, names, notes)
    key = names.get("turns") or next((key for key in TURN_KEYS if key in record), TURN_KEYS[0])
    if key not in record:
        raise BadRecord(f'no field "{key}"; it has: {keys_of(record)}')
    return [*_system(record), *turn_list(record.take(key), notes, record.take("loss_mask"))]


def _system(record: Fielded, names: Sequence[str] = SYSTEM) -> list[Turn]:
    """A system turn from the fields beside the turns, if they say anything."""
    name = next((name for name in names if not says_nothing(record.get(name))), names[0])
    tools = only_tools(record, "the record")
    record.read.update(TOOLS)
    return system_turns(record.take(name), tools)


def _alpaca(record: Fielded, notes: Notes) -> list[Turn]:
    """instruction/input/output (or response), with optional system and history; one nested instance (seed tasks)."""
    if isinstance(instances := record.get("instances"), list) and "output" not in record:
        if len(instances) != 1 or not isinstance(instances[0], dict):
            raise BadRecord(f'"instances" holds {len(instances)} items; split the record into one item each')
        record.take("instances")
        record.update(instances[0])
    answer = next((name for name in ALPACA_ANSWERS if name in record), None)
    if answer is None:
        raise BadRecord(f'no field "output"; it has: {keys_of(record)}')
    return [*_system(record), *_history(record, notes), *_exchange(record, "instruction", EXTRAS, answer, notes)]


def _question_answer(record: Fielded, names: Mapping[str, str], notes: Notes) -> list[Turn]:
    if "prompt" in names:
        question, answer = names["prompt"], names.get("answer", "answer")
        extras: tuple[str, ...] = (names["input"],) if "input" in names else ()
    else:
        question, answer = pair_of(record) or PAIRS[0]
        extras = tuple(name for name in EXTRAS if name != question)
    for key in (question, answer):
        if key not in record:
            raise BadRecord(f'no field "{key}"; it has: {keys_of(record)}')
    system = _system(record, (names["system"],) if "system" in names else SYSTEM)
    history = [] if names else _history(record, notes)  # named fields are all that is read
    return [*system, *history, *_exchange(record, question, extras, answer, notes)]


def _exchange(record: Fielded, question: str, extras: Iterable[str], answer: str, notes: Notes) -> list[Turn]:
    """A question and its answer; either may be a list of turns (TRL)."""
    return [*_asked(record, question, extras, notes), *_answered(record, answer, notes)]


def _asked(record: Fielded, name: str, extras: Iterable[str], notes: Notes) -> list[Turn]:
    question = record.take(name)
    if is_turns(question):
        return turn_list(question, notes)
    parts = [visible(question, f'"{name}"')]
    for extra in extras:
        if not says_nothing(value := record.take(extra)):
            parts += [string(text, f'"{extra}"') for text in (value if isinstance(value, list) else [value])]
    return [Turn("user", clean("\n".join(parts), f'"{name}"'))]


def _answered(record: Fielded, name: str, notes: Notes) -> list[Turn]:
    answer = record.take(name)
    if is_turns(answer):
        return turn_list(answer, notes)
    text = visible(answer, f'"{name}"')
    thought = next((key for key in REASONING if isinstance(record.get(key), str) and record[key]), None)
    return [reasoned_turn(text, record.take(thought) if thought else None, f'"{name}"', notes)]


def _history(record: Fielded, notes: Notes) -> list[Turn]:
    """What was said before: [[question, answer], ...] (LLaMA-Factory, ms-swift), or a list of turns (ChatGLM)."""
    history = parsed(record.take("history") or None, '"history"') or []
    if is_turns(history):
        return turn_list(history, notes)
    if not isinstance(history, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in history):
        raise BadRecord('"history" is not a list of [question, answer]')
    roles: tuple[Role, Role] = ("user", "assistant")
    return [
        Turn(role, visible(text, f'"history" {role}'))
        for pair in history
        for role, text in zip(roles, pair, strict=True)
    ]
