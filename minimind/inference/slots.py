"""The key/value cache of answers that come and go: each row has its own length, and begins at column 0.

Contract. What a row attends to, and in which order the sums are taken, does not depend on the other rows: attention is
computed row by row on a CPU. So an answer made beside others is the one made alone, as far as the products by the
weights don't depend on the number of rows either (FBGEMM's and oneDNN's packed forms here don't, where this was
looked at: tests/inference/test_batching.py). On a GPU all rows are one product, with a mask.

Rows are kept dense: where one leaves, the last one takes its place.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from minimind.model import attention
from minimind.model.transformer import KVCache, Transformer

COLUMNS = 256  # columns are taken in steps of as many
LEAST_ROWS = 4


@dataclass(frozen=True)
class EachRow:
    """One new token a row on a CPU, ``lengths`` columns each: the calls that the row would make alone."""

    lengths: list[int]

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        alone = attention.OneTokenOnCpu(None)
        outputs = [
            alone.attend(q[row : row + 1], k[row : row + 1, :length], v[row : row + 1, :length])
            for row, length in enumerate(self.lengths)
        ]
        return torch.cat(outputs) if len(outputs) > 1 else outputs[0]


class Slots(KVCache):
    """Keys and values of ``rows`` answers. ``capacity``: columns; both grow when a row needs more."""

    def __init__(self, model: Transformer) -> None:
        self._model = model
        self._empty()

    def _empty(self) -> None:
        self.rows = self.capacity = 0
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self.lengths: list[int] = []
        self._index = torch.empty(0, dtype=torch.long)  # 0, 1, ... of the rows that are there
        self._columns = torch.empty(0, dtype=torch.long)  # [rows], where each writes next

    def put(self, prompt: KVCache, columns: int) -> None:
        """One more row, the last: the only one of ``prompt``, which may grow to ``columns``."""
        self._reserve(len(self.lengths) + 1, columns)
        row, length = len(self.lengths), prompt.length
        for mine, theirs in zip((*self.keys, *self.values), (*prompt.keys, *prompt.values), strict=True):
            mine[row, :length] = theirs[0, :length]
        self.lengths.append(length)
        self._changed()

    def drop(self, row: int) -> None:
        """The row leaves, and the last one takes its place. The memory goes with the last one."""
        last = len(self.lengths) - 1
        if row != last:
            length = self.lengths[last]
            for stored in (*self.keys, *self.values):
                stored[row, :length] = stored[last, :length].clone()
            self.lengths[row] = length
        self.lengths.pop()
        if self.lengths:
            self._changed()
        else:
            self._empty()

    def positions(self, count: int) -> Tensor:
        """[rows, 1]; ``count`` is 1."""
        return self._columns[:, None]

    def plan(self, count: int) -> attention.AttentionPlan:
        """How the next token of each row attends to the row so far and to itself."""
        if not self._on_cpu:
            seen = torch.arange(max(self.lengths) + 1, device=self._columns.device) <= self._columns[:, None]
            return attention.OneToken(seen[:, None, None])
        return EachRow([length + 1 for length in self.lengths])

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store [rows, 1, kv_heads, D], each row after its end; returns the columns up to the longest row's."""
        rows, end = len(self.lengths), max(self.lengths) + 1
        keys, values = self.keys[layer], self.values[layer]
        keys[self._index, self._columns] = k[:, 0].to(keys.dtype)
        values[self._index, self._columns] = v[:, 0].to(values.dtype)
        return keys[:rows, :end], values[:rows, :end]

    def advance(self, count: int) -> None:
        """All layers have stored one more column of each row."""
        self.lengths = [length + count for length in self.lengths]
        self._columns = self._columns + count

    @property
    def _on_cpu(self) -> bool:
        return self._model.output_weight.device.type == "cpu"

    def _changed(self) -> None:
        device = self._model.output_weight.device
        self._index = torch.arange(len(self.lengths), device=device)
        self._columns = torch.tensor(self.lengths, device=device)

    def _reserve(self, rows: int, columns: int) -> None:
        """Memory for as many, in steps: what is there is copied."""
        if rows <= self.rows and columns <= self.capacity:
            return
        old = (*self.keys, *self.values)
        self.rows = max(self.rows, LEAST_ROWS, rows if rows <= self.rows else 2 * self.rows)
        self.capacity = max(self.capacity, -(-columns // COLUMNS) * COLUMNS)
        new = self._model.new_cache(self.rows, self.capacity)
        self.keys, self.values = new.keys, new.values
        for row, length in enumerate(self.lengths):
            for before, after in zip(old, (*self.keys, *self.values), strict=True):
                after[row, :length] = before[row, :length]
