"""The training step with a fake engine: what is counted, what is divided, and where the last micro-batch is told."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch

from minimind.training.engine.step import token_weight, train_step


@dataclass
class FakeEngine:
    """Two ranks, of which the other one contributes ``other`` to each sum; the loss sum is weight * tokens."""

    other: list[float]
    world_size: int = 2
    calls: list[Any] = field(default_factory=list)
    parameter: torch.Tensor = field(default_factory=lambda: torch.tensor(2.0, requires_grad=True))

    def forward(self, batch: Any, last: bool) -> torch.Tensor:
        self.calls.append(("forward", last))
        return self.parameter * batch.num_trainable

    def backward(self, loss: torch.Tensor) -> None:
        self.calls.append("backward")
        loss.backward()

    def update(self) -> Any:
        self.calls.append("update")
        return "the update"

    def sum_over_ranks(self, values: list[float]) -> list[float]:
        self.calls.append("sum")
        return [a + b for a, b in zip(values, self.other, strict=True)]


def batches(*counts: int) -> list[Any]:
    return [SimpleNamespace(num_trainable=count) for count in counts]


def test_tokens_are_counted_on_all_ranks_before_the_first_forward() -> None:
    engine = FakeEngine(other=[10.0, 0.0, 0.0])
    result = train_step(engine, batches(3, 0, 7))
    assert engine.calls == ["sum"] + [
        call for last in (False, False, True) for call in (("forward", last), "backward")
    ] + ["update"]
    assert result.tokens == 20
    assert result.update == "the update"
    assert float(result.loss_sum) == 2.0 * 10


def test_gradient_is_this_ranks_share_of_the_global_mean() -> None:
    engine = FakeEngine(other=[30.0, 0.0, 0.0])
    train_step(engine, batches(4, 6))
    # this rank holds 10 of 40 tokens, and DeepSpeed will average over the two ranks
    assert float(engine.parameter.grad) == 2 * 10 / 40


def test_the_split_into_micro_batches_does_not_matter() -> None:
    gradients = []
    for split in [(12,), (1, 11), (0, 5, 7)]:
        engine = FakeEngine(other=[0.0, 0.0, 0.0])
        train_step(engine, batches(*split))
        gradients.append(float(engine.parameter.grad))
    assert gradients[0] == gradients[1] == gradients[2]


def test_a_request_to_stop_on_another_rank_stops_this_one() -> None:
    assert train_step(FakeEngine(other=[1.0, 1.0, 0.0]), batches(1)).stop
    assert train_step(FakeEngine(other=[1.0, 0.0, 0.0]), batches(1), stop_requested=True).stop
    assert not train_step(FakeEngine(other=[1.0, 0.0, 0.0]), batches(1)).stop


def test_a_request_to_save_is_another_ranks_too_and_no_stop() -> None:
    result = train_step(FakeEngine(other=[1.0, 0.0, 1.0]), batches(1))
    assert result.save and not result.stop
    engine = FakeEngine(other=[1.0, 0.0, 0.0])
    assert train_step(engine, batches(1), save_requested=True).save
    assert engine.calls.count("sum") == 1  # in the exchange that there is anyway
    assert not train_step(FakeEngine(other=[1.0, 1.0, 0.0]), batches(1)).save


def test_no_trainable_token_anywhere_divides_by_one() -> None:
    assert token_weight(4, 0) == 4.0
