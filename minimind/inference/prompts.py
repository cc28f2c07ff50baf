"""Reading a batch of prompts into the key/value cache, and the logits of the first token of each answer.

Contract: rows end in the same column (shorter prompts are padded on the left), so that all answers go on in the same
one; what is computed does not depend on the padding. On a CPU prompts of unequal lengths are read as the documents of
one packed row, so padding costs nothing: 16 prompts of 19 to 64 tokens are 664 tokens instead of 1,024. On a GPU they
are read padded, in one product of static shape.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from minimind.model import attention
from minimind.model.ops import linear
from minimind.model.transformer import KVCache, Transformer


def read_prompts(model: Transformer, prompts: Sequence[Sequence[int]], capacity: int) -> tuple[Tensor, KVCache]:
    """Logits [B, output_size] after each prompt, and the cache of ``capacity`` columns that holds them."""
    device, longest = model.output_weight.device, max(map(len, prompts))
    starts = [longest - len(prompt) for prompt in prompts]
    cache = model.new_cache(len(prompts), capacity, torch.tensor(starts, device=device) if any(starts) else None)
    if cache.starts is not None and device.type == "cpu":
        return _read_packed(model, prompts, cache), cache
    padded = [[0] * start + list(prompt) for start, prompt in zip(starts, prompts, strict=True)]
    return model.next_logits(torch.tensor(padded, device=device), cache), cache


def _read_packed(model: Transformer, prompts: Sequence[Sequence[int]], cache: KVCache) -> Tensor:
    ids = torch.tensor([[token for prompt in prompts for token in prompt]])
    packed = PackedPrompts(cache, [len(prompt) for prompt in prompts])
    hidden = model.hidden_states(ids, cache=packed)[0]  # [all tokens, H]
    return linear(hidden[packed.last], model.output_weight[: model.output_size])


class PackedPrompts(KVCache):
    """Writes the documents of one packed row into the rows of ``cache``, at their ends."""

    def __init__(self, cache: KVCache, lengths: list[int]) -> None:
        """``lengths`` of the prompts, in the order of the cache's rows."""
        counts = torch.tensor(lengths)
        self.cache, self.lengths = cache, lengths
        self.last = counts.cumsum(0) - 1  # [B], where each prompt ends in the packed row
        self.rows = torch.repeat_interleave(torch.arange(len(lengths)), counts)
        self.position_ids = torch.cat([torch.arange(length) for length in lengths])
        self.columns = self.position_ids + (counts.max() - counts)[self.rows]

    def positions(self, count: int) -> Tensor:
        """Each prompt counts from 0: [1, all tokens]."""
        return self.position_ids[None]

    def plan(self, count: int) -> attention.AttentionPlan:
        """Causal attention within each prompt."""
        return attention.Runs(self.lengths)

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Keep them for the answers; the prompts attend to the packed ones themselves."""
        keys, values = self.cache.keys[layer], self.cache.values[layer]
        keys[self.rows, self.columns] = k[0].to(keys.dtype)
        values[self.rows, self.columns] = v[0].to(values.dtype)
        return k, v

    def advance(self, count: int) -> None:
        """All rows are filled up to the longest prompt."""
        self.cache.advance(max(self.lengths))
