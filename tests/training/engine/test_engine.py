"""Real DeepSpeed against plain PyTorch: the update that is applied, for every shipped JSON.

The optimizer is replaced by SGD at rate 1, so that a step's change of the weights *is* the gradient after clipping
(AdamW's first step hardly depends on the gradient's scale and would hide a wrong one).
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from minimind.config.deepspeed import Resolved, resolve
from minimind.training.engine import engine as engine_module
from minimind.training.engine.engine import Engine, Update
from minimind.training.engine.optimizers import build_optimizer
from minimind.training.engine.step import token_weight, train_step
from minimind.training.record.recorder import Progress, Recorder
from minimind.training.values import StepMetrics
from tests.support import CPU, DS_CONFIGS, RowBatch, random_rows, run_ranks, split, tiny_config, tiny_model

CONFIGS = sorted(path.name for path in DS_CONFIGS.glob("*.json"))
ROWS = 8
TOLERANCE = {"fp32": 1e-6, "bf16": 2e-2, "fp16": 3e-3}  # relative to the largest entry of the gradient


def load(name: str, world: int = 1, **changes: Any) -> Resolved:
    """A shipped JSON with some top-level sections replaced."""
    config = {**json.loads((DS_CONFIGS / name).read_text()), **changes}
    return resolve(config, tiny_config(), world, CPU, emulate_fp16=True)


def sgd_engine(resolved: Resolved, lr: float = 1.0) -> Engine:
    """An engine whose update is minus ``lr`` times the gradient."""
    resolved.config["zero_force_ds_cpu_optimizer"] = False

    def sgd(model: torch.nn.Module, _: Resolved) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=lr)

    original, engine_module._make_optimizer = engine_module._make_optimizer, sgd
    try:
        return Engine(tiny_model(), resolved, lambda step: 1.0)
    finally:
        engine_module._make_optimizer = original


def masters(engine: Engine) -> torch.Tensor:
    """All parameters in full precision, as one vector: fp32 masters where there are some."""
    from deepspeed.utils import safe_get_full_fp32_param

    values = [safe_get_full_fp32_param(p) for p in engine.module.parameters()]
    if any(value is None for value in values):
        values = [p.detach().float() for p in engine.module.parameters()]
    return torch.cat([value.detach().reshape(-1).clone() for value in values])


def applied(engine: Engine, micro_batches: list[RowBatch]) -> tuple[torch.Tensor, Update]:
    """The step's update as a vector."""
    before = masters(engine)
    result = train_step(engine, micro_batches)
    return before - masters(engine), result.update


def plain(batch: RowBatch, precision: str, clip: float = 1.0) -> tuple[torch.Tensor, float]:
    """Clipped gradient and norm by plain PyTorch: one forward over the global batch, mean per trainable token.

    Computed in fp32 from the weights as the precision rounds them: the truth that half precision approximates.
    """
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    model = tiny_model().to(dtype).float()
    loss = model(batch.input_ids, batch.labels, batch.position_ids, batch.document_ids) / batch.num_trainable
    loss.backward()
    norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), clip))
    return torch.cat([p.grad.reshape(-1) for p in model.parameters()]), norm


