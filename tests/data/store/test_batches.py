"""minimind.data.store.batches: right tensors, pure addressing, the same rows for any number of ranks."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minimind.data.store.batches import Batch, Batches, SequentialBatches, prefetch
from minimind.data.store.store import Kind, StoreWriter, TokenStore
from tests.waiting import PATIENCE

VOCAB = 1000


def make_store(path: Path, lengths: list[int], kind: Kind = "pretrain", seed: int = 0) -> TokenStore:
    """Documents of these many tokens: bos, random ids from 10 on, eos."""
    rng = np.random.default_rng(seed)
    writer = StoreWriter(path, VOCAB, kind)
    for line, n in enumerate(lengths):
        tokens = [1, *rng.integers(10, VOCAB, n - 2).tolist(), 2]
        flags = [False, *(rng.random(n - 1) < 0.5).tolist()] if kind == "sft" else None
        writer.add(tokens, flags, 0, line + 1, n)
    return TokenStore.open(writer.finish({"sources": ["x"]}))


@pytest.fixture(scope="module", params=["pretrain", "sft"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    lengths = np.random.default_rng(1).integers(2, 60, 200).tolist()
    return make_store(tmp_path_factory.mktemp("s") / "store", lengths, request.param)


def batches(store: TokenStore, micro: int = 2, accumulation: int = 3, world: int = 2, seed: int = 5) -> Batches:
    return Batches(store, 32, micro, accumulation, world, seed)


def trained_in(data: Batches, step: int) -> int:
    """The labels that carry loss in a whole step."""
    parts = (batch for rank in range(data.world_size) for batch in data.micro_batches(step, rank))
    return sum(int((batch.labels != -100).sum()) for batch in parts)


def check_row(store: TokenStore, batch: Batch, row: int, pieces: list[tuple[int, int, int]]) -> int:
    """A row of the batch against its pieces, one token at a time; returns the row's trainable tokens."""
    place = trained = 0
    for number, (document, start, length) in enumerate(pieces):
        tokens, flags = store.document(document), store.trainable(document)
        for i in range(length):
            wanted = int(tokens[start + i + 1])
            if flags is not None and not flags[start + i + 1]:
                wanted = -100
            trained += wanted != -100
            assert batch.input_ids[row, place] == tokens[start + i]
            assert batch.labels[row, place] == wanted
            assert batch.position_ids[row, place] == i
            assert batch.document_ids[row, place] == number
            place += 1
    for tensor, padding in zip(batch_tensors(batch), (0, -100, 0, -1), strict=True):
        assert (tensor[row, place:] == padding).all()
    return trained


def batch_tensors(batch: Batch) -> list[torch.Tensor]:
    return [batch.input_ids, batch.labels, batch.position_ids, batch.document_ids]


def pieces_of(data: Batches, row: int) -> list[tuple[int, int, int]]:
    rows = data._reader.rows
    a, b = rows.row_offsets[row], rows.row_offsets[row + 1]
    return list(zip(rows.document[a:b].tolist(), rows.start[a:b].tolist(), rows.length[a:b].tolist(), strict=True))


def test_tensors_are_the_documents(store: TokenStore) -> None:
    data = batches(store)
    for step in range(data.steps_per_epoch):
        for rank in range(2):
            micro_batches = data.micro_batches(step, rank)
            assert len(micro_batches) == 3
            for batch in micro_batches:
                assert all(t.shape == (2, 32) and t.dtype == torch.int64 for t in batch_tensors(batch))
                trained = [
                    check_row(store, batch, i, pieces_of(data, row) if row >= 0 else [])
                    for i, row in enumerate(batch.rows)
                ]
                assert batch.num_trainable == sum(trained) == int((batch.labels != -100).sum())


def test_an_epoch_trains_every_token_once(store: TokenStore) -> None:
    data = batches(store)
    for epoch in range(2):
        steps = range(epoch * data.steps_per_epoch, (epoch + 1) * data.steps_per_epoch)
        rows = [row for s in steps for r in range(2) for b in data.micro_batches(s, r) for row in b.rows if row >= 0]
        assert sorted(rows) == list(range(data.num_rows))
        seen = [(d, start + i) for s in steps for d, start, n in data.documents(s) for i in range(n)]
        assert sorted(seen) == [(d, i) for d, n in enumerate(store.lengths) for i in range(n - 1)]
        assert sum(trained_in(data, step) for step in steps) == data.epoch_tokens == store.num_trainable


@pytest.mark.parametrize(("micro", "accumulation", "world"), [(12, 1, 1), (1, 12, 1), (3, 1, 4), (1, 4, 3), (2, 3, 2)])
def test_steps_do_not_depend_on_the_split(store: TokenStore, micro: int, accumulation: int, world: int) -> None:
    one, other = batches(store, 4, 3, 1), batches(store, micro, accumulation, world)
    assert one.steps_per_epoch == other.steps_per_epoch
    for step in range(2 * one.steps_per_epoch):
        assert one.documents(step) == other.documents(step)
        parts = [batch for rank in range(world) for batch in other.micro_batches(step, rank)]
        assert len(parts) == accumulation * world
        trained = sum(batch.num_trainable for batch in parts)
        assert trained == trained_in(one, step)
        assert sorted(row for batch in parts for row in batch.rows if row >= 0) == sorted(one.rows(step).tolist())


