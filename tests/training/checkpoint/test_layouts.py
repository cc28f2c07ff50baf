"""A checkpoint read whole and cut anew: nothing is lost between any two layouts, on real DeepSpeed and real ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from minimind.base.errors import UserError
from minimind.config.deepspeed import Resolved, resolve
from minimind.training.checkpoint.layouts import Block, Layout, PortableState, Shards, read_portable
from minimind.training.engine.engine import CHECKPOINT_TAG, Engine
from minimind.training.engine.step import train_step
from tests.support import CPU, random_rows, run_ranks, split, tiny_config, tiny_model

RATES = {"adamw": {"lr": 1e-3}, "lion": {"lr": 1e-4}, "muon": {"lr": 1e-3, "muon_lr": 0.01}}
TOLERANCE = {"fp32": 2e-5, "bf16": 2e-2, "fp16": 3e-3}  # of a mean loss of 4.2 nats


def layout(name: str, optimizer: str = "adamw", world: int = 1, **changes: Any) -> Resolved:
    """``"bf16 2 offload"``: precision, ZeRO stage, offload (at stage 3 of the parameters too)."""
    precision, stage, *offload = name.split()
    zero: dict[str, Any] = {"stage": int(stage)}
    if stage == "3":
        zero["stage3_param_persistence_threshold"] = 0
    for what in ("offload_optimizer", "offload_param")[: 1 + (stage == "3")] if offload else ():
        zero[what] = {"device": "cpu", "pin_memory": False}
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 4 // world,
        "gradient_clipping": 1.0,
        "zero_optimization": zero,
        "optimizer": {"type": optimizer, "params": {"weight_decay": 0.1, **RATES[optimizer]}},
        **({} if precision == "fp32" else {precision: {"enabled": True}}),
    }
    return resolve({**config, **changes}, tiny_config(), world, CPU, emulate_fp16=True)


def factor(step: int) -> float:
    return 1.0 / (step + 1)


def read(engine: Engine, directory: Path) -> PortableState:
    return read_portable(directory / CHECKPOINT_TAG, engine._blocks())


def same(one: PortableState, other: PortableState) -> None:
    """Bit for bit, and not about nothing."""
    assert one.steps == other.steps
    assert one.masters.keys() == other.masters.keys() == one.moments.keys() == other.moments.keys()
    for name, master in one.masters.items():
        assert torch.equal(master, other.masters[name]), name
        assert one.moments[name].keys() == other.moments[name].keys()
        for key, moment in one.moments[name].items():
            assert torch.equal(moment, other.moments[name][key]), (name, key)
            assert moment.shape == master.shape and moment.abs().sum() > 0


def mean_loss(engine: Engine, step: int, rank: int = 0, world: int = 1) -> float:
    """Train step ``step`` of the common data order; this rank's share of the mean loss."""
    result = train_step(engine, split(random_rows(4, seed=step), 4 // world, rank, world))
    assert result.update.applied and result.update.lr == pytest.approx(
        engine.resolved.optimizer.params.get("muon_lr", engine.resolved.optimizer.params["lr"]) * factor(step)
    )
    return float(result.loss_sum) / result.tokens


def uninterrupted(optimizer: str, steps: int) -> list[float]:
    engine = Engine(tiny_model(), layout("fp32 0", optimizer), factor)
    return [mean_loss(engine, step) for step in range(steps)]


ALL = (
    "fp32 0",
    "fp32 1",
    "bf16 1",
    "bf16 2",
    "bf16 2 offload",
    "fp16 1",
    "bf16 0",
    "fp32 2",
    "bf16 3",
    "fp16 2 offload",
    "fp32 3",
    "fp16 3 offload",
    "fp32 0",
)


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize(
    ("optimizer", "layouts"),
    [
        ("adamw", ALL),
        ("muon", ("bf16 1", "fp32 0", "bf16 3", "bf16 2", "bf16 0", "fp32 3", "bf16 1")),
        ("lion", ("bf16 1", "fp32 3", "fp32 0", "fp32 1")),
    ],
)
def test_a_run_moves_through_every_layout_and_loses_nothing(
    optimizer: str, layouts: tuple[str, ...], tmp_path: Path
) -> None:
    expected = uninterrupted(optimizer, len(layouts))
    before: PortableState | None = None
    for step, name in enumerate(layouts):
        engine = Engine(tiny_model(seed=step + 1 if step else 0), layout(name, optimizer), factor)
        if before is not None:
            assert engine.load(tmp_path / str(step - 1)) == {"step": step}
            engine.save(tmp_path / f"again {step}", {})
            same(before, read(engine, tmp_path / f"again {step}"))
            for key, value in engine.weights().items():
                assert torch.equal(value, before.masters[key].to(value.dtype)), key
            assert engine.ds.global_steps == step
        assert mean_loss(engine, step) == pytest.approx(expected[step], abs=roughest(*layouts[: step + 1]))
        engine.save(tmp_path / str(step), {"step": step + 1})
        before = read(engine, tmp_path / str(step))
        engine.close()


# On one rank, on two, and the optimizer
ON_TWO = (
    ("fp32 0", "fp32 0", "adamw"),
    ("bf16 1", "bf16 1", "muon"),
    ("bf16 2 offload", "bf16 2 offload", "adamw"),
    ("fp16 1", "fp16 1", "adamw"),
    ("bf16 2", "bf16 3", "adamw"),
    ("fp32 0", "fp32 3", "muon"),
    ("fp16 3 offload", "fp16 2", "adamw"),
    ("fp16 3", "bf16 3 offload", "adamw"),
)


def roughest(*names: str) -> float:
    return max(TOLERANCE[name.split()[0]] for name in names)


def two_ranks(directory: Path, losses: dict[str, float]) -> None:
    """From one rank's checkpoint: save at once, train a step, save again; and go on from there bit for bit."""
    for number, (one, two, optimizer) in enumerate(ON_TWO):
        here = directory / str(number)
        engine = Engine(tiny_model(seed=9), layout(two, optimizer, world=2), factor)
        assert engine.load(here / "one")["from"] == one
        engine.save(here / "two", {})
        share = mean_loss(engine, 1, engine.rank, 2)
        (total,) = engine.sum_over_ranks([share])
        assert total == pytest.approx(losses[optimizer], abs=roughest(one, two)), (one, two)
        engine.save(here / "trained", {"by": 2})
        engine.barrier()
        again = Engine(tiny_model(seed=8), layout(two, optimizer, world=2), factor)
        again.load(here / "trained")
        assert [mean_loss(engine, step, engine.rank, 2) for step in (2, 3)] == [
            mean_loss(again, step, engine.rank, 2) for step in (2, 3)
        ], two
        engine.close()
        again.close()


@pytest.mark.usefixtures("one_rank")
def test_one_rank_to_two_to_one(tmp_path: Path) -> None:
    """Moments and masters bit for bit, the loss that of one rank, with matrices cut between the two ranks."""
    expected = {optimizer: uninterrupted(optimizer, 3) for optimizer in {optimizer for *_, optimizer in ON_TWO}}
    for number, (one, _, optimizer) in enumerate(ON_TWO):
        engine = Engine(tiny_model(), layout(one, optimizer), factor)
        mean_loss(engine, 0)
        engine.save(tmp_path / str(number) / "one", {"from": one})
    run_ranks(2, two_ranks, tmp_path, {optimizer: losses[1] for optimizer, losses in expected.items()})
    for number, (one, two, optimizer) in enumerate(ON_TWO):
        here = tmp_path / str(number)
        engine = Engine(tiny_model(seed=5), layout(one, optimizer), factor)
        same(read(engine, here / "one"), read(engine, here / "two"))
        assert engine.load(here / "trained") == {"by": 2}
        engine.save(here / "again", {})
        same(read(engine, here / "trained"), read(engine, here / "again"))
        assert mean_loss(engine, 2) == pytest.approx(expected[optimizer][2], abs=roughest(one, two))


@pytest.mark.usefixtures("one_rank")
def test_the_order_of_zeros_flat_tensors_may_change(tmp_path: Path) -> None:
    """``round_robin_gradients`` and ``parameter_alignment`` move parameters about, or put gaps between them."""
    options = [{"round_robin_gradients": True}, {"parameter_alignment": True}, {}]
    states = []
    for step, option in enumerate(options):
        engine = Engine(tiny_model(seed=step), layout("fp16 2", zero_optimization={"stage": 2, **option}), factor)
        if step:
            engine.load(tmp_path / str(step - 1))
        else:
            mean_loss(engine, 0)
        engine.save(tmp_path / str(step), {})
        states.append(read(engine, tmp_path / str(step)))
        same(states[0], states[-1])


@pytest.mark.usefixtures("one_rank")
def test_a_dynamic_loss_scale_goes_on_in_another_layout_and_a_fixed_one_is_the_configurations(tmp_path: Path) -> None:
    scaling = {"enabled": True, "initial_scale_power": 10, "loss_scale_window": 1, "hysteresis": 1}
    old = Engine(tiny_model(), layout("fp16 1", fp16=scaling), factor)
    mean_loss(old, 0)
    mean_loss(old, 1)
    scale = old.loss_scale
    assert scale == 2.0**11, "the scale never grew, so this test would prove nothing"
    old.save(tmp_path, {})
    again = Engine(tiny_model(), layout("fp16 2", fp16={**scaling, "loss_scale_window": 7}), factor)
    again.load(tmp_path)
    assert again.loss_scale == scale and again.optimizer.loss_scaler.scale_window == 7
    for name in ("fp16 1", "fp16 2"):
        fixed = Engine(tiny_model(), layout(name, fp16={"enabled": True, "loss_scale": 1024}), factor)
        fixed.load(tmp_path)
        assert fixed.loss_scale == 1024.0 and not fixed.optimizer.dynamic_loss_scale
        fixed.save(tmp_path / f"fixed {name}", {})
        for other in ("fp16 1", "fp16 2"):
            dynamic = Engine(tiny_model(), layout(other, fp16=scaling), factor)
            dynamic.load(tmp_path / f"fixed {name}")
            assert dynamic.loss_scale == 2.0**10 and dynamic.optimizer.dynamic_loss_scale


@pytest.mark.usefixtures("one_rank")
def test_what_cannot_be_cut_anew_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    RATES.setdefault("adamw8bit", {"lr": 1e-3})
    old = Engine(tiny_model(), layout("bf16 1", "adamw8bit"), factor)
    train_step(old, split(random_rows(4, seed=0), 4))
    old.save(tmp_path, {"step": 1})
    new = Engine(tiny_model(seed=3), layout("fp32 0", "adamw8bit"), factor)
    before = new.weights()
    with pytest.raises(UserError, match=r"AdamW8bit.*\(1 rank, bf16, ZeRO stage 1\).*resume with that layout"):
        new.load(tmp_path)
    assert all(torch.equal(value, before[name]) for name, value in new.weights().items())
    assert Engine(tiny_model(), layout("bf16 1", "adamw8bit"), factor).load(tmp_path) == {"step": 1}


@pytest.mark.usefixtures("one_rank")
def test_another_models_checkpoint_is_refused(tmp_path: Path) -> None:
    engine = Engine(tiny_model(), layout("bf16 1"), factor)
    mean_loss(engine, 0)
    engine.save(tmp_path, {})
    with pytest.raises(UserError, match="another model"):
        read_portable(tmp_path / CHECKPOINT_TAG, [[Block({"weight": (2, 2)})]])


@pytest.mark.usefixtures("one_rank")
def test_before_the_first_applied_step_there_are_no_moments_to_move(tmp_path: Path) -> None:
    old = Engine(tiny_model(), layout("bf16 2"), factor)
    old.save(tmp_path, {})
    new = Engine(tiny_model(seed=1), layout("fp32 0"), factor)
    new.load(tmp_path)
    assert not new.ds.basic_optimizer.state and not read(new, tmp_path).moments
    assert mean_loss(new, 0) == pytest.approx(uninterrupted("adamw", 1)[0], abs=TOLERANCE["bf16"])


def test_a_layout_is_what_decides_the_cut() -> None:
    config = layout("bf16 2").config
    one = Layout.of(config, 1)
    assert one == Layout.of({**config, "gradient_clipping": 0.5, "train_micro_batch_size_per_gpu": 2}, 1)
    assert one == Layout.of({**config, "data_types": {"grad_accum_dtype": "torch.float32"}}, 1)
    assert one != Layout.of({**config, "data_types": {"grad_accum_dtype": "bf16"}}, 1)
    assert one != Layout.of(config, 2)
    whole = layout("bf16 3").config
    small = {**whole["zero_optimization"], "sub_group_size": 1000}
    assert Layout.of(whole, 1) != Layout.of({**whole, "zero_optimization": small}, 1)
    for option in ("round_robin_gradients", "parameter_alignment"):
        moved = {**config["zero_optimization"], option: not config["zero_optimization"].get(option)}
        assert one != Layout.of({**config, "zero_optimization": moved}, 1)
    assert str(one) == "1 rank, bf16, ZeRO stage 2"
    assert str(Layout.of(layout("fp16 2 offload").config, 2)) == "2 ranks, fp16, ZeRO stage 2, CPU offload"


def test_a_block_pads_and_cuts() -> None:
    block = Block({"a": (2, 1), "b": (1,)}, paddings=(2, 0))
    tensors = {"a": torch.tensor([[1.0], [2.0]]), "b": torch.tensor([3.0])}
    slices = [block.slice(tensors, part, 3) for part in range(3)]
    assert [piece.tolist() for piece in slices] == [[1, 2, 0], [0, 3, 0], [0, 0, 0]]
    assert all(torch.equal(value, tensors[name]) for name, value in block.cut(torch.cat(slices)).items())


def test_a_shard_pads_and_cuts() -> None:
    """Each parameter by itself; the last part of one that does not divide is padded."""
    block = Shards({"a": (3, 1), "b": (1,)}, ranks=2)
    tensors = {"a": torch.tensor([[1.0], [2.0], [3.0]]), "b": torch.tensor([4.0])}
    slices = [block.slice(tensors, part, 3) for part in range(2)]
    assert [piece.tolist() for piece in slices] == [[1, 2, 4], [3, 0, 0]]
    assert all(torch.equal(value, tensors[name]) for name, value in block.cut(torch.cat(slices)).items())


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("target", ["fp16 1", "fp32 0", "fp16 3"])
def test_an_engine_that_has_trained_may_go_back_to_an_older_checkpoint(target: str, tmp_path: Path) -> None:
    """What a recovery does in process: nothing of the steps since is left."""
    old = Engine(tiny_model(), layout("fp16 1"), factor)
    mean_loss(old, 0)
    old.save(tmp_path, {})
    updates = []
    for trained in (0, 2):
        engine = Engine(tiny_model(seed=trained), layout(target), lambda step: 1.0)
        for step in range(trained):
            train_step(engine, split(random_rows(4, seed=50 + step), 2))
        engine.load(tmp_path)
        result = train_step(engine, split(random_rows(4, seed=1), 2))
        updates.append((result.update, result.loss_sum.item(), engine.weights()))
    assert updates[0][:2] == updates[1][:2]
    assert all(torch.equal(value, updates[1][2][name]) for name, value in updates[0][2].items())
