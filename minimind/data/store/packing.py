"""Documents -> rows: pure functions over lengths, numpy only.

A document of n tokens gives n - 1 predictions (inputs tokens[:-1], targets tokens[1:]); all lengths here count
predictions. A document longer than a row is split into full rows and one rest. Pieces are packed best-fit decreasing:
the longest piece goes first, each into the fullest row that still takes it. A piece is never split to fill a gap, so
every prediction occurs exactly once and a short document always has its whole context.

Best fit is run over counts of equal lengths instead of single pieces, with the same result up to ties
between equally full rows: after a piece of length L went into the fullest row that takes it, that row stays
the fullest for the next piece of length L for as long as it takes one. The work grows with the number of
different lengths, so a million documents take about a second.

Known weakness: lengths just above half a row leave gaps that no order can fill; `Rows.fill` says how much.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Rows:
    """Rows of pieces: row r holds pieces row_offsets[r] to row_offsets[r + 1], in this order.

    row_offsets int64 [rows + 1]; per piece: document int64, start int32 and length int32 in predictions of
    that document.
    """

    row_offsets: Ints
    document: Ints
    start: npt.NDArray[np.int32]
    length: npt.NDArray[np.int32]

    @property
    def num_rows(self) -> int:
        return len(self.row_offsets) - 1

    def fill(self, row_length: int) -> float:
        """Share of the rows' positions that hold a prediction; 1.0 for no rows."""
        capacity = self.num_rows * row_length
        return int(self.length.sum(dtype=np.int64)) / capacity if capacity else 1.0


def pack(lengths: npt.ArrayLike, row_length: int, seed: int) -> Rows:
    """Pack documents of these many predictions into rows of `row_length`. Documents of length 0 have no place.

    A pure function: the seed only decides between pieces of equal length and the order of the rows.
    ValueError for a negative length or a row length below 1.
    """
    document, start, length = split(np.asarray(lengths, np.int64), row_length)
    order = shuffled(len(document), seed)
    order = order[np.argsort(-length[order], kind="stable")]
    sizes, counts = np.unique(-length[order], return_counts=True)
    row = _best_fit(-sizes, counts, row_length)
    num_rows = int(row.max()) + 1 if len(row) else 0
    row = np.argsort(shuffled(num_rows, seed, 1))[row]
    by_row = np.argsort(row, kind="stable")
    offsets = np.zeros(num_rows + 1, np.int64)
    np.cumsum(np.bincount(row, minlength=num_rows), out=offsets[1:])
    piece = order[by_row]
    return Rows(offsets, document[piece], start[piece].astype(np.int32), length[piece].astype(np.int32))


def split(lengths: Ints, row_length: int) -> tuple[Ints, Ints, Ints]:
    """(document, start, length) of the pieces, none longer than a row, in document order."""
    if row_length < 1 or (len(lengths) and lengths.min() < 0):
        raise ValueError("row_length must be positive and no length negative")
    pieces = -(-lengths // row_length)
    document = np.repeat(np.arange(len(lengths)), pieces)
    start = ramp(pieces) * row_length
    return document, start, np.minimum(lengths[document] - start, row_length)


def ramp(counts: npt.NDArray[Any]) -> Ints:
    """0, 1, ..., counts[0] - 1, 0, 1, ..., counts[1] - 1, and so on."""
    ends = np.cumsum(counts, dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    numbers: Ints = np.arange(total) - np.repeat(ends - counts, counts)
    return numbers


def shuffled(count: int, *key: int) -> Ints:
    """A permutation of range(count) that depends on the integers of `key` only.

    Its own hash (splitmix64, Steele et al. 2014) instead of numpy's generators, whose streams may change
    with numpy's version: the order of samples must be the same when a run is resumed on another machine.
    """
    state = np.zeros(1, np.uint64)
    for part in key:
        state = _mix(state ^ np.uint64(part & 0xFFFF_FFFF_FFFF_FFFF))
    counter = np.arange(count).astype(np.uint64)
    return np.argsort(_mix(state + counter), kind="stable")


def _mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """One splitmix64 step of each value; the arithmetic wraps at 64 bits."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: npt.NDArray[np.uint64] = x ^ (x >> np.uint64(31))
    return mixed


def _best_fit(sizes: Ints, counts: Ints, row_length: int) -> Ints:
    """The row of each piece. `sizes` falls strictly; there are counts[i] pieces of sizes[i], numbered in this order."""
    free = _FreeRows(row_length)
    placed: list[Ints] = []
    for size, count in zip(sizes.tolist(), counts.tolist(), strict=True):
        while count:
            room, rows = free.take(size, count)
            each = min(room // size, count)
            placed.append(np.repeat(rows, each))
            free.put(room - each * size, rows)
            count -= each * len(rows)
    return np.concatenate(placed) if placed else np.zeros(0, np.int64)


class _FreeRows:
    """Open rows by remaining room. A bit set of the rooms in use finds the smallest sufficient one at once."""

    def __init__(self, row_length: int) -> None:
        self._row_length = row_length
        self._by_room: dict[int, list[Ints]] = {}
        self._rooms = 0  # bit r is set when a row with r free positions exists
        self._num_rows = 0

    def take(self, size: int, count: int) -> tuple[int, Ints]:
        """(room, rows): some of the fullest rows that take `size`, enough for at most `count` pieces, at least one."""
        usable = self._rooms >> size
        if not usable:
            return self._open(size, count)
        room = size + (usable & -usable).bit_length() - 1
        stack = self._by_room[room]
        rows = stack.pop()
        wanted = max(1, count // (room // size))
        if len(rows) > wanted:
            stack.append(rows[wanted:])
            rows = rows[:wanted]
        if not stack:
            self._rooms ^= 1 << room
        return room, rows

    def put(self, room: int, rows: Ints) -> None:
        """Rows back, with this much room left; full rows are forgotten."""
        if room:
            self._by_room.setdefault(room, []).append(rows)
            self._rooms |= 1 << room

    def _open(self, size: int, count: int) -> tuple[int, Ints]:
        new = max(1, count // (self._row_length // size))
        rows = np.arange(self._num_rows, self._num_rows + new)
        self._num_rows += new
        return self._row_length, rows
