"""Illnesses for the recovery tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
import torch

from minimind.model.transformer import Transformer
from minimind.training.engine.engine import Engine

POISON = "☃"  # its bytes occur in one text only
SICK_FROM = 8  # steps applied before the overflow sets in
SPIKE_AT = 45


@contextmanager
def poisoned(patch: pytest.MonkeyPatch, token: int) -> Iterator[None]:
    """A row that holds ``token`` gives a NaN loss."""
    forward = Transformer.forward

    def sick(self: Transformer, input_ids: torch.Tensor, labels: Any = None, *rest: Any, by_row: bool = False) -> Any:
        result = forward(self, input_ids, labels, *rest, by_row=by_row)
        ill = (input_ids == token).any(1)  # [B]
        if labels is None or not bool(ill.any()):
            return result
        if not by_row:
            return result * torch.nan
        total, rows = result
        return total * torch.nan, rows.masked_fill(ill, torch.nan)

    patch.setattr(Transformer, "forward", sick)
    yield


@contextmanager
def overflowing(patch: pytest.MonkeyPatch, sick: Callable[[Engine], bool]) -> Iterator[None]:
    """Gradients are inf from a step on, for engines that ``sick`` says so of."""
    backward = Engine.backward

    def backward_of(self: Engine, loss: torch.Tensor) -> None:
        ill = self.ds.global_steps >= SICK_FROM and sick(self)
        backward(self, loss * torch.inf if ill else loss)

    patch.setattr(Engine, "backward", backward_of)
    yield


@contextmanager
def spiking(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Once, after step SPIKE_AT, the weights are damaged as by one huge update."""
    update, done = Engine.update, []

    def damaging(self: Engine) -> Any:
        result = update(self)
        if self.ds.global_steps == SPIKE_AT and not done:
            done.append(True)
            generator = torch.Generator().manual_seed(0)
            with torch.no_grad():
                masters = getattr(self.optimizer, "single_partition_of_fp32_groups", [])
                for weight in [*self.module.parameters(), *masters]:
                    weight.add_(torch.randn(weight.shape, generator=generator).to(weight.dtype))
        return result

    patch.setattr(Engine, "update", damaging)
    yield


def fp16_only(engine: Engine) -> bool:
    return engine.resolved.precision == "fp16"


def dynamic_only(engine: Engine) -> bool:
    return engine.resolved.dynamic_scale


def illness(name: str, patch: pytest.MonkeyPatch, token: int) -> AbstractContextManager[None]:
    """The one called "poison", "overflow" or "spike"."""
    if name == "poison":
        return poisoned(patch, token)
    return spiking(patch) if name == "spike" else overflowing(patch, fp16_only)
