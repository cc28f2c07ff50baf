"""Continuous batching: one loop makes the answers to questions that come at any time.

Contract. A question's answer doesn't depend on what is answered beside it: its prompt is read alone, its tokens are
chosen by its own generator, and each row of the cache is attended to as if alone (slots.py). An answer that ends makes
room at once.

Measured on two AVX2 cores, 26M in fp32: see docs/serving.md. Weakness: while a long prompt is read, the other answers
wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from minimind.inference.answers import Chosen, Likely, Piece, Question, Writer, likeliest
from minimind.inference.choosing import choose
from minimind.inference.decoding import PAYS_FROM, decode_step
from minimind.inference.generation import require_room
from minimind.inference.slots import Slots
from minimind.model.ops import linear
from minimind.model.transformer import Transformer
from minimind.text.tokenizer import Tokenizer

ROWS = 16
CELLS = 65_536  # columns of all rows together, but for one row alone
SCORED = 128  # positions whose logits are held at once


def pieces(model: Transformer, tokenizer: Tokenizer, question: Question) -> Iterator[Piece]:
    """The answer to one question, made alone. Raises UserError for an empty or too long prompt."""
    batch = Batch(model, tokenizer)
    _, first = batch.add(question)
    yield first
    while batch.writers:
        yield from (piece for _, piece in batch.step())


class Batch:
    """The answers that are being made. Use it within one thread."""

    def __init__(self, model: Transformer, tokenizer: Tokenizer) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.writers: list[Writer] = []  # one a row of the cache
        self._slots = Slots(model)
        self._step: tuple[int, Callable[[Tensor], Tensor]] | None = None  # for a cache of as many columns

    def has_room(self, question: Question) -> bool:
        """Whether one more answer can be made beside the others."""
        rows = len(self.writers) + 1
        columns = max(self._slots.capacity, self._columns(question))
        return rows == 1 or (rows <= ROWS and rows * columns <= CELLS)

    @torch.inference_mode()
    def add(self, question: Question) -> tuple[Writer, Piece]:
        """Read the prompt; the first piece. Raises UserError for a prompt that is empty or too long."""
        require_room(self.model, len(question.prompt))
        writer = Writer(self.model, self.tokenizer, question)
        if not writer.room and not question.echo:
            return writer, Piece("", 0, "length")
        cache = self.model.new_cache(1, len(question.prompt))
        ids = torch.tensor([question.prompt], device=self.model.output_weight.device)
        hidden = self.model.hidden_states(ids, cache=cache)[0]  # [T, H]
        echoed = self._echo(question, hidden) if question.echo else Piece("", 0)
        if not writer.room:
            return writer, echoed + Piece("", 0, "length")
        logits = self._logits(hidden[-1:])
        piece = echoed + writer.push(choose([writer.row], logits)[0], logits[0])
        if writer.finish is None:
            self.writers.insert(self._slots.put(cache, self._columns(question)), writer)
        return writer, piece

    @torch.inference_mode()
    def step(self) -> list[tuple[Writer, Piece]]:
        """One more token for each answer."""
        if self._step is None or self._step[0] != self._slots.capacity:
            # However short the answers: another answer will want the weights as they are laid out now.
            self._step = self._slots.capacity, decode_step(self.model, self._slots, PAYS_FROM)
        tokens = torch.tensor([writer.token for writer in self.writers], device=self.model.output_weight.device)
        logits = self._step[1](tokens).cpu()
        chosen = choose([writer.row for writer in self.writers], logits)
        rows = zip(self.writers, chosen, logits, strict=True)
        made = [(writer, writer.push(token, row)) for writer, token, row in rows]
        for writer, piece in made:
            if piece.finish is not None:
                self.drop(writer)
        return made

    def drop(self, writer: Writer) -> None:
        """End an answer; nothing if it has ended."""
        if writer not in self.writers:
            return
        row = self.writers.index(writer)
        self._slots.drop(row)
        del self.writers[row]

    def _columns(self, question: Question) -> int:
        return len(question.prompt) + question.room(self.model.config.max_position_embeddings)

    def _logits(self, hidden: Tensor) -> Tensor:
        """``hidden`` [T, H] -> logits [T, output_size], on the CPU."""
        return linear(hidden, self.model.output_weight[: self.model.output_size]).cpu()

    def _echo(self, question: Question, hidden: Tensor) -> Piece:
        """The prompt as a piece, with what the model says of each of its tokens but the first."""
        text = self.tokenizer.decode(question.prompt)
        if question.top is None:
            return Piece(text, 0)
        chosen = [Chosen(Likely(question.prompt[0], None), ())]
        for start in range(0, len(question.prompt) - 1, SCORED):
            logits = self._logits(hidden[start : min(start + SCORED, len(question.prompt) - 1)])
            following = question.prompt[start + 1 : start + 1 + len(logits)]
            chosen += [likeliest(row, token, question.top) for row, token in zip(logits, following, strict=True)]
        return Piece(text, 0, None, tuple(chosen))