def assert_same(update: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
    error = float((update - expected).abs().max() / expected.abs().max())
    assert error < tolerance, f"relative error {error:.2e}"


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("name", CONFIGS)
def test_applied_gradient_equals_plain_pytorch(name: str) -> None:
    resolved = load(name)
    batch = random_rows(ROWS, seed=1)
    expected, norm = plain(batch, resolved.precision)
    tolerance = TOLERANCE[resolved.precision]
    for micro in (8, 1):
        engine = sgd_engine(resolved)
        update, report = applied(engine, split(batch, micro))
        assert report.applied
        assert report.grad_norm == pytest.approx(norm, rel=tolerance)
        assert_same(update, expected, tolerance)
        engine.close()


def two_ranks(names: list[str]) -> list[tuple[str, int, torch.Tensor, float]]:
    """On each rank: the updates of (micro 2, accumulation 2) for every config, full windows and a short one."""
    results = []
    for name in names:
        resolved = load(name, world=2)
        for rows in (ROWS, 4):
            engine = sgd_engine(resolved)
            micro_batches = split(random_rows(rows, seed=1), 2, engine.rank, engine.world_size)
            update, report = applied(engine, micro_batches)
            results.append((name, rows, update, report.grad_norm))
            engine.close()
    return results


@pytest.mark.slow
def test_two_ranks_apply_the_same_gradient_as_one() -> None:
    first, second = run_ranks(2, two_ranks, CONFIGS)
    assert len(first) == 2 * len(CONFIGS)
    for (name, rows, update, norm), (_, _, other, _) in zip(first, second, strict=True):
        precision = load(name).precision
        expected, expected_norm = plain(random_rows(rows, seed=1), precision)
        assert_same(update, expected, TOLERANCE[precision])
        assert torch.equal(update, other), name
        assert norm == pytest.approx(expected_norm, rel=TOLERANCE[precision])


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_every_stage_in_every_precision(precision: str, stage: int) -> None:
    resolved = load(f"{precision}.json", zero_optimization={"stage": stage}, data_types={})
    assert resolved.stage == max(stage, precision != "fp32")  # half precision at stage 0 runs as stage 1
    batch = random_rows(ROWS, seed=2)
    expected, norm = plain(batch, precision)
    update, report = applied(sgd_engine(resolved), split(batch, 4))
    tolerance = TOLERANCE[precision]
    assert report.grad_norm == pytest.approx(norm, rel=tolerance)
    assert_same(update, expected, tolerance)


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("name", ["fp32.json", "bf16.json", "fp16.json", "fp16_zero2_offload.json"])
def test_binding_clip_is_applied_to_the_unscaled_gradient(name: str) -> None:
    resolved = load(name, gradient_clipping=0.01)
    batch = random_rows(ROWS, seed=3)
    expected, norm = plain(batch, resolved.precision, clip=0.01)
    assert norm > 0.02
    # a rate of 100 keeps the tiny update clear of the rounding of weights near 1
    update, report = applied(sgd_engine(resolved, lr=100.0), split(batch, 4))
    assert report.grad_norm == pytest.approx(norm, rel=TOLERANCE[resolved.precision])
    assert_same(update / 100.0, expected, TOLERANCE[resolved.precision])


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("clip", [0.0, 0.05, 100.0])
def test_fp32_on_one_rank_is_a_plain_loop_bit_for_bit(clip: float) -> None:
    """Norm, clipping and fused AdamW as torch has them; the gradients are read once for norm and clipping together."""
    resolved = load("fp32.json", gradient_clipping=clip)
    engine, model = Engine(tiny_model(), resolved, lambda step: 1.0), tiny_model()
    optimizer = build_optimizer(model, resolved.optimizer.type, resolved.optimizer.params)
    for seed in range(3):
        batch = random_rows(4, seed)
        loss = model(batch.input_ids, batch.labels, batch.position_ids, batch.document_ids)
        (loss * token_weight(1, batch.num_trainable)).backward()
        norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
        if clip:
            torch.nn.utils.clip_grads_with_norm_(model.parameters(), clip, norm)
        optimizer.step()
        optimizer.zero_grad()
        assert applied(engine, [batch])[1].grad_norm == float(norm)
    assert torch.equal(masters(engine), torch.cat([p.detach().reshape(-1) for p in model.parameters()]))
    engine.close()


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("name", ["fp16.json", "fp16_zero2.json", "fp16_zero2_offload.json", "fp16_zero3_offload.json"])
def test_the_step_on_which_the_scale_grows_applies_the_whole_gradient(name: str) -> None:
    scaling = {"enabled": True, "initial_scale_power": 8, "loss_scale_window": 2, "hysteresis": 1}
    engine = sgd_engine(load(name, fp16=scaling, gradient_clipping=0.0))
    batch = random_rows(ROWS, seed=4)
    scales, ratios = [], []
    for _ in range(6):
        weights = {key: value.float() for key, value in engine.weights().items()}
        update, report = applied(engine, split(batch, 4))
        reference = tiny_model()
        reference.load_state_dict(weights, strict=False)
        loss = reference(batch.input_ids, batch.labels, batch.position_ids, batch.document_ids)
        (loss / batch.num_trainable).backward()
        expected = torch.cat([p.grad.reshape(-1) for p in reference.parameters()])
        scales.append(report.loss_scale)
        ratios.append(float(update @ expected / (expected @ expected)))
    assert len(set(scales)) > 1, "the scale never grew, so this test would prove nothing"
    assert ratios == pytest.approx([1.0] * 6, rel=5e-3)


def poison(engine: Engine) -> None:
    """Make the next step's gradient overflow fp16 by an enormous loss weight."""
    original = engine.backward

    def huge(loss: torch.Tensor) -> None:
        engine.backward = original  # type: ignore[method-assign]
        original(loss * 1e30)

    engine.backward = huge  # type: ignore[method-assign]


def scale_trace(fp16: dict[str, Any], overflows: str) -> list[float]:
    """Loss scales of a run in which the steps marked x overflow."""
    engine = sgd_engine(load("fp16.json", fp16={"enabled": True, **fp16}))
    batch = split(random_rows(2, seed=5), 2)
    scales = []
    for mark in overflows:
        if mark == "x":
            poison(engine)
        before = masters(engine)
        update = train_step(engine, batch).update
        assert update.applied == (mark != "x")
        if mark == "x":
            assert torch.equal(before, masters(engine))
            assert not torch.tensor(update.grad_norm).isfinite()
        scales.append(update.loss_scale)
    return scales


def grad_scaler_trace(power: int, window: int, overflows: str) -> list[float]:
    """The same by torch.amp.GradScaler."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**power, growth_interval=window)
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scales = []
    for mark in overflows:
        scales.append(scaler.get_scale())
        weight.grad = torch.tensor([float("inf") if mark == "x" else 1.0])
        scaler.scale(torch.zeros(1))
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
    return scales


@pytest.mark.usefixtures("one_rank")
def test_scale_equals_torch_grad_scaler_where_the_rules_agree() -> None:
    """Halving at each overflow (hysteresis 1); doubling after ``window`` clean steps at the start."""
    settings = {"initial_scale_power": 10, "loss_scale_window": 100, "hysteresis": 1}
    overflows = "..x...xx....x.x....."
    assert scale_trace(settings, overflows) == grad_scaler_trace(10, 100, overflows)


@pytest.mark.usefixtures("one_rank")
def test_scale_grows_one_clean_step_later_than_torch_after_an_overflow() -> None:
    """DeepSpeed's rule (fp16/loss_scaler.py ``update_scale``): window + 1 clean steps, then window for each more."""
    settings = {"initial_scale_power": 10, "loss_scale_window": 3, "hysteresis": 1}
    ours = scale_trace(settings, "x" + "." * 8)
    assert ours == [1024, 512, 512, 512, 512, 1024, 1024, 1024, 2048]
    assert grad_scaler_trace(10, 3, "x" + "." * 8) == [1024, 512, 512, 512, 1024, 1024, 1024, 2048, 2048]


@pytest.mark.usefixtures("one_rank")
def test_hysteresis_spares_the_first_overflow() -> None:
    settings = {"initial_scale_power": 10, "loss_scale_window": 100, "hysteresis": 2}
    assert scale_trace(settings, "x.xx.") == [1024, 1024, 1024, 512, 256]
    consecutive = {**settings, "consecutive_hysteresis": True}
    assert scale_trace(consecutive, "x.xx.") == [1024, 1024, 1024, 1024, 512]


@pytest.mark.usefixtures("one_rank")
def test_fixed_scale_never_moves() -> None:
    assert set(scale_trace({"loss_scale": 1024}, ".x..x.")) == {1024}


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("name", ["fp16.json", "fp16_zero2.json"])
def test_overflow_at_the_smallest_scale_is_reported_not_raised(name: str) -> None:
    fp16 = {"enabled": True, "initial_scale_power": 1, "min_loss_scale": 1, "hysteresis": 1}
    engine = sgd_engine(load(name, fp16=fp16))
    batch = split(random_rows(2, seed=6), 2)
    seen = []
    for _ in range(3):
        poison(engine)
        seen.append(train_step(engine, batch).update)
    assert [(u.applied, u.loss_scale, u.exhausted) for u in seen] == [
        (False, 2, False),
        (False, 1, True),
        (False, 1, True),
    ]


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_non_finite_gradients_are_skipped_at_every_stage(precision: str, stage: int) -> None:
    engine = sgd_engine(load(f"{precision}.json", zero_optimization={"stage": stage}, data_types={}))
    batch = split(random_rows(2, seed=7), 2)
    original = engine.backward
    engine.backward = lambda loss: original(loss * float("nan"))  # type: ignore[method-assign]
    before = masters(engine)
    update = train_step(engine, batch).update
    assert not update.applied
    assert not torch.tensor(update.grad_norm).isfinite()
    assert torch.equal(before, masters(engine))
    engine.backward = original  # type: ignore[method-assign]
    assert train_step(engine, batch).update.applied  # and nothing of it is left in the next step
    assert masters(engine).isfinite().all()


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("micro", [4, 2])
@pytest.mark.parametrize("name", CONFIGS)
def test_nothing_of_a_skipped_step_is_left_in_the_next(name: str, micro: int) -> None:
    sick, well = (sgd_engine(load(name), lr=0.01) for _ in range(2))
    batches = [split(random_rows(4, seed=step), micro) for step in range(3)]
    backward = sick.backward
    for step, batch in enumerate(batches):
        ill = step == 1
        sick.backward = (lambda loss: backward(loss * float("inf"))) if ill else backward  # type: ignore[method-assign]
        assert train_step(sick, batch).update.applied == (not ill)
        if not ill:
            train_step(well, batch)
    torch.testing.assert_close(masters(sick), masters(well), rtol=0, atol=1e-6)


@pytest.mark.usefixtures("one_rank")
def test_offload_uses_deepspeeds_cpu_adam_and_agrees_with_torch() -> None:
    engines = [
        Engine(tiny_model(), load(name), lambda step: 1.0) for name in ("bf16_zero2_offload.json", "bf16_zero2.json")
    ]
    assert type(engines[0].ds.basic_optimizer).__name__ == "DeepSpeedCPUAdam"
    for step in range(3):
        for engine in engines:
            train_step(engine, split(random_rows(4, seed=step), 4))
    offloaded, plainly = (masters(engine) for engine in engines)
    # Three steps move a weight by up to 3e-3. A last bit's difference may turn the rounding of a bf16 weight.
    torch.testing.assert_close(offloaded, plainly, rtol=0, atol=1e-4)


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize(
    "name", ["fp32.json", "bf16.json", "fp16.json", "bf16_zero2_offload.json", "muon.json", "bf16_zero3_offload.json"]
)
def test_resumed_engine_goes_on_bitwise(name: str, tmp_path: Path) -> None:
    def new() -> Engine:
        return Engine(tiny_model(), load(name), lambda step: 1.0 / (step + 1))

    batches = [split(random_rows(4, seed=step), 2) for step in range(4)]
    first = new()
    for batch in batches[:2]:
        train_step(first, batch)
    first.save(tmp_path, {"step": 2})
    expected = [train_step(first, batch) for batch in batches[2:]]
    second = new()
    assert second.load(tmp_path) == {"step": 2}
    for batch, before in zip(batches[2:], expected, strict=True):
        after = train_step(second, batch)
        assert after.update == before.update
        assert torch.equal(after.loss_sum, before.loss_sum)
    assert torch.equal(masters(first), masters(second))


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("name", ["bf16.json", "fp16.json"])
def test_a_resumed_schedule_stands_at_the_applied_steps(name: str, tmp_path: Path) -> None:
    def new() -> Engine:
        return Engine(tiny_model(), load(name), lambda step: 1.0 / (step + 1))

    first = new()
    backward = first.backward
    for step in range(4):
        ill = step in (1, 2)
        first.backward = (lambda loss: backward(loss * float("inf"))) if ill else backward  # type: ignore[method-assign]
        assert train_step(first, split(random_rows(4, seed=step), 2)).update.applied == (not ill)
    first.save(tmp_path, {})
    second = new()
    second.load(tmp_path)
    assert second.lr == first.lr == pytest.approx(2e-3 / 3)


@pytest.mark.usefixtures("one_rank")
def test_the_hysteresis_that_is_left_is_restored(tmp_path: Path) -> None:
    def new() -> Engine:
        return Engine(tiny_model(), load("fp16.json"), lambda step: 1.0)

    def overflow(engine: Engine) -> None:
        backward = engine.backward
        engine.backward = lambda loss: backward(loss * float("inf"))  # type: ignore[method-assign]
        assert not train_step(engine, split(random_rows(2, seed=0), 2)).update.applied
        engine.backward = backward  # type: ignore[method-assign]

    first = new()
    overflow(first)
    assert first.loss_scale == 2.0**16  # hysteresis 2 spares the first
    first.save(tmp_path, {})
    second = new()
    second.load(tmp_path)
    overflow(second)
    assert second.loss_scale == 2.0**15


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("bad", [float("inf"), -float("inf"), float("nan")])
def test_one_gradient_that_is_not_finite_skips_an_fp32_step_without_zero(bad: float) -> None:
    engine = sgd_engine(load("fp32.json"))
    backward = engine.backward

    def sick(loss: torch.Tensor) -> None:
        backward(loss)
        next(iter(engine.module.parameters())).grad[0, 0] = bad  # type: ignore[index]

    engine.backward = sick  # type: ignore[method-assign]
    before = masters(engine)
    update = train_step(engine, split(random_rows(2, seed=7), 2)).update
    assert not update.applied and not torch.tensor(update.grad_norm).isfinite()
    assert torch.equal(before, masters(engine))


@pytest.mark.usefixtures("one_rank")
def test_the_new_configuration_wins_over_the_pickled_one(tmp_path: Path) -> None:
    old = Engine(tiny_model(), load("fp16.json"), lambda step: 1.0)
    train_step(old, split(random_rows(2, seed=0), 2))
    old.save(tmp_path, {})
    fp16 = {"enabled": True, "initial_scale_power": 4, "loss_scale_window": 7}
    optimizer = {"type": "AdamW", "params": {"lr": 5e-3, "betas": [0.8, 0.9], "eps": 1e-8, "weight_decay": 0.0}}
    new = Engine(tiny_model(), load("fp16.json", fp16=fp16, gradient_clipping=0.5, optimizer=optimizer), lambda s: 1.0)
    new.load(tmp_path)
    assert new.optimizer.clip_grad == 0.5
    assert new.optimizer.loss_scaler.scale_window == 7
    assert new.loss_scale == 2.0**16  # running state, not a setting: it goes on
    assert new.lr == 5e-3
    assert new.ds.basic_optimizer.param_groups[0]["betas"] == (0.8, 0.9)
    fixed = Engine(tiny_model(), load("fp16_fixed_scale.json"), lambda step: 1.0)
    fixed.load(tmp_path)
    assert fixed.loss_scale == 1024.0


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("kind", ["WarmupLR", "WarmupDecayLR", "WarmupCosineLR", "OneCycle", "LRRangeTest"])
def test_the_schedule_may_change_to_deepspeeds_and_back(kind: str, tmp_path: Path) -> None:
    """The applied steps decide where the new schedule stands, at the present peak."""
    params: dict[str, Any] = {
        "WarmupLR": {"warmup_num_steps": 3},
        "WarmupDecayLR": {"warmup_num_steps": 3, "total_num_steps": 9},
        "WarmupCosineLR": {"warmup_num_steps": 3, "total_num_steps": 9},
        "OneCycle": {"cycle_min_lr": 1e-4, "cycle_max_lr": 1e-2, "cycle_first_step_size": 3},
        "LRRangeTest": {"lr_range_test_min_lr": 1e-4, "lr_range_test_step_size": 2},
    }[kind]
    theirs = load("fp32.json", scheduler={"type": kind, "params": params})
    ours, batch = load("fp32.json"), split(random_rows(2, seed=0), 2)

    def rates(engine: Engine, steps: int) -> list[float]:
        return [train_step(engine, batch).update.lr for _ in range(steps)]

    def go_on(resolved: Resolved, directory: Path) -> Engine:
        engine = Engine(tiny_model(), resolved, lambda step: 1.0 / (step + 1))
        engine.load(directory)
        return engine

    whole = Engine(tiny_model(), theirs, lambda step: 1.0)
    expected = rates(whole, 3)
    whole.save(tmp_path / "theirs", {})
    expected += rates(whole, 3)
    first = Engine(tiny_model(), ours, lambda step: 1.0 / (step + 1))
    rates(first, 3)
    first.save(tmp_path / "ours", {})
    assert rates(go_on(theirs, tmp_path / "ours"), 3) == expected[3:]
    assert rates(go_on(theirs, tmp_path / "theirs"), 3) == expected[3:]
    assert rates(go_on(ours, tmp_path / "theirs"), 2) == pytest.approx([2e-3 / 4, 2e-3 / 5])


LOWEST = {"adamw8bit.json": 2.6, "lion.json": 2.6, "muon.json": 2.6, "bf16.json": 2.6, "bf16_zero2_offload.json": 2.6}


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("name", sorted(LOWEST))
def test_each_optimizer_trains(name: str) -> None:
    rates = {"lion.json": {"lr": 3e-3}, "muon.json": {"lr": 1e-2, "muon_lr": 0.02}}.get(name, {"lr": 1e-2})
    config = json.loads((DS_CONFIGS / name).read_text())
    config["optimizer"]["params"].update(rates)
    engine = Engine(tiny_model(), resolve(config, tiny_config(), 1, CPU), lambda step: 1.0)
    batch = split(random_rows(8, seed=9), 8)
    losses = []
    for _ in range(40):
        result = train_step(engine, batch)
        losses.append(float(result.loss_sum) / result.tokens)
    assert losses[0] == pytest.approx(torch.log(torch.tensor(64.0)).item(), abs=0.2)
    assert losses[-1] < LOWEST[name], losses[-1]


SOURCE_CONFIGS = ["fp32.json", "bf16.json", "fp16_zero2.json", "bf16_zero2_offload.json", "bf16_zero3.json"]


def steps_with_sources(by_source: bool, names: list[str], world: int) -> list[tuple[torch.Tensor, list[StepMetrics]]]:
    """For each config three steps (micro 2, accumulation 2 at two ranks): weights after them, and what is reported."""
    results = []
    for name in names:
        engine = sgd_engine(load(name, world=world), lr=0.05)
        reports: list[StepMetrics] = []
        recorder = Recorder(reports.append, engine.sum_over_ranks, 10, sources=("even", "odd", "absent"))
        progress = Progress()
        for step in range(3):
            rows = split(random_rows(ROWS, seed=step), 2, engine.rank, engine.world_size)
            result = train_step(engine, rows, by_source=by_source)
            progress.advance(result)
            recorder.add(result, progress)
        recorder.flush()
        results.append((masters(engine), reports))
        engine.close()
    return results


def true_source_losses(name: str) -> dict[str, tuple[float, int]]:
    """Summed loss and tokens of each source over the same three steps, row by row through the plain model."""
    engine = sgd_engine(load(name), lr=0.05)
    sums = {"even": (0.0, 0), "odd": (0.0, 0)}
    for step in range(3):
        batch = random_rows(ROWS, seed=step)
        for index in range(ROWS):
            row = batch.rows(index, index + 1)
            with torch.no_grad():
                loss = engine.module(row.input_ids, row.labels, row.position_ids, row.document_ids)
            key = ("even", "odd")[row.row_sources[0]]
            sums[key] = sums[key][0] + float(loss), sums[key][1] + row.num_trainable
        train_step(engine, split(batch, 2))
    engine.close()
    return sums


@pytest.mark.usefixtures("one_rank")
def test_losses_by_source_change_nothing_that_is_trained() -> None:
    without = steps_with_sources(False, SOURCE_CONFIGS, 1)
    with_sources = steps_with_sources(True, SOURCE_CONFIGS, 1)
    for name, (weights, reports), (same, more) in zip(SOURCE_CONFIGS, without, with_sources, strict=True):
        assert torch.equal(weights, same), name
        assert [r.loss for r in reports] == [r.loss for r in more], name
        assert not any(r.sources for r in reports)
        assert not any(r.sources for r in more[:-1])
        truth = true_source_losses(name)
        for found in more[-1].sources:
            nats, tokens = truth[found.source]
            assert found.tokens == tokens
            assert found.loss == pytest.approx(nats / tokens, rel=1e-3)
        assert [found.source for found in more[-1].sources] == ["even", "odd"]  # of the third there was nothing


@pytest.mark.slow
def test_losses_by_source_are_sums_over_ranks() -> None:
    names = ["fp32.json", "bf16_zero3.json"]
    for name, (_, first), (_, second) in zip(names, *run_ranks(2, steps_with_sources, True, names, 2), strict=True):
        truth = true_source_losses_alone(name)
        assert first[-1].sources == second[-1].sources
        for found in first[-1].sources:
            nats, tokens = truth[found.source]
            assert found.tokens == tokens
            assert found.loss == pytest.approx(nats / tokens, rel=1e-5 if name == "fp32.json" else 1e-3)


def true_source_losses_alone(name: str) -> dict[str, tuple[float, int]]:
    truth: dict[str, tuple[float, int]] = run_ranks(1, true_source_losses, name)[0]
    return truth


def test_a_norm_on_a_device_is_not_read_at_once() -> None:
    """Reading would stall the host; "meta" stands for a device, whose values cannot be read at all."""
    norm = torch.ones((), device="meta")
    assert engine_module._unread(norm) is not None and isinstance(engine_module._unread(norm), torch.Tensor)
    assert engine_module._unread(torch.tensor(2.0)) == 2.0
    assert engine_module._unread(3.0) == 3.0
    assert engine_module._unread(None) != engine_module._unread(None)  # NaN: DeepSpeed has none


def test_deepspeeds_muon_is_imported_without_inductor() -> None:
    """In a fresh process: the import that DeepSpeed does at every start loads no compiler."""
    code = (
        "import sys; from minimind.training.engine.deepspeed_fixes import import_muon_uncompiled as go; go();"
        "from deepspeed.runtime.zero.muon.muon_optimizer import MuonWithAuxAdam;"
        "print('torch._inductor.compile_fx' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == "False"
