"""ZeRO stage 3 on real DeepSpeed and two real ranks: what is split is never taken for what is whole.

The update of every layout is in test_applied_update.py, moves between layouts in tests/training/checkpoint. One pair of
processes for all of it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from minimind.config.deepspeed import Resolved, resolve
from minimind.training.engine import engine as engine_module
from minimind.training.engine.engine import Engine
from minimind.training.engine.step import train_step
from minimind.training.health.culprits import find_culprits
from minimind.training.run.evaluation import evaluate
from tests.support import CPU, RowBatch, random_rows, run_ranks, split, tiny_config, tiny_model

TOLERANCE = {"fp32": 2e-6, "bf16": 2e-2, "fp16": 3e-3}  # relative to the largest entry of the gradient
OFFLOAD = {"offload_optimizer": {"device": "cpu", "pin_memory": False}}
PARAMETERS = {"offload_param": {"device": "cpu", "pin_memory": False}}
SCALING = {"enabled": True, "initial_scale_power": 8, "loss_scale_window": 2, "hysteresis": 1}
WHOLE = {"stage3_param_persistence_threshold": 100_000}


def settings(precision: str, world: int = 2, **zero: Any) -> Resolved:
    """Stage 3 with nothing kept whole, unless ``zero`` says so."""
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_clipping": 0.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.1}},
        "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0, **zero},
    }
    if precision != "fp32":
        config[precision] = dict(SCALING) if precision == "fp16" else {"enabled": True}
    return resolve(config, tiny_config(), world, CPU, emulate_fp16=True)


def sgd_engine(resolved: Resolved, model: Any = None) -> Engine:
    """An engine whose update is minus the gradient."""
    resolved.config["zero_force_ds_cpu_optimizer"] = False
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_module, "_make_optimizer", lambda model, _: torch.optim.SGD(model.parameters(), lr=1.0))
        return Engine(model or tiny_model(), resolved, lambda step: 1.0)


def masters(engine: Engine) -> torch.Tensor:
    from deepspeed.utils import safe_get_full_fp32_param

    values = [safe_get_full_fp32_param(p) for p in engine.module.parameters()]
    return torch.cat([value.detach().float().reshape(-1).clone() for value in values])


def rows_of(engine: Engine, seed: int = 1, rows: int = 8) -> list[RowBatch]:
    return split(random_rows(rows, seed), 2, engine.rank, engine.world_size)


def true_gradient(weights: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """By plain PyTorch, of all rows, at ``weights`` as the precision rounds them."""
    model, start, everything = tiny_model(), 0, random_rows(8, seed=1)
    with torch.no_grad():
        for parameter in model.parameters():
            values = weights[start : start + parameter.numel()].to(dtype).float()
            parameter.copy_(values.view_as(parameter))
            start += parameter.numel()
    inputs = (everything.input_ids, everything.labels, everything.position_ids, everything.document_ids)
    (model(*inputs) / everything.num_trainable).backward()
    return torch.cat([p.grad.reshape(-1) for p in model.parameters()])


DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
FORMS: tuple[tuple[str, dict[str, Any], bool], ...] = (
    ("fp32", {}, False),
    ("fp32", WHOLE, False),
    ("bf16", {}, True),
    ("bf16", {"zero_hpz_partition_size": 2}, False),
    ("bf16", OFFLOAD, False),
    ("fp16", {**OFFLOAD, **PARAMETERS}, False),
    ("fp32", PARAMETERS, False),
)


def _the_gradient_is_applied() -> None:
    """With and without parameters that stay whole, with gradient checkpointing, hpZ, and both offloads."""
    for precision, zero, checkpointing in FORMS:
        model = tiny_model()
        model.gradient_checkpointing = checkpointing
        engine = sgd_engine(settings(precision, **zero), model)
        before = masters(engine)
        update = train_step(engine, rows_of(engine)).update
        moved, expected = before - masters(engine), true_gradient(before, DTYPES[precision])
        error = float((moved - expected).abs().max() / expected.abs().max())
        assert update.applied and error < TOLERANCE[precision], (precision, zero, error)
        assert float(update.grad_norm) == pytest.approx(float(expected.norm()), rel=TOLERANCE[precision])
        engine.close()


def _poison_next(engine: Engine) -> None:
    """The next gradient is NaN."""
    original = engine.backward

    def once(loss: torch.Tensor) -> None:
        engine.backward = original  # type: ignore[method-assign]
        original(loss * torch.nan)

    engine.backward = once  # type: ignore[method-assign]


def _a_nan_is_skipped_and_leaves_nothing() -> None:
    for precision, zero in (("fp32", {}), ("bf16", {**OFFLOAD, **PARAMETERS}), ("fp16", WHOLE)):
        sick, well = (sgd_engine(settings(precision, **zero)) for _ in range(2))
        for step in range(3):
            ill = step == 1
            if ill:
                _poison_next(sick)
            update = train_step(sick, rows_of(sick, step)).update
            assert update.applied == (not ill)
            assert bool(torch.tensor(float(update.grad_norm)).isfinite()) == (not ill)
            if not ill:
                train_step(well, rows_of(well, step))
        torch.testing.assert_close(masters(sick), masters(well), rtol=0, atol=5e-3 if precision == "bf16" else 1e-4)


def _the_growth_step_applies_the_whole_gradient() -> None:
    engine, ratios, scales = sgd_engine(settings("fp16")), [], set()
    for _ in range(5):
        before = masters(engine)
        update = train_step(engine, rows_of(engine)).update
        expected = true_gradient(before, torch.float16)
        ratios.append(float((before - masters(engine)) @ expected / (expected @ expected)))
        scales.add(update.loss_scale)
    assert len(scales) > 1, "the scale never grew, so this would prove nothing"
    assert ratios == pytest.approx([1.0] * 5, rel=5e-3)


def _weights_are_whole_on_the_first_rank() -> None:
    from deepspeed.utils import safe_get_full_fp32_param

    for zero in ({}, WHOLE, {**OFFLOAD, **PARAMETERS}, {"zero_hpz_partition_size": 2}):
        engine = Engine(tiny_model(), settings("bf16", **zero), lambda step: 1.0)
        train_step(engine, rows_of(engine))
        truth = {n: safe_get_full_fp32_param(p).bfloat16() for n, p in engine.module.named_parameters()}
        weights = engine.weights()
        assert weights.keys() == (truth.keys() if engine.rank == 0 else set())
        assert all(torch.equal(weights[name], truth[name]) for name in weights)
        assert train_step(engine, rows_of(engine)).update.applied  # gathering has left everything in its place


def _a_broken_part_is_named_on_every_rank() -> None:
    engine = Engine(tiny_model(), settings("bf16"), lambda step: 1.0)
    assert engine.broken_parameters() == []
    (first, one), *_, (last, other) = engine.module.named_parameters()
    for rank, parameter in ((1, one), (0, other)):
        if engine.rank == rank:
            parameter.ds_tensor.data[0] = torch.nan
    assert engine.broken_parameters() == [first, last]


def _padding_is_nobodys_weight() -> None:
    """A parameter of an odd size: the last rank's padding may hold anything."""
    model = tiny_model()
    model.model.norm.weight = torch.nn.Parameter(torch.ones(33)[:31].clone())
    engine = sgd_engine(settings("fp32"), model)
    odd = engine.module.model.norm.weight
    assert odd.ds_tensor.numel() == 16
    if engine.rank == 1:
        odd.ds_tensor.data[-1] = torch.nan
    assert engine.broken_parameters() == []
    if engine.rank == 1:
        odd.ds_tensor.data[-2] = torch.nan
    assert engine.broken_parameters() == ["model.norm.weight"]


