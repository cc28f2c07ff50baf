"""The update that real DeepSpeed applies, over every layout that the linter can emit, against plain PyTorch's.

test_engine.py looks at the gradient of one step, for shipped JSONs. Here a user's JSON may choose anything that is
accepted: three steps of the real optimizer (moments, step counts, decay, rates and clipping all show), each parameter's
fp32 master compared. What DeepSpeed does wrong in a layout must be corrected, or the linter must not emit the layout.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from minimind.base.hardware import Hardware
from minimind.training.engine import optimizers
from minimind.training.engine.engine import Engine
from minimind.training.engine.step import train_step
from tests.support import DS_CONFIGS, run_ranks, split
from tests.training.engine import plain
from tests.training.engine.layouts import (
    AXES,
    CLIP,
    NUMBERS,
    OF_REDUCTION,
    UNTRIED,
    Json,
    Layout,
    accepted,
    at,
    bases,
    factor,
    is_inert,
    merge,
    on_an_axis,
    schema_leaves,
    settings,
    switched,
)
from tests.training.engine.plain import Run

# Relative to the update's length: where gradients are summed in fp32, and where in half (its rounding is the layout's)
TORCHS = ("SGD", "Adagrad", "RMSprop", "Adadelta", "Adamax", "NAdam", "RAdam")  # as torch has them
EXACT = dict.fromkeys(TORCHS, 1e-3) | {"AdamW": 1e-3, "Adam": 1e-3, "AdamW8bit": 0.05, "Lion": 0.05, "Muon": 0.15}
# SGD applies the gradient itself, and half precision leaves some 9% of a norm's smallest gradients to rounding
ROUGH = dict.fromkeys(TORCHS, 0.03) | {
    "SGD": 0.12,
    "AdamW": 0.02,
    "Adam": 0.02,
    "AdamW8bit": 0.05,
    "Lion": 0.8,
    "Muon": 0.6,
}
# Lion's signs and Muon's small singular values turn on a rounding; the update's length hardly does
LENGTH = dict.fromkeys(TORCHS, 0.02) | {
    "SGD": 0.05,
    "AdamW": 0.02,
    "Adam": 0.02,
    "AdamW8bit": 0.02,
    "Lion": 0.02,
    "Muon": 0.15,
}


@dataclass(frozen=True)
class Difference:
    """The worst parameter of a run: relative error and relative length of its update."""

    layout: Layout
    run: Run
    error: float
    length: float
    where: str
    remarks: tuple[str, ...] = ()

    def wrong(self) -> str | None:
        """What to print if the update is not plain PyTorch's."""
        limits = ROUGH if self.rough else EXACT
        kind = self.layout.optimizer
        fine = self.error <= limits[kind] and abs(self.length - 1) <= LENGTH[kind] and not self.remarks
        return None if fine else str(self)

    def __str__(self) -> str:
        how = f"{'clipped' if self.run.clips else 'not clipped'}, accumulation {self.run.accumulation}"
        off = f"{self.error:.1e} off, {self.length:.3f} of the length, in {self.where}"
        return "; ".join([f"{self.layout}: {how}, {self.run.world} rank(s): {off}", *self.remarks])

    @property
    def rough(self) -> bool:
        """Whether gradients are added, or sent to the other ranks, in half precision."""
        sent = dict(self.layout.switches).get("communication_data_type", self.layout.precision)
        return self.layout.accumulation != "fp32" or (self.run.world > 1 and sent != "fp32")


def runs(layout: Layout, world: int) -> Iterator[Run]:
    """How a layout is tried: clipping and accumulation in every combination by AdamW and Muon; by others, on two ranks,
    and at stage 3 in half of them, AdamW in one half and Adam in the other. With switches once, with everything that an
    update has."""
    params = {name.split(".")[-1]: value for name, value in layout.switches if "params" in name}
    own = {name: float(params.pop(name)) for name in ("momentum", "muon_lr", "adam_lr") if name in params}
    others = tuple(
        (name, value == "True" if value in ("True", "False") else float(value)) for name, value in params.items()
    )
    chosen: dict[str, Any] = {**own, "others": others}
    for clips, accumulation in ((True, 3), (False, 3), (True, 1), (False, 1)):
        run = Run(layout.optimizer, layout.precision, clips, accumulation, world, **chosen)
        if layout.switches or (layout.optimizer in TORCHS and world == 1):  # one line of torch's each
            yield replace(run, accumulation=2, steps=2)
            return
        all_four = world == 1 and layout.stage < 3 and layout.optimizer in ("AdamW", "Muon")
        if all_four or (clips == (accumulation == 3)) == (layout.optimizer in ("AdamW", "Lion")):
            yield run


