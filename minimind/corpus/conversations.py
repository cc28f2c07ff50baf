"""The conversations of the built-in corpus: questions of any kind in a row, as somebody asks them who tries a model.

Contract: questions do not depend on each other, so an answer follows from the last thing told that it is about; what
was told earlier, of the same person even, is a distractor. Between what the user tells and the question about it other
questions may stand, which tell nothing in turns of their own. A training conversation holds no held-out question and
the other way round (``questions.question``).

Known weakness: nobody asks twice about what was told once, and no question takes up an earlier answer.
"""

from __future__ import annotations

import random
from itertools import chain

from minimind.corpus.questions import QUESTION_KINDS, Turns, one, question
from minimind.corpus.words import LANGUAGES

KNOWS = (
    "sums without carrying, digits in order, colours and things in two languages, facts that it is told, and who you "
    "say you are, in English and Chinese"
)
EXAMPLES = ("What is 32+41?", "Hello, my name is Tom. I keep horses.", "翻译成英语：黑书")
"""What somebody may try who has just met a model of this corpus."""

MOST = 10
"""Questions of a training conversation."""
ALONE = 0.8
"""Share of the training conversations that are one question, two fifths of the tokens: there looking up is learned."""
HELD_OUT_KINDS = [(language, kind) for language in LANGUAGES for kind in QUESTION_KINDS]
"""Of the first held-out conversations, and of each as many after them."""
PLACES = (1, 2, 1, 3)
"""Where in its conversation a held-out question comes: half of them second or third."""
_TRAINED_KINDS = (*QUESTION_KINDS, "attributes", "memory", "memory")
"""Looking up takes a model longer than the rest, and over several turns longest."""
_AT_ONCE = tuple(kind for kind in QUESTION_KINDS if kind != "memory")


def training_conversation(rng: random.Random) -> Turns:
    """One to ``MOST`` questions, none of them held out."""
    turns: Turns = []
    left = 1 if rng.random() < ALONE else 2 + int(rng.random() * (MOST - 1))
    while left:
        kind = one(rng, _TRAINED_KINDS)
        others = min(left - 1, int(rng.random() * 3)) if kind not in _AT_ONCE else 0
        turns += _with_others(question(kind, one(rng, LANGUAGES), False, rng), others, False, rng)
        left -= 1 + others
    return turns


def held_out_conversation(number: int, rng: random.Random) -> Turns:
    """Ends with a held-out question of ``HELD_OUT_KINDS[number % 10]``, which comes first, second or third."""
    language, kind = HELD_OUT_KINDS[number % len(HELD_OUT_KINDS)]
    return _with_others(question(kind, language, True, rng), held_out_place(number) - 1, True, rng)


def held_out_kind(number: int) -> str:
    """The kind of the question with which held-out conversation ``number`` ends."""
    return HELD_OUT_KINDS[number % len(HELD_OUT_KINDS)][1]


def held_out_place(number: int) -> int:
    """Whether that question is the first, second or third of its conversation; each kind comes in each place."""
    return PLACES[(number + number // len(HELD_OUT_KINDS)) % len(PLACES)]


def _with_others(asked: Turns, count: int, held_out: bool, rng: random.Random) -> Turns:
    """``count`` other questions before the last one of ``asked``, after what the user tells for it."""
    others = [question(one(rng, _AT_ONCE), one(rng, LANGUAGES), held_out, rng) for _ in range(count)]
    return [*asked[:-2], *chain.from_iterable(others), *asked[-2:]]
