"""A model that is cut as it is built, on two real ranks: the seed's weights, and no rank with all of them."""

from __future__ import annotations

import pytest
import torch

from minimind.config.deepspeed import Resolved
from minimind.model.transformer import Transformer
from minimind.training.engine.construction import new_model
from minimind.training.engine.engine import Engine
from minimind.training.engine.optimizers import parameter_groups
from minimind.training.engine.step import train_step
from tests.support import random_rows, run_ranks, split, tiny_config, tiny_model
from tests.training.engine.test_parameters import OFFLOAD, PARAMETERS, settings


def test_initial_values_need_shapes_only() -> None:
    with torch.device("meta"):
        shapes = Transformer(tiny_config().model, seed=None)
    model = tiny_model()
    values = list(shapes.initial_values(0))
    assert all(torch.equal(value, parameter) for value, parameter in zip(values, model.parameters(), strict=True))


def _losses(engine: Engine) -> list[float]:
    rows = split(random_rows(8, seed=1), 2, engine.rank, 2)
    return [float(train_step(engine, rows).loss_sum) for _ in range(3)]


def on_two_ranks() -> None:
    for precision, zero in (("bf16", {}), ("fp32", {}), ("fp16", {**OFFLOAD, **PARAMETERS})):
        resolved: Resolved = settings(precision, **zero)
        config = tiny_config().model
        cut = new_model(config, 0, resolved)
        assert {parameter.numel() for parameter in cut.parameters()} == {0}
        names = [[len(group["params"]), group["weight_decay"]] for group in parameter_groups(cut, "AdamW", {"lr": 1.0})]
        assert names == [[14, 0.0], [6, 0.0]]
        one, whole = Engine(cut, resolved, lambda step: 1.0), Engine(tiny_model(), resolved, lambda step: 1.0)
        weights, expected = one.weights(), whole.weights()
        assert all(torch.equal(value, expected[name]) for name, value in weights.items())
        assert _losses(one) == _losses(whole)


@pytest.mark.usefixtures("one_rank")
def test_below_stage_3_a_model_is_whole() -> None:
    import dataclasses

    resolved = dataclasses.replace(settings("fp32", world=1), stage=2)
    model = new_model(tiny_config().model, 0, resolved)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), tiny_model().parameters(), strict=True))


def test_a_cut_model_is_the_seeds() -> None:
    run_ranks(2, on_two_ranks)
