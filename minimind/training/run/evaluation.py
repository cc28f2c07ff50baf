"""Held-out loss, perplexity and bits per byte.

Contract: the loss is the sum over all predictions of the file divided by their number, whatever the batch size and
the number of ranks; training is not touched (no gradients, no random numbers, the mode is put back).
Bits per byte count the text's UTF-8 bytes and the nats of every prediction, the end of document included, so that
tokenizers can be compared. A supervised store has no such number: its loss covers the answers only ("n/a").
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import nn

from minimind.data.store.batches import Batch
from minimind.training.record.recorder import read


@dataclass(frozen=True)
class Evaluation:
    """Token-weighted result. ``loss``: nats per trainable token; ``bits_per_byte``: None for supervised data."""

    step: int
    loss: float
    num_tokens: int
    bits_per_byte: float | None


@torch.no_grad()
def evaluate(
    model: nn.Module,
    batches: Iterable[Batch],
    device: torch.device,
    step: int,
    num_bytes: int | None,
    sum_over_ranks: Callable[[list[float]], list[float]] = list,
) -> Evaluation:
    """Evaluate ``model`` on this rank's ``batches``. ``num_bytes``: UTF-8 bytes of the whole held-out text.

    Batch sums are added in float64, so that the batch size changes no more than fp32 rounding inside a batch. They are
    read when all batches are done, in one transfer: a GPU need not wait for the host between two of them.
    """
    was_training = model.training
    model.eval()
    losses: list[torch.Tensor] = []
    nats, tokens = 0.0, 0
    try:
        for batch in batches:
            losses.append(model(*_inputs(batch.to(device))))
            tokens += batch.num_trainable
    finally:  # the batches end with an exception where the run was asked to stop
        model.train(was_training)
    for loss in read(losses):  # not sum(), which rounds otherwise from Python 3.12 on
        nats += loss
    nats, count = sum_over_ranks([nats, float(tokens)])
    mean = nats / count if count else math.nan
    bits = nats / math.log(2) / num_bytes if num_bytes else None
    return Evaluation(step, mean, int(count), bits)


def _inputs(batch: Batch) -> tuple[torch.Tensor, ...]:
    return batch.input_ids, batch.labels, batch.position_ids, batch.document_ids
