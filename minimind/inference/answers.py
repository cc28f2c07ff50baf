"""An answer as text that arrives in pieces: stop strings, probabilities, why it ended.

Contract. A piece is whole characters. No part of a stop string is ever in one. The last piece says why the answer
ended; the token that ends it is no part of it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal, NamedTuple

from torch import Tensor

from minimind.inference.choosing import Row
from minimind.inference.sampling import Sampling
from minimind.model.transformer import Transformer
from minimind.text.tokenizer import Tokenizer

Finish = Literal["stop", "length"]


class Likely(NamedTuple):
    """A token and its log probability by the model alone, before temperature; None: nothing stands before it."""

    token: int
    logprob: float | None


@dataclass(frozen=True)
class Chosen:
    """A token of an answer (or of an echoed prompt), and the likeliest ones in its place, the likeliest first."""

    token: Likely
    top: tuple[Likely, ...]


@dataclass(frozen=True)
class Piece:
    """New text (may be empty), the tokens made so far, in the last piece why the answer ended; ``chosen``: of what is
    new, where the question wants it."""

    text: str
    tokens: int
    finish: Finish | None = None
    chosen: tuple[Chosen, ...] = ()

    def __add__(self, later: Piece) -> Piece:
        return Piece(self.text + later.text, later.tokens, later.finish, self.chosen + later.chosen)


def joined(pieces: Sequence[Piece]) -> Piece:
    """All pieces of an answer as one."""
    chosen = tuple(chain.from_iterable(piece.chosen for piece in pieces))
    return Piece("".join(piece.text for piece in pieces), pieces[-1].tokens, pieces[-1].finish, chosen)


@dataclass(frozen=True)
class Question:
    """Prompt ids, how to choose tokens, and what ends the answer: token ids and strings (none of them empty).

    ``top``: how many of the likeliest tokens to tell of in each place, 0 only the chosen one, None nothing. ``echo``:
    the prompt is the first piece.
    """

    prompt: Sequence[int]
    sampling: Sampling
    stop_ids: Collection[int]
    stop: Sequence[str] = ()
    top: int | None = None
    echo: bool = False

    def room(self, positions: int) -> int:
        """How many tokens the answer may have within the model's ``positions``."""
        return min(self.sampling.max_new_tokens, positions - len(self.prompt))


class StopText:
    """Text in, text out, cut before the stop string that is complete first, however the text is divided.

    What may turn out to be the beginning of a stop string is held back. Of two that end together the longer counts.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self.stops = stops
        self.held = ""
        self.found = False

    def push(self, text: str) -> str:
        """What can be shown now."""
        text = self.held + text
        hits = [(start + len(stop), start) for stop in self.stops if (start := text.find(stop)) >= 0]
        if hits:
            self.found, self.held = True, ""
            return text[: min(hits)[1]]
        kept = max((overlap(text, stop) for stop in self.stops), default=0)
        self.held = text[len(text) - kept :]
        return text[: len(text) - kept]

    def flush(self) -> str:
        """What was held back for nothing."""
        rest, self.held = self.held, ""
        return rest


def overlap(text: str, stop: str) -> int:
    """Length of the longest end of ``text`` that ``stop`` begins with, without being all of it."""
    lengths = range(min(len(text), len(stop) - 1), 0, -1)
    return next((n for n in lengths if text.endswith(stop[:n])), 0)


def likeliest(logits: Tensor, token: int, top: int) -> Chosen:
    """What ``logits`` [V] say of ``token`` and of the ``top`` likeliest."""
    logprobs = logits.float().cpu().log_softmax(-1)
    values, ids = logprobs.topk(min(top, len(logprobs)))
    return Chosen(Likely(token, float(logprobs[token])), tuple(map(Likely, ids.tolist(), values.tolist())))


class Writer:
    """Makes an answer's pieces of what the model says, token by token."""

    def __init__(self, model: Transformer, tokenizer: Tokenizer, question: Question) -> None:
        self.question = question
        self.room = question.room(model.config.max_position_embeddings)
        self.finish: Finish | None = None
        self.token = 0  # the last one
        self.row = Row(question.sampling, question.prompt, model.output_size)
        self._characters, self._stop = tokenizer.stream(), StopText(question.stop)
        self._count = 0

    def push(self, token: int, logits: Tensor) -> Piece:
        """The piece of ``token``, chosen from ``logits`` [V]; ``finish`` is set with the last one."""
        self.token = token
        if self.token in self.question.stop_ids:
            return self._end("", ())
        self._count += 1
        top = self.question.top
        chosen = () if top is None else (likeliest(logits, self.token, top),)
        text = self._stop.push(self._characters.push(self.token))
        if self._stop.found or self._count == self.room:
            return self._end(text, chosen)
        return Piece(text, self._count, None, chosen)

    def _end(self, text: str, chosen: tuple[Chosen, ...]) -> Piece:
        if not self._stop.found:
            text += self._stop.push(self._characters.flush()) + self._stop.flush()
        self.finish = "stop" if self._stop.found or self._count < self.room else "length"
        return Piece(text, self._count, self.finish, chosen)
