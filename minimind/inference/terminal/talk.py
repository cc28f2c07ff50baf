"""A conversation with a model: what was said, how answers are made, and what of it fits into the model.

Contract. A question that does not fit changes nothing. A conversation that outgrows the model's positions loses its
oldest exchanges, never the system message or the last question. Room is kept for the longest answer, but for at most
half of the positions.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from minimind.base.errors import UserError
from minimind.inference.sampling import Sampling
from minimind.text.chat import Turn, prompt_ids

if TYPE_CHECKING:
    from minimind.model.transformer import Transformer
    from minimind.text.tokenizer import Tokenizer


class Talk:
    """``turns``: all that was asked and answered; ``sampling`` and ``system`` may be changed between two questions."""

    def __init__(self, model: Transformer, tokenizer: Tokenizer, sampling: Sampling, system: str | None = None) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.sampling, self.system = sampling, system
        self.turns: list[Turn] = []
        self.forgotten = 0
        """Turns, from the first on, that the last prompt left out."""

    @property
    def stop_ids(self) -> Collection[int]:
        return self.tokenizer.stop_ids

    def reset(self) -> None:
        """Forget what was said; the system message and the settings stay."""
        self.turns, self.forgotten = [], 0

    def prompt(self, question: str) -> list[int]:
        """The ids that ask ``question`` after all that was said. Raises UserError if it is too long by itself."""
        head = [Turn("system", self.system)] if self.system else []
        asked = [*head, *self.turns, Turn("user", question)]
        kept, ids = fitting(asked, self.tokenizer, self.room)
        self.forgotten = len(asked) - len(kept)
        return ids

    def add(self, question: str, answer: str) -> None:
        self.turns += [Turn("user", question), Turn("assistant", answer)]

    def take_back(self) -> str | None:
        """Forget the last question and its answer; the question, None if nothing was asked."""
        if not self.turns:
            return None
        question = self.turns[-2].content
        del self.turns[-2:]
        return question

    @property
    def room(self) -> int:
        """Tokens that a prompt may have."""
        positions = self.model.config.max_position_embeddings
        return positions - min(self.sampling.max_new_tokens, positions // 2)


def fitting(turns: Sequence[Turn], tokenizer: Tokenizer, limit: int) -> tuple[list[Turn], list[int]]:
    """The turns that fit into `limit` tokens, the oldest exchanges left out, and their prompt.

    Raises UserError when the last question alone does not fit.
    """
    head = [turn for turn in turns[:1] if turn.role == "system"]
    rest = list(turns[len(head) :])
    while len(ids := prompt_ids([*head, *rest], tokenizer)) > limit:
        if len(rest) <= 1:
            raise UserError(f"the question has {len(ids)} tokens, {limit} are left for it: ask a shorter one")
        rest = rest[2:]  # a question and its answer
    return [*head, *rest], ids