def test_pure_in_any_order_of_asking(store: TokenStore) -> None:
    first, second = batches(store), batches(store)
    steps = list(range(2 * first.steps_per_epoch))
    forwards = [first.micro_batches(s, 1) for s in steps]
    backwards = [second.micro_batches(s, 1) for s in reversed(steps)][::-1]
    for a, b in zip(forwards, backwards, strict=True):
        for x, y in zip(a, b, strict=True):
            assert x.rows == y.rows
            assert all(torch.equal(t, u) for t, u in zip(batch_tensors(x), batch_tensors(y), strict=True))


def test_epochs_and_seeds_differ(store: TokenStore) -> None:
    data, other = batches(store), batches(store, seed=6)
    assert data.rows(0).tolist() != data.rows(data.steps_per_epoch).tolist()
    assert data.documents(0) != other.documents(0)


def test_the_last_window_is_spread_over_the_ranks(tmp_path: Path) -> None:
    data = Batches(make_store(tmp_path / "s", [33] * 5), 32, 2, 2, 2, seed=0)  # 5 rows, 8 a step
    assert (data.num_rows, data.steps_per_epoch, data.fill) == (5, 1, 1.0)
    left, right = data.micro_batches(0, 0), data.micro_batches(0, 1)
    assert [sum(row >= 0 for row in batch.rows) for batch in left + right] == [2, 1, 2, 0]
    assert right[1].rows == (-1, -1)
    assert right[1].num_trainable == 0
    assert (right[1].document_ids == -1).all()


@pytest.mark.parametrize(("micro", "world"), [(1, 1), (3, 1), (4, 2), (2, 5), (64, 3)])
def test_evaluation_sees_every_prediction_once(store: TokenStore, micro: int, world: int) -> None:
    per_rank = [list(SequentialBatches(store, 32, micro, rank, world)) for rank in range(world)]
    assert len({len(found) for found in per_rank}) == 1
    everything = [batch for found in per_rank for batch in found]
    assert sum(batch.num_trainable for batch in everything) == store.num_trainable
    rows = sorted(row for batch in everything for row in batch.rows if row >= 0)
    assert rows == list(range(len(rows)))
    assert sum(int((batch.document_ids >= 0).sum()) for batch in everything) == int((store.lengths - 1).sum())


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(2, 50), min_size=1, max_size=30),
    st.sampled_from(["pretrain", "sft"]),
    st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3)),
)
def test_any_lengths_and_any_split(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], kind: Kind, split: tuple[int, int, int]
) -> None:
    store = make_store(tmp_path_factory.mktemp("s") / "store", lengths, kind)
    data = Batches(store, 16, *split, seed=1)
    total = 0
    for step in range(data.steps_per_epoch):
        for rank in range(split[2]):
            for batch in data.micro_batches(step, rank):
                rows = [pieces_of(data, row) if row >= 0 else [] for row in batch.rows]
                assert batch.num_trainable == sum(check_row(store, batch, i, row) for i, row in enumerate(rows))
                total += batch.num_trainable
    assert total == store.num_trainable


def test_wrong_addresses(store: TokenStore) -> None:
    data = batches(store)
    with pytest.raises(ValueError, match="rank 2 of 2"):
        data.micro_batches(0, 2)
    with pytest.raises(ValueError, match="negative"):
        data.micro_batches(-1, 0)
    with pytest.raises(ValueError, match="must be positive"):
        batches(store, micro=0)


def test_moving_to_a_device(store: TokenStore) -> None:
    batch = batches(store).micro_batches(0, 0)[0]
    assert batch.to("cpu") is batch
    moved = batch.to("meta")
    assert all(tensor.device.type == "meta" for tensor in batch_tensors(moved))
    assert (moved.rows, moved.num_trainable) == (batch.rows, batch.num_trainable)


def test_prefetch_keeps_order_and_stays_within_its_depth() -> None:
    made: list[int] = []

    def numbers() -> Iterator[int]:
        for i in range(20):
            made.append(i)
            yield i

    got = []
    for i in prefetch(numbers(), depth=3):
        got.append(i)
        assert len(made) <= i + 1 + 3 + 1  # in hand, in the queue, waiting for a place in it
    assert got == list(range(20))


def test_prefetch_raises_what_the_source_raises() -> None:
    def failing() -> Iterator[int]:
        yield 1
        raise OSError("the store is gone")

    items = prefetch(failing())
    assert next(items) == 1
    with pytest.raises(OSError, match="the store is gone"):
        next(items)


@pytest.mark.parametrize("depth", [1, 4])
def test_leaving_a_prefetch_early_ends_its_thread(depth: int) -> None:
    before = set(threading.enumerate())  # another test's may end meanwhile
    items = prefetch(iter(range(10**9)), depth)
    assert next(items) == 0
    assert len(set(threading.enumerate()) - before) == 1
    items.close()  # type: ignore[attr-defined]
    assert set(threading.enumerate()) <= before


def test_prefetch_works_ahead() -> None:
    done = threading.Event()

    def source() -> Iterator[int]:
        yield 0
        done.set()
        yield 1

    items = prefetch(source())
    next(items)
    assert done.wait(PATIENCE)
    assert list(items) == [1]