class _Rows:
    """What the search for culprits needs of the data: a row that no loss survives is in the first rank's share."""

    def __init__(self, rank: int) -> None:
        self.share = random_rows(2, seed=40 + rank)
        self.share.__dict__["rows"] = (2 * rank, 2 * rank + 1)

    def rows(self, step: int) -> Any:
        return np.arange(4)

    def micro_batches(self, step: int, rank: int) -> list[Any]:
        return [self.share]

    def documents_in(self, rows: Any) -> list[tuple[int, int, int]]:
        return [(int(row), 0, 1) for row in rows]

    def source(self, document: int) -> tuple[str, int]:
        return "file", document


def _culprits_are_found_by_all_ranks_together() -> None:
    engine = Engine(tiny_model(), settings("fp32"), lambda step: 1.0)
    train_step(engine, rows_of(engine))
    rows: Any = _Rows(engine.rank)
    with pytest.MonkeyPatch.context() as patch:
        forward = type(engine.module).forward

        def sick(self: Any, *inputs: Any, by_row: bool = False) -> Any:
            total, losses = forward(self, *inputs, by_row=by_row)
            return total, losses * torch.tensor([1.0, torch.nan if engine.rank == 0 else 1.0])

        patch.setattr(type(engine.module), "forward", sick)
        assert find_culprits(engine, rows, rows, 0) == ["file:1"]
    assert train_step(engine, rows_of(engine)).update.applied


