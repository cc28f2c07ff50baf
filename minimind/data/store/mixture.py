"""Several sources with weights: which packed rows make an epoch.

Contract: the documents of each source are packed on their own, so a row holds one source. The rows of a source are
read pass after pass, each pass in an order of its own, and an epoch takes the next ``round(weight * rows)`` of them
(one at least) from every source. Weight 2 trains each row twice an epoch; 0.5 trains half of them and the other half
in the next epoch, so that nothing is left out for good. All of it depends on seed and epoch only.

Known weakness: the sources share one store, so a changed or added one has all of them tokenised again. Changing
a weight costs nothing: the store does not know it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from minimind.base.errors import UserError
from minimind.data.store.packing import Ints, Rows, pack, shuffled
from minimind.data.store.store import TokenStore

_COUNTS = ("records", "rejected", "documents", "tokens", "trainable_tokens")


@dataclass(frozen=True)
class Part:
    """A source as the user named it, its weight, and how many files of the store it is (parts follow in order)."""

    path: str
    weight: float
    files: int


class Mixture:
    """The packed rows of a store whose files belong to ``parts``. UserError if they are not the store's files."""

    def __init__(self, store: TokenStore, parts: Sequence[Part], row_length: int, seed: int) -> None:
        self.parts, self._seed = tuple(parts), seed
        self._files: list[Any] = list(store.manifest["sources"])
        if sum(part.files for part in parts) != len(self._files):
            raise UserError(
                f"{store.path}: holds {len(self._files)} files, not those of the {len(parts)} sources; "
                "did a directory change meanwhile? Start again"
            )
        part_of_file = np.repeat(np.arange(len(parts)), [part.files for part in parts])
        part_of_document = part_of_file[store.source_files]
        packed = [
            _pack_some(store, np.flatnonzero(part_of_document == number), row_length, seed)
            for number in range(len(parts))
        ]
        self.rows = _joined(packed)
        self._sizes = [rows.num_rows for rows in packed]
        self._row_ends = np.cumsum(self._sizes)
        self._taken = [max(1, round(part.weight * size)) for part, size in zip(parts, self._sizes, strict=True)]

    @property
    def num_rows(self) -> int:
        """Rows of one epoch, repeated ones counted as often as they occur."""
        return sum(self._taken)

    @property
    def epoch_tokens(self) -> int:
        """Trainable tokens of an epoch; with fractional weights the mean over epochs, rounded."""
        shares = zip(self._taken, self._sizes, self.records(), strict=True)
        tokens: float = sum(taken / size * about["trainable_tokens"] for taken, size, about in shares)
        return round(tokens)

    @property
    def names(self) -> list[str]:
        """A name for each source, no two alike: its path, numbered where one is given twice."""
        paths = [part.path for part in self.parts]
        return [
            path if paths.count(path) == 1 else f"{path} ({paths[: i + 1].count(path)})" for i, path in enumerate(paths)
        ]

    def sources(self, rows: Ints) -> Ints:
        """The source of each of these rows; -1 for an empty one (-1)."""
        return np.where(rows < 0, -1, np.searchsorted(self._row_ends, rows, side="right"))

    def epoch(self, number: int) -> Ints:
        """The rows of epoch ``number`` (0-based) in training order; a row may occur several times."""
        chosen, first = [], 0
        for part, (size, taken) in enumerate(zip(self._sizes, self._taken, strict=True)):
            chosen.append(first + self._stretch(part, size, number * taken, taken))
            first += size
        rows = np.concatenate(chosen)
        return rows[shuffled(len(rows), self._seed, number)]

    def records(self) -> list[dict[str, Any]]:
        """A plain record of each source: path, weight, files, rows, rows an epoch, and the counts of preparing it."""
        described, first = [], 0
        for part, size, taken in zip(self.parts, self._sizes, self._taken, strict=True):
            files = self._files[first : first + part.files]
            counts = {name: sum(file[name] for file in files) for name in _COUNTS}
            described.append({**asdict(part), "rows": size, "epoch_rows": taken, **counts})
            first += part.files
        return described

    def _stretch(self, part: int, size: int, start: int, count: int) -> Ints:
        """``count`` rows from position ``start`` of the endless row of passes over one source."""
        passes = range(start // size, (start + count - 1) // size + 1)
        rows = np.concatenate([shuffled(size, self._seed, part, number, 2) for number in passes])
        skipped = start - passes.start * size
        return rows[skipped : skipped + count]


def _pack_some(store: TokenStore, documents: Ints, row_length: int, seed: int) -> Rows:
    """Rows of these documents, which keep their numbers."""
    rows = pack(store.lengths[documents] - 1, row_length, seed)
    return Rows(rows.row_offsets, documents[rows.document], rows.start, rows.length)


def _joined(parts: Sequence[Rows]) -> Rows:
    """The rows of all parts, one part after the other."""
    ends = np.cumsum([0, *(len(rows.document) for rows in parts)])
    offsets = [rows.row_offsets[:-1] + end for rows, end in zip(parts, ends[:-1], strict=True)]
    return Rows(
        np.concatenate([*offsets, ends[-1:]]),
        np.concatenate([rows.document for rows in parts]),
        np.concatenate([rows.start for rows in parts]),
        np.concatenate([rows.length for rows in parts]),
    )
