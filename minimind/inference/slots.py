"""The key/value cache of answers that come and go: each row has its own length, and begins at column 0.

Contract. What a row attends to, and in which order the sums are taken, does not depend on the other rows: on a CPU its
columns are taken to the next multiple of `PADDED`, and rows of as many are one batch of products, each of which has the
shape that it has for a row alone. So an answer made beside others is the one made alone, as far as the products by the
weights don't depend on the number of rows either (FBGEMM's and oneDNN's packed forms here don't, where this was
looked at: tests/inference/test_batching.py). On a GPU all rows are one product, with a mask.

Rows are kept dense and the longest first, so that those of one batch are beside each other. All grow alike, so only one
that comes or leaves moves others.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

from minimind.model import attention
from minimind.model.transformer import KVCache, Transformer

COLUMNS = 256  # memory is taken in steps of as many columns
PADDED = 64  # and attention computed
LEAST_ROWS = 4


@dataclass(frozen=True)
class ByLength:
    """One new token a row on a CPU: for each batch its first row, the row after it, its columns and what hides those
    after a row's end (see ``OneTokenOnCpu``)."""

    batches: list[tuple[int, int, int, Tensor]]

    @classmethod
    def of(cls, lengths: list[int], kv_heads: int) -> ByLength:
        """For rows of as many columns, the longest first."""
        batches, start = [], 0
        for columns, group in itertools.groupby(-(-length // PADDED) * PADDED for length in lengths):
            end = start + len(list(group))
            after = torch.arange(columns) >= torch.tensor(lengths[start:end])[:, None]
            hidden = torch.zeros(after.shape).masked_fill_(after, torch.finfo(torch.float32).min)
            batches.append((start, end, columns, hidden.repeat_interleave(kv_heads, 0)[:, None]))
            start = end
        return cls(batches)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        outputs = [
            attention.OneTokenOnCpu(hidden).attend(q[start:end], k[start:end, :columns], v[start:end, :columns])
            for start, end, columns, hidden in self.batches
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

    def put(self, prompt: KVCache, columns: int) -> int:
        """One more row: the only one of ``prompt``, which may grow to ``columns``. Its place; later ones move."""
        length = prompt.length
        row = sum(other >= length for other in self.lengths)
        self._reserve(len(self.lengths) + 1, columns)
        self._move(row, len(self.lengths), 1)
        for mine, theirs in zip((*self.keys, *self.values), (*prompt.keys, *prompt.values), strict=True):
            mine[row, :length] = theirs[0, :length]
        self.lengths.insert(row, length)
        self._changed()
        return row

    def drop(self, row: int) -> None:
        """The row leaves, and later ones move. The memory goes with the last one."""
        self._move(row + 1, len(self.lengths), -1)
        del self.lengths[row]
        if self.lengths:
            self._changed()
        else:
            self._empty()

    def _move(self, start: int, end: int, by: int) -> None:
        """Rows from ``start`` to before ``end`` go ``by`` rows further."""
        if start < end:
            length = self.lengths[start]  # the longest of them
            for stored in (*self.keys, *self.values):
                stored[start + by : end + by, :length] = stored[start:end, :length].clone()

    def positions(self, count: int) -> Tensor:
        """[rows, 1]; ``count`` is 1."""
        return self._columns[:, None]

    def plan(self, count: int) -> attention.AttentionPlan:
        """How the next token of each row attends to the row so far and to itself."""
        if not self._on_cpu:
            seen = torch.arange(self.lengths[0] + 1, device=self._columns.device) <= self._columns[:, None]
            return attention.OneToken(seen[:, None, None])
        return ByLength.of([length + 1 for length in self.lengths], self._model.config.num_key_value_heads)

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store [rows, 1, kv_heads, D], each row after its end; returns all columns, on a GPU those that are used."""
        rows, end = len(self.lengths), self.capacity if self._on_cpu else self.lengths[0] + 1
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
