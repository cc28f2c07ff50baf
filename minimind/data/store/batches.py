"""Step number -> that step's micro-batches: a pure function of store, seed, step, rank and world size.

An epoch is a permutation of the packed rows that depends on (seed, epoch) alone (with weighted sources a choice of
rows, see mixture.py), and a step takes the next ``rows_per_step = micro_batch_size * accumulation * world_size`` of
them. Row j of a step goes to rank j mod world size, so the same rows are trained on in the same step however many ranks
share them, and a resumed run needs to know the step number only. The last step of an epoch takes what is left; every
rank still gets `accumulation` micro-batches of the same shape, filled up with empty rows, which add nothing to a summed
loss.

Known weakness: those empty rows cost computation, at most one step an epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from queue import Empty, Queue
from threading import Event, Thread
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from minimind.base.defaults import IGNORE
from minimind.data.store.mixture import Mixture, Part
from minimind.data.store.packing import Ints, Rows, pack, ramp, shuffled
from minimind.data.store.store import TokenStore
from minimind.text.tokenizer import PAD_ID

NO_DOCUMENT = -1  # document id of padding
EMPTY_ROW = -1
_T = TypeVar("_T")


@dataclass(frozen=True)
class Batch:
    """One micro-batch. All tensors are int64 [micro_batch_size, row_length], whatever they hold.

    `labels` are aligned with `input_ids` (labels[b, t] is the target of position t), -100 where nothing is
    trained. `position_ids` count from 0 in each piece of a document. `document_ids` number the pieces of a
    row, -1 is padding; padding has the pad id, position 0 and label -100. `rows`: the packed rows, -1 for
    an empty one. `num_trainable`: labels that are not -100, known without asking the device. With weighted sources
    only: `row_sources` (index of each row's source, -1 for an empty row) and `row_tokens` (its trainable tokens).
    """

    input_ids: torch.Tensor
    labels: torch.Tensor
    position_ids: torch.Tensor
    document_ids: torch.Tensor
    rows: tuple[int, ...]
    num_trainable: int
    row_sources: tuple[int, ...] = ()
    row_tokens: tuple[int, ...] = ()

    def to(self, device: torch.device | str) -> Batch:
        """A copy on the device. To a GPU it goes through pinned memory and doesn't wait for the transfer."""
        target = torch.device(device)
        if target.type == self.input_ids.device.type:
            return self

        def move(tensor: torch.Tensor) -> torch.Tensor:
            source = tensor.pin_memory() if target.type == "cuda" else tensor
            return source.to(target, non_blocking=True)

        return replace(
            self,
            input_ids=move(self.input_ids),
            labels=move(self.labels),
            position_ids=move(self.position_ids),
            document_ids=move(self.document_ids),
        )


class Batches:
    """The training data of a run, addressed by step (0-based, without end: epochs follow each other)."""

    def __init__(
        self,
        store: TokenStore,
        row_length: int,
        micro_batch_size: int,
        accumulation: int,
        world_size: int,
        seed: int,
        parts: Sequence[Part] | None = None,
    ) -> None:
        """`parts`: the sources with their weights; None takes all files of the store as one source."""
        if min(row_length, micro_batch_size, accumulation, world_size) < 1:
            raise ValueError("row_length, micro_batch_size, accumulation and world_size must be positive")
        self.micro_batch_size, self.accumulation, self.world_size = micro_batch_size, accumulation, world_size
        self.rows_per_step = micro_batch_size * accumulation * world_size
        self.seed = seed
        self.mixture = Mixture(store, parts, row_length, seed) if parts else None
        rows = self.mixture.rows if self.mixture else pack(store.lengths - 1, row_length, seed)
        self._reader = _RowReader(store, rows, row_length)
        self._order: tuple[int, Ints] | None = None  # the last epoch asked for: only a cache

    @property
    def num_rows(self) -> int:
        """Packed rows that make one epoch."""
        return self.mixture.num_rows if self.mixture else self._reader.rows.num_rows

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.num_rows // self.rows_per_step)

    @property
    def epoch_tokens(self) -> int:
        """Trainable tokens of one epoch; a mean with fractional weights."""
        return self.mixture.epoch_tokens if self.mixture else self._reader.store.num_trainable

    @cached_property
    def fill(self) -> float:
        """Share of the positions of all rows that hold a prediction."""
        return self._reader.rows.fill(self._reader.row_length)

    def micro_batches(self, step: int, rank: int) -> list[Batch]:
        """The `accumulation` micro-batches of one rank in one step."""
        if not 0 <= rank < self.world_size:
            raise ValueError(f"rank {rank} of {self.world_size}")
        size = self.micro_batch_size
        mine = _padded(self.rows(step)[rank :: self.world_size], size * self.accumulation)
        return [self._batch(mine[i : i + size]) for i in range(0, len(mine), size)]

    def _batch(self, rows: Ints) -> Batch:
        batch = self._reader.batch(rows)
        if self.mixture is None:
            return batch
        tokens = (batch.labels != IGNORE).sum(1).tolist()
        sources = self.mixture.sources(rows).tolist()
        return replace(batch, row_sources=tuple(sources), row_tokens=tuple(tokens))

    def rows(self, step: int) -> Ints:
        """The packed rows of the whole step, all ranks together."""
        if step < 0:
            raise ValueError(f"step {step} is negative")
        epoch, index = divmod(step, self.steps_per_epoch)
        if self._order is None or self._order[0] != epoch:
            mixed = self.mixture
            self._order = epoch, mixed.epoch(epoch) if mixed else shuffled(self.num_rows, self.seed, epoch)
        return self._order[1][index * self.rows_per_step : (index + 1) * self.rows_per_step]

    def documents(self, step: int) -> list[tuple[int, int, int]]:
        """(document, start, length) of every piece in the whole step; the same for any number of ranks."""
        return self.documents_in(self.rows(step))

    def documents_in(self, packed: Ints) -> list[tuple[int, int, int]]:
        """(document, start, length) of every piece in these packed rows."""
        rows, (pieces, _) = self._reader.rows, self._reader.pieces(packed)
        columns = (rows.document[pieces], rows.start[pieces], rows.length[pieces])
        return list(zip(*(column.tolist() for column in columns), strict=True))


class SequentialBatches:
    """For evaluation: every prediction of the store once over all ranks, the same number of batches on each.

    Packed once; iterate as often as needed.
    """

    def __init__(
        self, store: TokenStore, row_length: int, micro_batch_size: int, rank: int = 0, world_size: int = 1
    ) -> None:
        self._reader = _RowReader(store, pack(store.lengths - 1, row_length, seed=0), row_length)
        self._size = micro_batch_size
        num_rows = self._reader.rows.num_rows
        batches = -(-num_rows // (micro_batch_size * world_size))
        self._mine = _padded(np.arange(rank, num_rows, world_size), batches * micro_batch_size)

    def __len__(self) -> int:
        """Batches on this rank, as many as on each."""
        return -(-len(self._mine) // self._size)

    def __iter__(self) -> Iterator[Batch]:
        for i in range(0, len(self._mine), self._size):
            yield self._reader.batch(self._mine[i : i + self._size])


def prefetch(iterable: Iterable[_T], depth: int = 2) -> Iterator[_T]:
    """The items, made by a thread up to `depth` ahead. Its exception is raised here; leaving early ends the thread."""
    queue: Queue[tuple[_T] | BaseException | None] = Queue(maxsize=depth)
    stopped = Event()

    def work() -> None:
        end: BaseException | None = None
        try:
            for item in iterable:
                queue.put((item,))
                if stopped.is_set():
                    return
        except BaseException as error:
            end = error
        queue.put(end)

    thread = Thread(target=work, name="prefetch", daemon=True)
    thread.start()
    try:
        while (got := queue.get()) is not None:
            if isinstance(got, BaseException):
                raise got
            yield got[0]
    finally:
        stopped.set()
        _drain(queue, thread)


def _drain(queue: Queue[_T], thread: Thread) -> None:
    """Make room until the thread, which may be waiting to put something, has seen that it is over."""
    while thread.is_alive():
        try:
            queue.get(timeout=0.01)
        except Empty:
            continue
    thread.join()


def _padded(rows: Ints, count: int) -> Ints:
    return np.concatenate([rows, np.full(count - len(rows), EMPTY_ROW)])


class _RowReader:
    """Packed rows of a store as tensors."""

    def __init__(self, store: TokenStore, rows: Rows, row_length: int) -> None:
        self.store, self.rows, self.row_length = store, rows, row_length
        self._positions = np.arange(row_length)

    def pieces(self, rows: Ints) -> tuple[Ints, Ints]:
        """Indices of these rows' pieces, row by row, and how many each row has."""
        first = self.rows.row_offsets[rows]
        counts = self.rows.row_offsets[rows + 1] - first
        return np.repeat(first, counts) + ramp(counts), counts

    def batch(self, rows: Ints) -> Batch:
        """The rows as one batch; -1 gives an empty row.

        A loop over pieces with four slice copies each: at 60 tokens a piece and more it beats one gather for all.
        """
        shape = len(rows), self.row_length
        padding = np.array([[PAD_ID], [IGNORE], [0], [NO_DOCUMENT]])
        flat = np.repeat(padding, len(rows) * self.row_length, axis=1)
        input_ids, labels, position_ids, document_ids = flat
        num_trainable = 0
        for cell, source, n, number in self._placed(rows):
            end = cell + n
            tokens = self.store.tokens[source : source + n + 1]
            input_ids[cell:end] = tokens[:-1]
            num_trainable += self._write_labels(labels[cell:end], tokens[1:], source + 1)
            position_ids[cell:end] = self._positions[:n]
            document_ids[cell:end] = number
        tensors = [torch.from_numpy(column).view(shape) for column in flat]
        return Batch(*tensors, tuple(rows.tolist()), num_trainable)  # type: ignore[call-arg, arg-type]

    def _write_labels(self, labels: Ints, targets: npt.NDArray[Any], source: int) -> int:
        """Fill in one piece's labels; the number of those that carry loss."""
        mask = self.store.trainable_mask
        if mask is None:
            labels[:] = targets
            return len(targets)
        trainable = mask[source : source + len(targets)]
        np.copyto(labels, targets, where=trainable.view(np.bool_))
        return int(np.count_nonzero(trainable))

    def _placed(self, rows: Ints) -> Iterator[tuple[int, int, int, int]]:
        """(cell, source, length, number) of each piece: where it begins in the flat batch and in the store's tokens."""
        real = np.flatnonzero(rows != EMPTY_ROW)
        pieces, counts = self.pieces(rows[real])
        length = self.rows.length[pieces].astype(np.int64)
        before = np.cumsum(length) - length  # tokens of the pieces before, of all rows
        row_begins = np.repeat(before[np.cumsum(counts) - counts], counts)
        cell = np.repeat(real * self.row_length, counts) + before - row_begins
        columns = (cell, self._first_inputs(pieces), length, ramp(counts))
        return zip(*(column.tolist() for column in columns), strict=True)

    def _first_inputs(self, pieces: Ints) -> Ints:
        """Where each piece's first input token lies in the store."""
        return (self.store.offsets[self.rows.document[pieces]] + self.rows.start[pieces]).astype(np.int64)