def _evaluation_agrees_with_plain_pytorch() -> None:
    """In the middle of a run; the last batch of the second rank holds nothing."""
    engine = Engine(tiny_model(), settings("fp32"), lambda step: 1.0)
    for _ in range(2):
        train_step(engine, rows_of(engine))
        batches = [random_rows(2, seed=60 + engine.rank), random_rows(2, seed=70)]
        if engine.rank == 1:
            batches[1].labels.fill_(-100)
        found = evaluate(engine.module, batches, engine.device, 1, None, engine.sum_over_ranks)  # type: ignore[arg-type]
        weights = engine.control.from_first(engine.weights())
        model = tiny_model()
        model.load_state_dict(weights)
        nats, tokens = 0.0, 0
        for seed in (60, 61, 70):
            rows = random_rows(2, seed=seed)
            with torch.no_grad():
                nats += float(model(rows.input_ids, rows.labels, rows.position_ids, rows.document_ids))
            tokens += rows.num_trainable
        assert found.num_tokens == tokens and found.loss == pytest.approx(nats / tokens, rel=1e-5)


CHECKS: tuple[Callable[[], None], ...] = (
    _the_gradient_is_applied,
    _a_nan_is_skipped_and_leaves_nothing,
    _the_growth_step_applies_the_whole_gradient,
    _weights_are_whole_on_the_first_rank,
    _a_broken_part_is_named_on_every_rank,
    _padding_is_nobodys_weight,
    _culprits_are_found_by_all_ranks_together,
    _evaluation_agrees_with_plain_pytorch,
)


def on_two_ranks() -> None:
    for check in CHECKS:
        check()


def test_stage_3_on_two_ranks() -> None:
    run_ranks(2, on_two_ranks)


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("threshold", [0, 100, 100_000])
@pytest.mark.parametrize("first", ["step", "weights", "save"])
def test_a_resumed_run_outlives_a_skipped_step(threshold: int, first: str, tmp_path: Path) -> None:
    """What is whole between its uses must be so after a skipped step too: else DeepSpeed's recorded order breaks."""
    resolved = settings("fp16", 1, stage3_param_persistence_threshold=threshold)
    models = [tiny_model() for _ in range(2)]
    for model in models:
        model.gradient_checkpointing = threshold == 100  # a backward pass with forward passes in it
    old, new = (Engine(model, resolved, lambda step: 1.0) for model in models)
    train_step(old, rows_of(old))
    old.save(tmp_path, {})
    new.load(tmp_path)
    if first == "weights":
        new.weights()
    elif first == "save":
        new.save(tmp_path / "again", {})
    for engine in (old, new):
        for step in range(6):
            if step in (2, 4):
                _poison_next(engine)
            assert train_step(engine, rows_of(engine, step)).update.applied == (step not in (2, 4))
            evaluate(engine.module, [random_rows(2, seed=60)], engine.device, 1, None)  # type: ignore[list-item]
    assert torch.equal(masters(old), masters(new))
