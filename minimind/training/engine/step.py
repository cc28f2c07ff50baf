"""One optimizer step: count tokens, forward, backward, update, report.

Contract: the loss that is minimised is the sum over the step's trainable tokens, on all ranks and micro-batches,
divided by their number. The count is agreed before the first backward, and `token_weight` is the only place in
the project that divides a training loss; so neither the split into micro-batches and ranks nor unequal lengths change
the gradient (the averaging bug that https://unsloth.ai/blog/gradient describes is not possible here).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch

if TYPE_CHECKING:  # the engine imports DeepSpeed, which takes seconds; a step needs only its interface
    from minimind.data.store.batches import Batch
    from minimind.training.engine.engine import Update


class SupportsStep(Protocol):
    """What a step needs of an engine; tests give it a fake one."""

    world_size: int

    def forward(self, batch: Batch, last: bool) -> torch.Tensor: ...
    def forward_by_row(self, batch: Batch, last: bool) -> tuple[torch.Tensor, torch.Tensor]: ...
    def backward(self, loss: torch.Tensor) -> None: ...
    def update(self) -> Update: ...
    def sum_over_ranks(self, values: list[float]) -> list[float]: ...


@dataclass(frozen=True)
class RowLosses:
    """This rank's rows of a step: ``losses`` fp32 [rows], not yet read from the device; of each row its source
    (``Batch.row_sources``) and its trainable tokens."""

    losses: torch.Tensor
    sources: tuple[int, ...]
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class StepResult:
    """One step's outcome. ``loss_sum``: this rank's summed loss (0-d tensor, not yet read from the device);
    ``tokens``: trainable tokens of the step on all ranks; ``stop``: a rank was asked to stop; ``rows``: with
    ``by_source`` only; ``save``: a rank asked for a checkpoint."""

    loss_sum: torch.Tensor
    tokens: int
    update: Update
    stop: bool
    rows: RowLosses | None = None
    save: bool = False


def token_weight(world_size: int, tokens: int) -> float:
    """What turns a rank's summed loss into its part of the global mean per trainable token.

    DeepSpeed averages gradients over the ranks, hence the factor ``world_size``.
    """
    return world_size / max(tokens, 1)


def train_step(
    engine: SupportsStep,
    micro_batches: Sequence[Batch],
    stop_requested: bool = False,
    by_source: bool = False,
    save_requested: bool = False,
    beat: Callable[[], None] = lambda: None,
) -> StepResult:
    """Run one optimizer step over this rank's ``micro_batches`` (the same number on every rank).

    The requests to stop and to save ride along with the token count, so that all ranks learn of them in the same step.
    ``by_source``: keep each row's loss too; what is trained does not change, not even by rounding.
    ``beat``: called at the beginning and before each micro-batch, for the watchdog.
    """
    beat()
    tokens = sum(batch.num_trainable for batch in micro_batches)
    total, stops, saves = engine.sum_over_ranks([float(tokens), float(stop_requested), float(save_requested)])
    weight = token_weight(engine.world_size, int(total))
    losses, rows = [], []
    for index, batch in enumerate(micro_batches):
        beat()
        last = index == len(micro_batches) - 1
        if by_source:
            loss, row_losses = engine.forward_by_row(batch, last)
            rows.append(row_losses)
        else:
            loss = engine.forward(batch, last)
        losses.append(loss.detach())
        engine.backward(loss * weight)
    kept = _row_losses(rows, micro_batches) if by_source else None
    return StepResult(torch.stack(losses).sum(), int(total), engine.update(), stop=stops > 0, rows=kept, save=saves > 0)


def _row_losses(losses: Sequence[torch.Tensor], micro_batches: Sequence[Batch]) -> RowLosses:
    sources = [source for batch in micro_batches for source in batch.row_sources]
    tokens = [count for batch in micro_batches for count in batch.row_tokens]
    return RowLosses(torch.cat(list(losses)), tuple(sources), tuple(tokens))
