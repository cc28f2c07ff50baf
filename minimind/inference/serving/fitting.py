"""A conversation or a text that has to fit into the model's positions together with its answer.

Contract. ``error``: what does not fit is refused, in numbers. ``shift``: the oldest goes until the rest leaves room for
the answer that is asked for, but for no more than half of the positions: of a chat whole exchanges, never the system
message nor what comes last; of a text its first tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from minimind.base.defaults import Context
from minimind.inference.serving.errors import ApiError
from minimind.text.chat import Turn, prompt_ids
from minimind.text.tokenizer import Tokenizer


class Fitting:
    """Fits prompts to a model of ``positions``."""

    def __init__(self, tokenizer: Tokenizer, positions: int, context: Context) -> None:
        self.tokenizer, self.positions, self.context = tokenizer, positions, context

    def limit(self, answer: int) -> int:
        """How long a prompt may be when ``answer`` tokens are asked for."""
        if self.context == "error":
            return self.positions - 1
        return self.positions - max(1, min(answer, self.positions // 2))

    def chat(
        self, turns: Sequence[Turn], answer: int, settings: Mapping[str, Any] | None = None
    ) -> tuple[list[int], int]:
        """The prompt of the conversation, and how many of its messages were dropped. ``settings``: for the chat
        template. Raises ApiError 400, UserError as `prompt_ids`."""
        starts = _starts(turns) if self.context == "shift" else [_first(turns)]
        limit = self.limit(answer)
        fitting: tuple[list[int], int] | None = None
        low, high = 0, len(starts) - 1
        while low <= high:  # the later it begins, the shorter it is
            middle = (low + high) // 2 if fitting or low else 0  # most often nothing has to go
            prompt = self._rendered([*turns[: _first(turns)], *turns[starts[middle] :]], limit, settings)
            if isinstance(prompt, list):
                fitting = prompt, starts[middle] - _first(turns)
                high = middle - 1
            else:
                least, low = prompt, middle + 1
        if fitting is None:
            raise self.too_long(least, "messages", limit)
        return fitting

    def text(self, prompt: str | Sequence[int], answer: int) -> list[int]:
        """The ids of a completion's prompt: of a text after bos, of ids as they are. Raises ApiError 400."""
        limit = self.limit(answer)
        if isinstance(prompt, str):
            least = self.tokenizer.least_tokens(prompt)
            if least > limit and self.context == "error":  # before it is tokenized, which would take time and memory
                raise self.too_long(f"at least {least}", "prompt", limit)
            ids = [self.tokenizer.bos_id, *self.tokenizer.encode(prompt)]
            head = 1
        else:
            ids, head = list(prompt), 0
            if outside := [token for token in ids if not 0 <= token < self.tokenizer.vocab_size]:
                size = self.tokenizer.vocab_size
                raise ApiError(400, f"prompt: there is no token {outside[0]}, the vocabulary has {size:,}", "prompt")
        if len(ids) > limit and self.context == "error":
            raise self.too_long(f"{len(ids)}", "prompt", limit)
        return ids if len(ids) <= limit else [*ids[:head], *ids[len(ids) - limit + head :]]

    def too_long(self, tokens: str, param: str, limit: int) -> ApiError:
        """The answer to a prompt that doesn't fit."""
        message = (
            f"the prompt has {tokens} tokens; it may have at most {limit}, "
            f"for the model has {self.positions} positions and the answer needs "
            f"{'one' if self.positions - limit == 1 else self.positions - limit}: shorten it"
        )
        return ApiError(400, message, param, "context_length_exceeded")

    def _rendered(self, turns: Sequence[Turn], limit: int, settings: Mapping[str, Any] | None) -> list[int] | str:
        """The prompt, or how long it is if it is too long."""
        least = sum(self.tokenizer.least_tokens(turn.content) for turn in turns)
        if least > limit:
            return f"at least {least}"
        ids = prompt_ids(turns, self.tokenizer, settings)
        return ids if len(ids) <= limit else f"{len(ids)}"


def _first(turns: Sequence[Turn]) -> int:
    """The first turn after a system message."""
    return 1 if turns[0].role == "system" and len(turns) > 1 else 0


def _starts(turns: Sequence[Turn]) -> list[int]:
    """Where what is kept may begin: as it is, or at a question."""
    first = _first(turns)
    return [i for i in range(first, len(turns)) if i == first or turns[i].role == "user"]
