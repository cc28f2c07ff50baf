"""One answer at a time from one model, as text that arrives in pieces.

Contract. Answers are made one after the other, in the order in which they were asked for, by one thread (PyTorch keeps
a thread pool for each thread that calls it). A piece is whole characters. No part of a stop string is ever in one.
An answer whose reader has gone ends within a token, or, while the prompt is read, with the prompt.

Weakness: a reader that neither reads nor leaves holds up the others, once the buffers of its connection are full, until
listener.py closes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

from minimind.inference.generation import generate
from minimind.inference.sampling import Sampling
from minimind.model.transformer import Transformer
from minimind.text.tokenizer import Tokenizer

Finish = Literal["stop", "length"]


@dataclass(frozen=True)
class Piece:
    """New text (may be empty), the tokens made so far, and in the last piece why the answer ended."""

    text: str
    tokens: int
    finish: Finish | None = None


@dataclass(frozen=True)
class Question:
    """Prompt ids, how to choose tokens, and what ends the answer: token ids and strings (none of them empty)."""

    prompt: Sequence[int]
    sampling: Sampling
    stop_ids: Collection[int]
    stop: Sequence[str] = ()


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
        kept = max((_overlap(text, stop) for stop in self.stops), default=0)
        self.held = text[len(text) - kept :]
        return text[: len(text) - kept]

    def flush(self) -> str:
        """What was held back for nothing."""
        rest, self.held = self.held, ""
        return rest


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of ``text`` that ``stop`` begins with, without being all of it."""
    lengths = range(min(len(text), len(stop) - 1), 0, -1)
    return next((n for n in lengths if text.endswith(stop[:n])), 0)


def pieces(model: Transformer, tokenizer: Tokenizer, question: Question) -> Generator[Piece, None, None]:
    """The answer, a piece a token and a last one that says why it ended. Raises UserError as ``generate``."""
    sampling, characters, stop = question.sampling, tokenizer.stream(), StopText(question.stop)
    room = min(sampling.max_new_tokens, model.config.max_position_embeddings - len(question.prompt))
    tokens = generate(model, question.prompt, sampling, stop_ids=question.stop_ids)
    count = 0
    for count, token in enumerate(tokens, 1):
        text = stop.push(characters.push(token))
        if stop.found:
            yield Piece(text, count, "stop")
            return
        yield Piece(text, count)
    rest = stop.push(characters.flush()) + stop.flush()
    yield Piece(rest, count, "stop" if stop.found or count < room else "length")


class Speaker:
    """A model that answers one question at a time. Use it within one event loop."""

    def __init__(self, model: Transformer, tokenizer: Tokenizer) -> None:
        self.model, self.tokenizer = model, tokenizer
        self._turn = asyncio.Lock()  # its waiters are served in order
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="generation")

    async def answer(self, question: Question, gone: Callable[[], Awaitable[bool]]) -> AsyncGenerator[Piece, None]:
        """The pieces of an answer. ``gone`` is asked before each: is there nobody left to read it?"""
        loop = asyncio.get_running_loop()
        async with self._turn:
            made = pieces(self.model, self.tokenizer, question)
            try:
                while not await gone():
                    piece = await loop.run_in_executor(self._thread, next, made, None)
                    if piece is None:
                        return
                    yield piece
            finally:  # in the thread, which may be at work on it: a cache of keys and values is freed now, not later
                self._thread.submit(made.close)
