"""Generating tokens: a preallocated key/value cache, a streaming iterator, and many prompts at once.

Contract: a stop id ends the answer and is not part of it. Temperature 0 takes the likeliest token, and with
the cache gives the tokens that recomputing everything would give. The same seed gives the same tokens on
the same machine; row i of a batch draws from its own generator (seed + i), so row 0 equals the prompt alone
and no row depends on its neighbours' luck. (Sums may be rounded differently for another number of rows.)

In a batch, rows that have ended are carried along until half have ended; then the others go on alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from minimind.base.errors import UserError
from minimind.inference.decoding import decode_step
from minimind.inference.loading import load_model
from minimind.inference.prompts import read_prompts
from minimind.inference.sampling import USUAL, Sampling
from minimind.model.transformer import Transformer

__all__ = ["Sampling", "choose", "generate", "generate_batch", "load_model"]


def choose(sampling: Sampling, logits: Tensor, seen: Tensor | None, generator: torch.Generator | None) -> int:
    """``logits`` [V], ``seen`` boolean [V] (tokens so far; None: not needed) -> a token id.

    Repetition penalty, temperature, top-k, top-p, in this order (as transformers). Computed on the CPU: a few thousand
    numbers are there sooner than a GPU has started the first sort. Raises UserError for logits that are NaN.
    """
    logits = logits.float().cpu()
    if sampling.repetition_penalty != 1.0 and seen is not None:
        weaker = torch.where(logits > 0, logits / sampling.repetition_penalty, logits * sampling.repetition_penalty)
        logits = torch.where(seen, weaker, logits)
    if sampling.temperature == 0:
        return int(logits.argmax())
    sums = _probabilities(sampling, logits / sampling.temperature).cumsum(0, dtype=torch.float64)
    total = float(sums[-1])
    if total != total:
        raise UserError("the model's output is not a number (NaN): its weights are broken")
    # One uniform number decides, a tenth of the time of torch.multinomial, which draws one for every token.
    below = float(torch.rand((), dtype=torch.float64, generator=generator)) * total
    return int(torch.searchsorted(sums, below, right=True).clamp_(max=len(sums) - 1))


def _probabilities(sampling: Sampling, logits: Tensor) -> Tensor:
    """Softmax [V] over what top-k and top-p leave; the token that crosses ``top_p`` stays, so there is always one."""
    if 0 < sampling.top_k < logits.shape[-1]:
        logits = logits.masked_fill(logits < logits.topk(sampling.top_k).values[-1], -torch.inf)
    probabilities = logits.softmax(-1)
    return probabilities if sampling.top_p == 1 else _top_p(probabilities, sampling.top_p)


def _top_p(probabilities: Tensor, mass: float) -> Tensor:
    """``probabilities`` [V], zero outside the likeliest that reach ``mass``; of equal ones the lower ids first.

    Those below ``(1 - mass) / V`` add up to less than ``1 - mass``, so they are not among them: most of a vocabulary
    needs no sorting. By the values alone, which numpy sorts 25 times faster than torch sorts values with their places.
    """
    values = probabilities.numpy()
    candidates = np.sort(values[~(values < (1 - mass) / len(values))])[::-1]
    count = min(int(np.searchsorted(candidates.cumsum(dtype=np.float64), mass)) + 1, len(candidates))
    least = float(candidates[count - 1])
    kept = probabilities > least
    last = (probabilities == least).nonzero()[:, 0]
    kept[last[: count - int(kept.sum())]] = True
    return probabilities * kept


def _likeliest(logits: Tensor) -> list[int]:
    """The likeliest token of each row of ``logits`` [B, V]."""
    logits = logits.float()
    # numpy's argmax takes a twelfth of the time of torch's on a CPU.
    found = logits.numpy().argmax(-1) if logits.device.type == "cpu" else logits.argmax(-1)
    tokens: list[int] = found.tolist()
    return tokens


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


class Row:
    """The state of one answer: its generator, the tokens seen (only with a repetition penalty) and the answer."""

    def __init__(self, sampling: Sampling, prompt: Sequence[int], vocab: int, row: int = 0) -> None:
        self.sampling = sampling
        self.generator = torch.Generator().manual_seed(sampling.seed + row)
        self.seen: Tensor | None = None
        if sampling.repetition_penalty != 1.0:
            self.seen = torch.zeros(vocab, dtype=torch.bool)
            self.seen[torch.tensor(list(prompt))] = True

    def next(self, logits: Tensor) -> int:
        token = choose(self.sampling, logits, self.seen, self.generator)
        if self.seen is not None:
            self.seen[token] = True
        return token


class _Batch:
    """The answers of a batch, and which of them each row of the cache belongs to."""

    def __init__(self, choosers: list[Row], stops: frozenset[int]) -> None:
        self.choosers, self.stops = choosers, stops
        self.answers: list[list[int]] = [[] for _ in choosers]
        self.owners = list(range(len(choosers)))  # the answer of each row
        self.ended: set[int] = set()
        sampling = choosers[0].sampling
        self.greedy = sampling.temperature == 0 and sampling.repetition_penalty == 1.0

    def next(self, logits: Tensor) -> list[int]:
        """The next token of each row of ``logits`` [B, V], added to its answer if that has not ended."""
        # One call for all rows where the choice needs no state: the usual case when answers are scored.
        tokens = (
            _likeliest(logits)
            if self.greedy
            else [
                0 if owner in self.ended else self.choosers[owner].next(row)
                for owner, row in zip(self.owners, logits.cpu(), strict=True)
            ]
        )
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
            token = row.next(logits[0])
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
