"""A record of a multiple-choice file -> a `Question`: what is asked, and which of its choices is right.

Contract. The format is told by the record's fields alone: C-Eval and CMMLU (question, A to D, answer), ARC (choices of
text and label, answerKey), HellaSwag (ctx_a, ctx_b, endings, label), and ours (question, choices, answer: an index
from 0 or a letter). The texts are those of lm-evaluation-harness 0.4.13 for each, to the last space: a choice follows
the context after one space. C-Eval's and CMMLU's begin with a line that names the subject in Chinese (subjects.json,
from the harness's tasks; MIT licence); the subject is the file's name. Answered examples before the question: shots.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from minimind.data.read.sources import Record
from minimind.data.records.encoding import Reject
from minimind.data.records.values import BadRecord, clean, keys_of, name_of, parsed, string, visible

DELIMITER = " "  # between context and choice, as in the harness
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_FOUR = LETTERS[:4]
_SPLIT = re.compile(r"[-_](val|dev|test|train|validation)$")
# Of a text before the question, by whose file it is: as the harness writes it
_DESCRIPTIONS = {
    "ceval": "以下是中国关于{}的单项选择题，请选出其中的正确答案。\n\n",
    "cmmlu": "以下是关于{}的单项选择题，请直接给出正确答案的选项。\n\n",
}


@dataclass(frozen=True)
class Question:
    """``context``, then a space and one of ``choices``, of which ``answer`` (0-based) is right.

    ``description``: the beginning of ``context`` that stands once, before examples, too. ``first_shots``: its examples
    are the first of their file, as the harness has it for C-Eval and CMMLU; else they are drawn.
    """

    file: str
    line: int
    subject: str
    context: str
    choices: tuple[str, ...]
    answer: int
    description: str = ""
    first_shots: bool = False

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def question_of(record: Record) -> Question | Reject:
    """The record's question, or why it has none."""
    if record.error is not None:
        return Reject(record.file, record.line, record.error, record.excerpt, element=record.element)
    try:
        if not isinstance(record.value, Mapping):
            raise BadRecord(f"a record is an object with fields, not {name_of(record.value)}")
        name = _SPLIT.sub("", Path(record.file).name.split(".")[0])
        return _read(record.value, name, partial(Question, record.file, record.line))
    except BadRecord as bad:
        return Reject(record.file, record.line, str(bad), repr(record.value)[:2000], element=record.element)


New = Callable[..., Question]  # a `Question` of the record's file and line


def _read(value: Mapping[str, object], name: str, new: New) -> Question:
    if "endings" in value:
        return _hellaswag(value, name, new)
    if "answerKey" in value:
        return _arc(value, name, new)
    if set(_FOUR) <= value.keys() and value.keys() & {"question", "Question"}:
        return _chinese_exam(value, name, new)
    if {"question", "choices"} <= value.keys():
        return _ours(value, name, new)
    raise BadRecord(f"no known multiple-choice format (fields: {keys_of(value)}); docs/evaluation.md lists them")


def _ours(value: Mapping[str, object], name: str, new: New) -> Question:
    choices = _texts(parsed(value["choices"], "choices"), "choices")
    subject = visible(value["subject"], "subject") if value.get("subject") is not None else name
    answer = _index(value.get("answer"), len(choices), "answer")
    return new(subject, visible(value["question"], "question"), choices, answer)


def _chinese_exam(value: Mapping[str, object], name: str, new: New) -> Question:
    """C-Eval (lower case) or CMMLU: the choices stand in the context, and their letters are what is asked for."""
    which, upper = ("ceval", str.lower) if "question" in value else ("cmmlu", str.title)
    lines = "".join(f"\n{letter}. {clean(string(value[letter], letter), letter)}" for letter in _FOUR)
    question = visible(value[upper("question")], upper("question")).strip()
    answer = _index(value.get(upper("answer")), len(_FOUR), upper("answer"))
    start = _description(which, name)
    return new(name, f"{start}{question}{lines}\n答案：", tuple(_FOUR), answer, description=start, first_shots=True)


def _description(which: str, subject: str) -> str:
    """The line with the subject's Chinese name; of an unknown one none."""
    known = _subjects()[which].get(subject)
    return _DESCRIPTIONS[which].format(known) if known else ""


@cache
def _subjects() -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = json.loads((Path(__file__).parent / "subjects.json").read_text(encoding="utf-8"))
    return found


def _arc(value: Mapping[str, object], name: str, new: New) -> Question:
    inside = parsed(value.get("choices"), "choices")
    if not isinstance(inside, Mapping):
        raise BadRecord("choices is no object of text and label, as ARC's are")
    texts, labels = (_texts(inside.get(part), f"choices.{part}") for part in ("text", "label"))
    key = visible(value["answerKey"], "answerKey")
    if len(texts) != len(labels) or labels.count(key) != 1:
        raise BadRecord(f"answerKey {key[:20]!r} names none of {len(texts)} choices with {len(labels)} labels")
    context = f"Question: {visible(value.get('question'), 'question')}\nAnswer:"
    return new(name, context, texts, labels.index(key))


def _hellaswag(value: Mapping[str, object], name: str, new: New) -> Question:
    activity, first = (visible(value.get(part), part) for part in ("activity_label", "ctx_a"))
    second = clean(string(value.get("ctx_b"), "ctx_b"), "ctx_b")
    choices = tuple(_without_marks(ending) for ending in _texts(parsed(value["endings"], "endings"), "endings"))
    label = value.get("label")
    number = int(label) if isinstance(label, str) and re.fullmatch("[0-9]{1,2}", label) else label
    context = _without_marks(f"{activity}: {first} {second.capitalize()}")
    return new(name, context, choices, _index(number, len(choices), "label"))


def _without_marks(text: str) -> str:
    """Without the marks of WikiHow's pages, in the harness's way (tasks/hellaswag/utils.py)."""
    return re.sub(r"\[.*?\]", "", text.strip().replace(" [title]", ". ")).replace("  ", " ")


def _texts(value: object, where: str) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise BadRecord(f"{where} is {name_of(value)}, not a list")
    if not 2 <= len(value) <= len(LETTERS):
        raise BadRecord(f"{where} has {len(value)} entries: 2 to {len(LETTERS)} can be chosen from")
    return tuple(visible(text, f"{where}[{index}]") for index, text in enumerate(value))


def _index(value: object, count: int, where: str) -> int:
    """An index from 0, or the letter for it."""
    if isinstance(value, str) and value.strip() in list(LETTERS[:count]):
        return LETTERS.index(value.strip())
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < count:
        return value
    given = repr(value)[:20] if isinstance(value, (str, int)) else name_of(value)
    raise BadRecord(
        f"{where} is {given}: expected an index from 0 to {count - 1} or a letter up to {LETTERS[count - 1]}"
    )
