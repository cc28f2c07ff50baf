"""Accuracies of multiple choice, by subject and in all, each with its standard error and beside what guessing gives.

Four ways of choosing, all by the largest log-likelihood: ``acc`` of the sum, ``acc_norm`` by character, ``acc_bytes``
by UTF-8 byte (these as lm-evaluation-harness 0.4.13 names and computes them), ``acc_tokens`` by the model's own token.
Of equal ones the first is chosen. Standard error: sample deviation by the root of the number, as there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from minimind.inference.choices.questions import Question


@dataclass(frozen=True)
class Answered:
    """A question with the log-likelihood (nats) and the number of tokens of each choice."""

    question: Question
    nats: Sequence[float]
    tokens: Sequence[int]


# Name -> what the log-likelihood of each choice is divided by
MEASURES: dict[str, Callable[[Answered], Sequence[int]]] = {
    "acc": lambda answered: [1] * len(answered.nats),
    "acc_norm": lambda answered: [len(choice) for choice in answered.question.choices],
    "acc_bytes": lambda answered: [len(choice.encode()) for choice in answered.question.choices],
    "acc_tokens": lambda answered: answered.tokens,
}


def chosen(answered: Answered, measure: str) -> int:
    """Which choice the model takes."""
    scores = [nats / size for nats, size in zip(answered.nats, MEASURES[measure](answered), strict=True)]
    return scores.index(max(scores))


def score(answers: Sequence[Answered]) -> dict[str, Any]:
    """``questions``, ``chance`` (of guessing), and each measure with its ``_stderr`` (None of one question)."""
    found: dict[str, Any] = {
        "questions": len(answers),
        "chance": round(sum(1 / len(answered.nats) for answered in answers) / len(answers), 6),
    }
    for measure in MEASURES:
        share = sum(chosen(answered, measure) == answered.question.answer for answered in answers) / len(answers)
        error = math.sqrt(share * (1 - share) / (len(answers) - 1)) if len(answers) > 1 else None
        found |= {measure: round(share, 6), f"{measure}_stderr": None if error is None else round(error, 6)}
    return found


def by_subject(answers: Sequence[Answered]) -> dict[str, dict[str, Any]]:
    """`score` of each subject, in the order in which they come."""
    subjects: dict[str, list[Answered]] = {}
    for answered in answers:
        subjects.setdefault(answered.question.subject, []).append(answered)
    return {name: score(own) for name, own in subjects.items()}


def table(subjects: Mapping[str, Mapping[str, Any]], whole: Mapping[str, Any]) -> list[str]:
    """The lines of a table in percent: a heading, one line a subject, and one for all of several."""
    rows = [*subjects.items(), *([("all", whole)] if len(subjects) > 1 else [])]
    width = max(len(name) for name, _ in [*rows, ("subject", {})]) + 2
    heading = f"{'subject':<{width}}{'questions':>9}{'chance':>9}" + "".join(f"{name:>17}" for name in MEASURES)
    return [heading, *(_line(name, values, width) for name, values in rows)]


def _line(name: str, values: Mapping[str, Any], width: int) -> str:
    shares = "".join(f"{_percent(values[m], values[f'{m}_stderr']):>17}" for m in MEASURES)
    return f"{name:<{width}}{values['questions']:>9,}{values['chance']:>9.1%}{shares}"


def _percent(share: float, error: float | None) -> str:
    return f"{100 * share:.1f} ± {'n/a' if error is None else f'{100 * error:.1f}'}"
