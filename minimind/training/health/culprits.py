"""Which samples made a step's loss NaN or inf: its micro-batches once more, without gradients, row by row."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import numpy as np
import torch
from torch import nn

from minimind.data.store.batches import EMPTY_ROW, Batch, Batches
from minimind.data.store.store import TokenStore

MAX_NAMED = 8


class SupportsForward(Protocol):
    """What the search needs of an engine."""

    module: nn.Module
    device: torch.device
    rank: int

    def sum_over_ranks(self, values: list[float]) -> list[float]: ...


def find_culprits(engine: SupportsForward, batches: Batches, store: TokenStore, data_step: int) -> list[str]:
    """``file:line`` of the documents in rows whose loss is not finite with the present weights; all ranks call it.

    Without such a row (the gradient alone overflowed, or the weights have recovered) all documents of the step.
    """
    rows = batches.rows(data_step)
    bad = set(_bad_rows(engine, batches.micro_batches(data_step, engine.rank)))
    flags = engine.sum_over_ranks([float(row in bad) for row in rows.tolist()])
    guilty = rows[np.array(flags) > 0]
    documents = {document for document, _, _ in batches.documents_in(guilty if len(guilty) else rows)}
    return ["{}:{}".format(*store.source(document)) for document in sorted(documents)]


@torch.no_grad()
def _bad_rows(engine: SupportsForward, micro_batches: Iterable[Batch]) -> list[int]:
    was_training = engine.module.training
    engine.module.eval()
    bad = []
    for batch in micro_batches:
        there = batch.to(engine.device)
        inputs = (there.input_ids, there.labels, there.position_ids, there.document_ids)
        _, losses = engine.module(*inputs, by_row=True)
        finite = losses.isfinite().tolist()
        bad += [row for row, fine in zip(batch.rows, finite, strict=True) if row != EMPTY_ROW and not fine]
    engine.module.train(was_training)
    return bad


def shorten(samples: list[str]) -> str:
    """The first few, and how many more."""
    more = f" and {len(samples) - MAX_NAMED} more" if len(samples) > MAX_NAMED else ""
    return ", ".join(samples[:MAX_NAMED]) + more