def try_out(layout: Layout, config: Json, run: Run) -> Difference:
    """The steps of ``run`` by the engine, against plain PyTorch's. All ranks call it; the first compares."""
    rows = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": run.accumulation}
    resolved = accepted({**config, **rows, "gradient_clipping": CLIP if run.clips else 0.0}, run.world)
    assert resolved is not None
    engine = Engine(plain.small_model(), resolved, factor)
    try:
        steps = list(_steps(engine, run))
        remarks = tuple(_remarks(engine, layout))
    finally:
        engine.close()
    return _compare(layout, run, steps, remarks) if engine.rank == 0 else Difference(layout, run, 0.0, 1.0, "")


def _steps(engine: Engine, run: Run) -> Iterator[plain.Tensors]:
    before = masters(engine)
    for rows in run.windows():
        assert train_step(engine, split(rows, 1, engine.rank, engine.world_size)).update.applied
        after = masters(engine)
        yield {name: value - before[name] for name, value in after.items()}
        before = after


def masters(engine: Engine) -> plain.Tensors:
    """Every parameter in full precision, by name: the optimizer's own tensors, joined over the ranks.

    Not by DeepSpeed's safe_get_full_fp32_param, which reads the wrong places under ``round_robin_gradients``.
    """
    found: plain.Tensors = {}
    for tensors, blocks in zip(engine._masters(), engine._blocks(), strict=True):
        for part, block in zip(tensors, blocks, strict=True):
            assert part.dtype == torch.float32
            part = part.detach()
            parts = [torch.empty_like(part) for _ in range(engine.world_size if engine.resolved.stage else 1)]
            if len(parts) > 1:
                dist.all_gather(parts, part)
            whole = torch.cat(parts) if len(parts) > 1 else part
            found |= {name: value.clone() for name, value in block.cut(whole).items()}
    return found


def _remarks(engine: Engine, layout: Layout) -> Iterator[str]:
    """What must hold besides the update: fp32 masters and moments, and weights that are the masters, rounded."""
    for master, state in engine.ds.basic_optimizer.state.items():
        kept = [master, *(value for value in state.values() if torch.is_tensor(value) and value.ndim)]
        if layout.optimizer != "AdamW8bit" and {tensor.dtype for tensor in kept} != {torch.float32}:
            yield "a master or moment is not fp32"
    weights = engine.weights()  # at stage 3 only the first rank gets them
    for name, value in masters(engine).items():
        if name in weights and not torch.equal(weights[name], value.to(weights[name].dtype)):
            yield f"{name} is not its master, rounded"
    if engine.rank == 0 and len(weights) != len(dict(engine.module.named_parameters())):
        yield "weights are missing"


def _compare(layout: Layout, run: Run, steps: Sequence[plain.Tensors], remarks: tuple[str, ...]) -> Difference:
    worst = Difference(layout, run, 0.0, 1.0, "", remarks)
    for step, (mine, truth) in enumerate(zip(steps, plain.updates(run), strict=True)):
        for name, expected in truth.items():
            error = float((mine[name] - expected).norm() / expected.norm())
            if not error <= worst.error:
                length = float(mine[name].norm() / expected.norm())
                worst = Difference(layout, run, error, length, f"{name} in step {step + 1}", remarks)
    return worst


