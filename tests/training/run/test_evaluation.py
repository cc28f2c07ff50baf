"""Held-out loss does not depend on batch size or ranks, and leaves training as it was."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from minimind.data.store.batches import Batch, SequentialBatches
from minimind.data.store.store import StoreWriter, TokenStore
from minimind.training.run.evaluation import evaluate
from tests.support import VOCABULARY, tiny_model

ROW = 32


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    """Documents of 2 to 80 tokens: some share a row, some need several."""
    path = tmp_path_factory.mktemp("evaluation") / "store"
    writer = StoreWriter(path, VOCABULARY, kind="pretrain")
    draw = np.random.default_rng(0)
    for line in range(30):
        tokens = draw.integers(6, VOCABULARY, size=int(draw.integers(2, 80)))
        writer.add([int(token) for token in tokens], None, 0, line + 1, 3 * len(tokens))
    writer.finish({"sources": ["made.jsonl"]})
    return TokenStore.open(path)


def plain(store: TokenStore) -> tuple[float, int]:
    """Summed loss and predictions, one document at a time in pieces of a row: no packing, no batches."""
    model, nats, count = tiny_model(), 0.0, 0
    with torch.no_grad():
        for index in range(len(store)):
            tokens = torch.from_numpy(store.document(index).astype(np.int64))
            for start in range(0, len(tokens) - 1, ROW):
                piece = tokens[start : start + ROW + 1]
                nats += float(model(piece[None, :-1], piece[None, 1:]))
                count += len(piece) - 1
    return nats, count


@pytest.mark.parametrize("micro_batch_size", [1, 3, 64])
def test_the_loss_is_the_plain_token_average_for_any_batch_size(store: TokenStore, micro_batch_size: int) -> None:
    nats, count = plain(store)
    batches = SequentialBatches(store, ROW, micro_batch_size)
    result = evaluate(tiny_model(), batches, torch.device("cpu"), step=7, num_bytes=store.num_bytes)
    assert result.num_tokens == count and result.step == 7
    assert result.loss == pytest.approx(nats / count, rel=1e-6)
    assert result.bits_per_byte == pytest.approx(nats / math.log(2) / store.num_bytes, rel=1e-6)


@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_share_the_work_and_agree(store: TokenStore, world_size: int) -> None:
    nats, count = plain(store)
    parts: list[list[float]] = []
    for rank in range(world_size):

        def keep(values: list[float]) -> list[float]:
            parts.append(values)
            return values

        batches = list(SequentialBatches(store, ROW, 2, rank, world_size))
        evaluate(tiny_model(), batches, torch.device("cpu"), 0, None, keep)
    totals = [sum(column) for column in zip(*parts, strict=True)]
    assert totals[1] == count
    assert totals[0] == pytest.approx(nats, rel=1e-6)


def test_no_bytes_means_no_bits_per_byte_and_nothing_else_changes(store: TokenStore) -> None:
    model = tiny_model().train()
    state = torch.random.get_rng_state()
    result = evaluate(model, SequentialBatches(store, ROW, 4), torch.device("cpu"), 0, None)
    assert result.bits_per_byte is None
    assert model.training
    assert torch.equal(state, torch.random.get_rng_state())
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_is_put_back_however_it_ends(training: bool, store: TokenStore) -> None:
    def cut_short() -> Iterator[Batch]:
        yield next(iter(SequentialBatches(store, ROW, 4)))
        assert not model.training
        raise KeyboardInterrupt

    model = tiny_model().train(training)
    evaluate(model, SequentialBatches(store, ROW, 4), torch.device("cpu"), 0, None)
    assert model.training == training
    with pytest.raises(KeyboardInterrupt):
        evaluate(model, cut_short(), torch.device("cpu"), 0, None)
    assert model.training == training
