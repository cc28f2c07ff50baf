"""Which format a record is in, by its fields; what is refused by its fields.

Known weakness: a file whose fields mean something else needs ``--format`` or ``--map``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from minimind.data.records.turns import MEDIA, REASONING, ROLE_NAMES, TOOLS
from minimind.data.records.values import BadRecord, keys_of, says_nothing

TURN_KEYS = ("conversations", "messages", "conversation")
_QUESTIONS, _ANSWERS = ("question", "prompt", "query"), ("answer", "response", "completion", "output", "solution")
SYSTEM = ("system", "system_prompt")
_PLAIN_PAIRS = tuple((question, answer) for question in _QUESTIONS for answer in _ANSWERS)
PAIRS = (
    *_PLAIN_PAIRS,
    *((question, "target") for question in _QUESTIONS),
    *(("input", answer) for answer in ("target", *_ANSWERS)),  # Firefly
    ("inputs", "targets"),
)
_PAIR_WITH_HISTORY = ("q", "a")  # MiniMind's of 2024; without a history these letters say too little
ALPACA_ANSWERS = ("output", "response", "answer", "completion", "solution", "target")
EXTRAS = ("input", "context")  # stand under the question
_LABELS = ("label", "kto_tag")
_PREFERENCE = (
    "preference data (a chosen and a rejected answer), which this trainer does not learn from; "
    "for SFT on the chosen answers keep only those"
)
_KTO = "KTO data (a label says whether the answer is wanted); for SFT keep the rows with true, and leave the label out"
LONE = "a chat turn outside a conversation; write the turns of each conversation as one list"

COLUMNS = frozenset(
    {"text", "content", "role", "from", "value", "instruction", "instances", "history", "loss_mask"}
    | {*SYSTEM, *TURN_KEYS, *ALPACA_ANSWERS, *EXTRAS, *_LABELS, *MEDIA, *REASONING, *TOOLS, "chosen", "rejected"}
    | {name for pair in (*PAIRS, _PAIR_WITH_HISTORY) for name in pair}
)
"""The fields of a record that some format reads, or refuses by name; those that begin with ``rejected_`` too."""


class Columns:
    """The columns of a table that are worth converting for these fields."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = COLUMNS | set(names)

    def __contains__(self, name: object) -> bool:
        return name in self._names or str(name).startswith("rejected_")


def is_lone_turn(value: Mapping[str, object]) -> bool:
    """Whether a record is one message, as one turn a line has it."""
    sender = value.get("role") or value.get("from")
    return isinstance(sender, str) and sender.strip().lower() in ROLE_NAMES


def format_of(value: Mapping[str, object]) -> str:
    """The format's name. BadRecord for one that is not known, and for comparisons of answers."""
    refuse_comparisons(value)
    for key in TURN_KEYS:
        if key in value:
            turns = value[key]
            first = turns[0] if isinstance(turns, list) and turns else None
            if isinstance(first, dict) and "from" in first:
                return "sharegpt"
            return "messages" if key == "messages" else "conversations"
    plain = "text" in value or "content" in value
    answers = ALPACA_ANSWERS[:2] if plain or pair_of(value, _PLAIN_PAIRS) else ALPACA_ANSWERS
    if "instruction" in value and any(key in value for key in (*answers, "instances")):
        return "alpaca"
    if pair_of(value, _PLAIN_PAIRS if plain else PAIRS):  # beside a text, an input is a part of some other format
        return "qa"
    if plain or is_lone_turn(value):
        return "text"
    raise BadRecord(f"no known format (fields: {keys_of(value)}); name --text-field, or --map prompt=...,answer=...")


def refuse_comparisons(value: Mapping[str, object]) -> None:
    """Rows that say which answer is better: trained as SFT they would teach the worse one too."""
    if value.get("chosen") is not None and value.get("rejected") is not None:
        raise BadRecord(_PREFERENCE, "sft")
    for key in value:
        if (key == "rejected" or key.startswith("rejected_")) and not says_nothing(value[key]):
            raise BadRecord(_PREFERENCE, "sft")


def refuse_labels(value: Mapping[str, object]) -> None:
    """BadRecord for KTO's rows, of which half are what not to say."""
    for key in _LABELS:
        label = value.get(key)
        said = label.strip().lower() if isinstance(label, str) else label
        number = "completion" in value or key == "kto_tag"  # elsewhere 0 and 1 are classes of texts
        if isinstance(said, bool) or said in ("true", "false") or (number and said in (0, 1, "0", "1")):
            raise BadRecord(f'"{key}": {_KTO}', "sft")


def pair_of(record: Mapping[str, object], pairs: Iterable[tuple[str, str]] = PAIRS) -> tuple[str, str] | None:
    """The names of question and answer; of several the first that are not null."""
    pairs = (*pairs, _PAIR_WITH_HISTORY) if "history" in record else pairs
    found = [pair for pair in pairs if pair[0] in record and pair[1] in record]
    full = [pair for pair in found if record[pair[0]] is not None and record[pair[1]] is not None]
    return next(iter(full or found), None)