def try_out_all(layouts: Sequence[tuple[Layout, Json]], world: int) -> list[Difference]:
    """Every run of every layout; Muon iterates in fp32, as on a processor without bf16."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(optimizers, "detect", lambda: Hardware("cpu", fp16=False, bf16=False))
        return [try_out(layout, config, run) for layout, config in layouts for run in runs(layout, world)]


def wrong(differences: Sequence[Difference]) -> str:
    return "\n".join(text for difference in differences if (text := difference.wrong()))


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("precision", AXES["precision"])
def test_one_rank_applies_plain_pytorchs_update(precision: str) -> None:
    chosen = [(layout, config) for layout, config in bases().items() if layout.precision == precision]
    found = try_out_all(chosen, 1)
    halves = [each for each, _ in chosen if each.stage == 3 or each.optimizer not in ("AdamW", "Muon")]
    alone = sum(each.optimizer in TORCHS for each in halves)  # of the four of clipping and accumulation, one, or two
    assert len(found) == 4 * len(chosen) - 2 * len(halves) - alone
    assert len(chosen) > 30 and {layout.stage for layout, _ in chosen} >= {1, 2, 3}
    assert not wrong(found)


@pytest.mark.slow
def test_two_ranks_apply_plain_pytorchs_update() -> None:
    """One pair of processes for all of it."""
    every = {**bases(), **switched(bases())}
    chosen = {layout: config for layout, config in every.items() if not _is_long(layout)}
    assert {layout.stage for layout in chosen if layout.switches} == {0, 1, 2, 3}
    assert {layout.optimizer for layout in chosen if layout.offload} >= {"AdamW", "Adam", "SGD", "Lion", "Muon"}
    found, _ = run_ranks(2, try_out_all, list(chosen.items()), 2)
    assert len(found) >= len(chosen)
    assert not wrong(found)


def _is_long(layout: Layout) -> bool:
    """What two ranks leave to the soak test, because it is minutes: stage 3 sends much, and most of its switches are of
    speed; of torch's own optimizers, which see one element at a time, SGD stands for all, and with offload, where every
    optimizer gets the same flat tensors as without, Adam for all, and a sample of the others (one rank tries each)."""
    if layout.optimizer in TORCHS and layout.optimizer != "SGD":
        return True
    if layout.offload and layout.optimizer not in ("AdamW", "Adam"):
        here = (layout.precision, layout.stage, layout.accumulation)
        return here not in (("bf16", 2, "fp32"), ("fp32", 3, "fp32")) or bool(layout.switches)
    return layout.stage == 3 and bool(layout.switches) and (layout.precision != "fp32" or layout.offload)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_two_ranks_apply_plain_pytorchs_update_in_every_other_layout() -> None:
    chosen = [item for item in {**bases(), **switched(bases())}.items() if _is_long(item[0])]
    found, _ = run_ranks(2, try_out_all, chosen, 2)
    assert len(found) >= len(chosen) > 50
    assert not wrong(found)


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("stage", ["1", "2", "3"])
@pytest.mark.parametrize("precision", AXES["precision"])
def test_what_is_called_inert_changes_nothing(precision: str, stage: str) -> None:
    config = merge(copy.deepcopy(AXES["precision"][precision]), AXES["stage"][stage])
    merge(config, AXES["optimizer"]["AdamW"])
    resolved = accepted(config)
    assert resolved is not None
    layout, changed, count = Layout.of(resolved), copy.deepcopy(config), 0
    for path, kind in schema_leaves().items():
        if not is_inert(path) or path in UNTRIED or not (kind == "bool" or isinstance(kind, tuple)):
            continue
        for value in (True, False) if kind == "bool" else kind:
            attempt = merge(copy.deepcopy(changed), at(path, value))
            if (result := accepted(attempt)) is not None and Layout.of(result) == layout:
                changed, count = attempt, count + 1
    assert count > 30
    run = Run("AdamW", precision, clips=True, accumulation=3, world=1)
    plainly, at_once = (try_out(layout, json, run) for json in (config, changed))
    assert (at_once.error, at_once.length) == (plainly.error, plainly.length)


# ------------------------------------------------------------------ nothing that is accepted stays outside


def test_every_key_of_the_schema_is_an_axis_a_switch_or_inert() -> None:
    unknown = [
        path
        for path, kind in schema_leaves().items()
        if not on_an_axis(path)
        and not is_inert(path)
        and kind != "bool"
        and not isinstance(kind, tuple)
        and path not in NUMBERS
    ]
    assert not unknown, "say in layouts.py what they do to an update"
    assert NUMBERS.keys() <= schema_leaves().keys()


def signs(layout: Layout) -> set[tuple[object, ...]]:
    """What must have been tried: the layout without switches, and each switch with its surroundings."""
    around = (layout.precision, layout.stage, layout.offload)
    named = {
        (*around, layout.accumulation if path in OF_REDUCTION else "", path, "" if path in NUMBERS else value)
        for path, value in layout.switches
    }
    return {(layout.base,)} | named


@pytest.fixture(scope="module")
def tried() -> set[tuple[object, ...]]:
    every = bases()
    return {sign for layout in [*every, *switched(every)] for sign in signs(layout)}


def test_every_shipped_json_is_in_the_matrix(tried: set[tuple[object, ...]]) -> None:
    for path in DS_CONFIGS.glob("*.json"):
        resolved = accepted(json.loads(path.read_text(encoding="utf-8")))
        assert resolved is not None
        assert signs(Layout.of(resolved)) <= tried, path.name


@pytest.mark.parametrize("seed", range(8))
def test_whatever_the_linter_emits_is_in_the_matrix(seed: int, tried: set[tuple[object, ...]]) -> None:
    """JSONs of random settings, several at once."""
    draw, emitted = random.Random(seed), 0
    everything = list(settings())
    for _ in range(300):
        config: Json = {}
        for axis in AXES.values():
            merge(config, draw.choice(list(axis.values())))
        for path, value in draw.sample(everything, draw.randint(0, 4)):
            merge(config, at(path, value))
        if (resolved := accepted(config, world=draw.choice([1, 2, 4]))) is not None:
            emitted += 1
            assert signs(Layout.of(resolved)) <= tried, config
    assert emitted > 10


def test_a_layout_that_the_matrix_lacks_is_noticed(tried: set[tuple[object, ...]]) -> None:
    known = next(iter(bases()))
    assert signs(known) <= tried
    for unknown in (
        replace(known, stage=4),
        replace(known, accumulation="bf16"),
        replace(known, optimizer="Lamb"),
        replace(known, switches=(("zero_optimization.new_option", "True"),)),
    ):
        assert not signs(unknown) <= tried
