"""Questions behind answered examples (few-shot), laid out and drawn as lm-evaluation-harness 0.4.13 does.

Contract. A question's context becomes: its description, each example's context, a space, its right choice and an
empty line, then its own context. C-Eval's and CMMLU's examples are the first ones of their subject; others' are drawn
anew for each question of a subject, in the questions' order, by Python's generator at the harness's seed. Examples are
those of the question's subject, or all if they are of one file.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from minimind.base.errors import UserError
from minimind.inference.choices.questions import DELIMITER, Question

SEED = 1234  # the harness's fewshot_random_seed
BETWEEN = "\n\n"  # two examples


def with_examples(questions: Sequence[Question], examples: Sequence[Question], count: int) -> list[Question]:
    """The questions behind ``count`` examples each. UserError if there are too few, or one is itself a question."""
    asked = {(question.context, question.choices) for question in questions}
    for example in examples:
        if (example.context, example.choices) in asked:
            raise UserError(f"{example}: this example is one of the questions: give --examples other rows")
    pools = {question.subject: _pool(question.subject, examples, count) for question in questions}
    draws = {subject: random.Random(SEED) for subject in pools}
    found = []
    for question in questions:
        pool = pools[question.subject]
        shots = pool[:count] if question.first_shots else draws[question.subject].sample(pool, count)
        found.append(replace(question, context=_context(question, shots)))
    return found


def _pool(subject: str, examples: Sequence[Question], count: int) -> list[Question]:
    """The examples for a subject, in their order."""
    one_file = len({example.file for example in examples}) == 1
    pool = [example for example in examples if one_file or example.subject == subject]
    if len(pool) < count:
        raise UserError(f"--shots {count}: --examples has {len(pool)} of the subject {subject}")
    return pool


def _context(question: Question, shots: Sequence[Question]) -> str:
    texts = [_body(shot) + DELIMITER + shot.choices[shot.answer] + BETWEEN for shot in shots]
    return question.description + "".join(texts) + _body(question)


def _body(question: Question) -> str:
    return question.context.removeprefix(question.description)
