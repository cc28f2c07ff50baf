"""Generating tokens: a preallocated key/value cache, a streaming iterator, and many prompts at once.

Contract: a stop id ends the answer and is not part of it. Temperature 0 takes the likeliest token, and with
the cache gives the tokens that recomputing everything would give. The same seed gives the same tokens on
the same machine; row i of a batch draws from its own generator (seed + i), so row 0 equals the prompt alone
and no row depends on its neighbours' luck. (Sums may be rounded differently for another number of rows.)

In a batch, rows that have ended are carried along until half have ended; then the others go on alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

import torch
from torch import Tensor

from minimind.base.errors import UserError
from minimind.inference.choosing import Row, choose
from minimind.inference.decoding import decode_step
from minimind.inference.loading import load_model
from minimind.inference.prompts import read_prompts
from minimind.inference.sampling import USUAL, Sampling
from minimind.model.transformer import Transformer

__all__ = ["Sampling", "generate", "generate_batch", "load_model"]


def _room(model: Transformer, prompts: Sequence[Sequence[int]], max_new_tokens: int) -> tuple[int, int]:
    """Longest prompt and how many tokens may follow it within the model's positions."""
    longest = max(map(len, prompts))
    require_room(model, min(map(len, prompts)))
    require_room(model, longest)
    return longest, min(max_new_tokens, model.config.max_position_embeddings - longest)


def require_room(model: Transformer, prompt: int) -> None:
    """Raises UserError for a prompt of 0 tokens, or of so many that none can follow."""
    limit = model.config.max_position_embeddings
    if prompt == 0:
        raise UserError("the prompt is empty: give at least one token, for example the tokenizer's bos")
    if prompt >= limit:
        raise UserError(f"the prompt has {prompt} tokens, the model's limit is {limit}: shorten it")


class _Batch:
    """The answers of a batch, and which of them each row of the cache belongs to."""

    def __init__(self, choosers: list[Row], stops: frozenset[int]) -> None:
        self.choosers, self.stops = choosers, stops
        self.answers: list[list[int]] = [[] for _ in choosers]
        self.owners = list(range(len(choosers)))  # the answer of each row
        self.ended: set[int] = set()

    def next(self, logits: Tensor) -> list[int]:
        """The next token of each row of ``logits`` [B, V], added to its answer if that has not ended."""
        tokens = choose([self.choosers[owner] for owner in self.owners], logits)
        for owner, token in zip(self.owners, tokens, strict=True):
            if token in self.stops:
                self.ended.add(owner)
            elif owner not in self.ended:
                self.answers[owner].append(token)
        return tokens

    def going(self) -> list[int]:
        """The rows whose answers have not ended."""
        return [row for row, owner in enumerate(self.owners) if owner not in self.ended]

    def keep(self, rows: list[int]) -> None:
        """Only these rows are left, in this order."""
        self.owners = [self.owners[row] for row in rows]


def generate(
    model: Transformer,
    prompt_ids: Sequence[int],
    sampling: Sampling = USUAL,
    *,
    stop_ids: Collection[int] = (),
) -> Iterator[int]:
    """The answer's tokens one by one, without the stop id; fewer than ``max_new_tokens`` at the model's last position.

    Raises UserError (at once, not at the first token) for an empty or too long prompt.
    """
    longest, count = _room(model, [prompt_ids], sampling.max_new_tokens)
    row = Row(sampling, prompt_ids, model.output_size)
    return _stream(model, list(prompt_ids), longest + count, count=count, row=row, stop_ids=frozenset(stop_ids))


def _stream(
    model: Transformer, prompt: list[int], capacity: int, count: int, row: Row, stop_ids: frozenset[int]
) -> Iterator[int]:
    cache = model.new_cache(1, capacity)
    pending = torch.tensor([prompt], device=model.output_weight.device)
    step: Callable[[Tensor], Tensor] | None = None  # made after the first token, which needs none
    for _ in range(count):
        # Not around the yield: inference mode must not leak into the caller's code between two tokens.
        with torch.inference_mode():
            logits = step(pending) if step else model.next_logits(pending, cache)
            (token,) = choose([row], logits)
        if token in stop_ids:
            return
        yield token
        step = step or decode_step(model, cache, count - 1)
        pending = torch.tensor([token], device=pending.device)


@torch.inference_mode()
def generate_batch(
    model: Transformer,
    prompts: Sequence[Sequence[int]],
    sampling: Sampling = USUAL,
    *,
    stop_ids: Collection[int] = (),
) -> list[list[int]]:
    """The answers to prompts of any lengths, computed together, without their stop ids. Raises as ``generate``."""
    if not prompts:
        return []
    longest, count = _room(model, prompts, sampling.max_new_tokens)
    if count < 1:
        return [[] for _ in prompts]
    logits, cache = read_prompts(model, prompts, longest + count)  # [B, V]
    choosers = [Row(sampling, prompt, model.output_size, i) for i, prompt in enumerate(prompts)]
    batch = _Batch(choosers, frozenset(stop_ids))
    step = decode_step(model, cache, count - 1)
    while True:
        tokens = batch.next(logits)
        count -= 1
        going = batch.going()
        if not going or not count:
            return batch.answers
        if 2 * len(going) <= len(tokens):
            cache.keep(going)
            batch.keep(going)
            tokens = [tokens[row] for row in going]
        logits = step(torch.tensor(tokens, device=model.output_weight.device))
