"""A generator whose every text has an exactly known probability.

A document is written by a function that takes a ``Manuscript`` and calls ``say`` (fixed text) and ``pick`` (one of
several texts, each with a probability). Contract: what ``pick`` offers is prefix-free and each choice is written at
once, so the texts form an instantaneous code: reading from the left, every choice can be recovered, no two runs of
choices give the same text, and -log p(text) is exactly the sum of its choices' -log p, never a bound. ``pick`` refuses
options that break this. The end of a document is a choice like any other (``END``).

Three drafts share the interface: ``SampledManuscript`` draws, ``ReadManuscript`` recovers the choices of a finished
text (the entropy floor of a file comes from its text alone), and ``enumerate_documents`` walks through all of them.

Known weakness: the number is the entropy of the *text*. A model that works on tokens also spends probability on
other tokenisations of the same text; its loss is at least the floor in expectation, and can only approach it.
"""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise

END = "\x03"
"""Offered by ``pick`` as the end of the document; never part of the text."""


class Manuscript(ABC):
    """A document being written: ``text`` so far and ``nats``, the sum of -log p over its choices."""

    def __init__(self) -> None:
        self.nats = 0.0
        self._pieces: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self._pieces).removesuffix(END)

    def say(self, text: str) -> None:
        """Write fixed text: probability 1."""
        self._pieces.append(text)

    def pick(self, options: Sequence[str], weights: Sequence[float] | None = None, then: str = "") -> int:
        """Write one of ``options`` followed by ``then``; returns its index.

        ``weights`` are relative (default: all equal). Raises ValueError where an option plus ``then`` begins another
        one, or repeats it: the text would no longer tell which was chosen.
        """
        texts = [option if option == END else option + then for option in options]
        require_prefix_free(tuple(texts))
        total = float(len(texts)) if weights is None else math.fsum(weights)
        probabilities = [1 / total] * len(texts) if weights is None else [weight / total for weight in weights]
        index = self._choose(texts, probabilities)
        self.nats -= math.log(probabilities[index])
        self.say(texts[index])
        return index

    @abstractmethod
    def _choose(self, texts: Sequence[str], probabilities: Sequence[float]) -> int:
        """The index of the text to write."""


Writer = Callable[[Manuscript], None]


@lru_cache(maxsize=1 << 14)  # the same choices come up in every document
def require_prefix_free(texts: tuple[str, ...]) -> None:
    """Raise ValueError unless no text begins another one (in sorted order it would stand directly before it)."""
    ordered = sorted(texts)
    for before, after in pairwise(ordered):
        if after.startswith(before):
            raise ValueError(f"ambiguous choice: {before!r} begins {after!r}")


class SampledManuscript(Manuscript):
    """Draws each choice. Uses only ``random.random()``, whose values Python keeps the same between versions."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self._rng = rng

    def _choose(self, texts: Sequence[str], probabilities: Sequence[float]) -> int:
        left = self._rng.random()
        for index, probability in enumerate(probabilities):
            left -= probability
            if left < 0:
                return index
        return len(texts) - 1


class ReadManuscript(Manuscript):
    """Recovers the choices behind a finished text. Raises ValueError where no run of choices gives it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text + END
        self._position = 0

    def say(self, text: str) -> None:
        if not self._text.startswith(text, self._position):
            raise self._refusal(repr(text))
        self._position += len(text)
        super().say(text)

    def _choose(self, texts: Sequence[str], probabilities: Sequence[float]) -> int:
        for index, text in enumerate(texts):
            if self._text.startswith(text, self._position):
                return index
        raise self._refusal(f"one of {list(texts)[:5]}")

    def finish(self) -> None:
        """Check that the writer consumed everything, the END included."""
        if self._position != len(self._text):
            raise self._refusal("the end of the document")

    def _refusal(self, expected: str) -> ValueError:
        found = self._text[self._position : self._position + 30]
        return ValueError(f"not a text of this grammar: character {self._position}: {found!r}, expected {expected}")


class _ReplayedManuscript(Manuscript):
    """Follows a script of choices, then takes the first option; remembers how many options each choice had."""

    def __init__(self, script: Sequence[int]) -> None:
        super().__init__()
        self._script = script
        self.taken: list[tuple[int, int]] = []

    def _choose(self, texts: Sequence[str], probabilities: Sequence[float]) -> int:
        step = len(self.taken)
        index = self._script[step] if step < len(self._script) else 0
        self.taken.append((index, len(texts)))
        return index


def sample_document(writer: Writer, rng: random.Random) -> tuple[str, float]:
    """One text of the grammar and its exact -log p in nats."""
    draft = SampledManuscript(rng)
    writer(draft)
    return draft.text, draft.nats


def document_nats(writer: Writer, text: str) -> float:
    """Exact -log p of a text in nats, its end included. Raises ValueError for a text outside the grammar."""
    draft = ReadManuscript(text)
    writer(draft)
    draft.finish()
    return draft.nats


def enumerate_documents(writer: Writer) -> Iterator[tuple[str, float]]:
    """Every text of a (small) grammar with its -log p in nats, by depth-first replay of all choices."""
    script: list[int] = []
    while True:
        draft = _ReplayedManuscript(script)
        writer(draft)
        yield draft.text, draft.nats
        taken = draft.taken
        while taken and taken[-1][0] + 1 == taken[-1][1]:
            taken.pop()
        if not taken:
            return
        script = [index for index, _ in taken]
        script[-1] += 1
