"""A checkpoint as whole fp32 tensors by parameter name, and those into another layout.

DeepSpeed's files are cut as the run that wrote them was laid out: ZeRO flattens each parameter group into one vector
and gives every rank a slice (at stage 3 it slices each parameter by itself), stage 0 keeps whole tensors, half
precision keeps fp32 masters beside the weights. Loaded by DeepSpeed they fit the same number of ranks, wrapper and
precision only. ``read_portable`` undoes the cut (as DeepSpeed's utils/zero_to_fp32.py does for the weights alone),
``fill`` cuts anew. Nothing is rounded on the way: the masters and moments are fp32 in every layout that this trainer
accepts.

Torch only. The files pickle DeepSpeed's loss scaler, so reading them needs DeepSpeed installed, and trust in whoever
wrote them. Weakness: every rank maps all ranks' files, and reads them whole into another layout: a few hundred
megabytes at 26M, 13 GB at 1.1B.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import pad

from minimind.base.defaults import MODEL_STATES, PARTITIONED_STATES
from minimind.base.errors import UserError
from minimind.interop.partitioned import join, optimizer_files
from minimind.interop.partitioned import part as part_of

SUB_GROUP_SIZE = 10**9  # DeepSpeed's default
_HALF = {"float16": "fp16", "half": "fp16", "bfloat16": "bf16", "float32": "fp32", "float": "fp32"}


@dataclass(frozen=True)
class Layout:
    """What decides how a checkpoint is cut. Two equal layouts read each other's files as they are.

    ``accumulation``: the gradients' dtype (it chooses DeepSpeed's wrapper). ``order``: the options that move
    parameters inside ZeRO's flat vectors. ``sub_group``: elements of one of stage 3's flat vectors, 0 below it.
    """

    ranks: int
    precision: str
    stage: int
    offload: bool
    accumulation: str
    order: tuple[bool, bool]
    sub_group: int = 0

    @classmethod
    def of(cls, config: Mapping[str, Any], ranks: int) -> Layout:
        """The layout that a resolved DeepSpeed ``config`` has on this many ranks."""
        zero = config.get("zero_optimization", {})
        half = [name for name in ("fp16", "bf16") if config.get(name, {}).get("enabled")]
        precision = half[0] if half else "fp32"
        accumulation = str(config.get("data_types", {}).get("grad_accum_dtype") or precision)
        return cls(
            ranks,
            precision,
            zero.get("stage", 0),
            offload=zero.get("offload_optimizer", {}).get("device") == "cpu",
            accumulation=_HALF.get(accumulation.removeprefix("torch."), accumulation),
            order=(bool(zero.get("round_robin_gradients")), bool(zero.get("parameter_alignment"))),
            sub_group=int(zero.get("sub_group_size", SUB_GROUP_SIZE)) if zero.get("stage") == 3 else 0,
        )

    def __str__(self) -> str:
        offload = ", CPU offload" if self.offload else ""
        return f"{self.ranks} rank{'s' * (self.ranks > 1)}, {self.precision}, ZeRO stage {self.stage}{offload}"


@dataclass(frozen=True)
class Block:
    """The parameters that one tensor of the optimizer holds, in order: name -> shape.

    At stage 0 that is one parameter; under ZeRO a whole parameter group, flat. ``paddings``: unused elements after
    each parameter.
    """

    shapes: Mapping[str, Sequence[int]]
    paddings: Sequence[int] = ()

    def cut(self, whole: torch.Tensor) -> dict[str, torch.Tensor]:
        """The parameters' tensors out of the block's tensor (all ranks' slices together)."""
        flat, tensors, start = whole.reshape(-1), {}, 0
        for index, (name, shape) in enumerate(self.shapes.items()):
            size = torch.Size(shape).numel()
            tensors[name] = flat[start : start + size].view(*shape)
            start += size + self._padding(index)
        return tensors

    def slice(self, tensors: Mapping[str, torch.Tensor], part: int, size: int) -> torch.Tensor:
        """Elements [part * size, (part + 1) * size) of the block's flat tensor, zeros beyond its end."""
        flat = [tensors[name].reshape(-1) for name in self.shapes]
        whole = torch.cat([pad(tensor, (0, self._padding(index))) for index, tensor in enumerate(flat)])
        piece = whole[part * size : (part + 1) * size]
        return pad(piece, (0, size - piece.numel()))

    def pieces(self) -> list[tuple[int, ...]]:
        """The shapes in order, each padding as one row."""
        found: list[tuple[int, ...]] = []
        for index, shape in enumerate(self.shapes.values()):
            found += [tuple(shape)] + [(1, self._padding(index))] * (self._padding(index) > 0)
        return found

    def _padding(self, index: int) -> int:
        return self.paddings[index] if self.paddings else 0


@dataclass(frozen=True)
class Shards(Block):
    """At stage 3: each parameter is cut by itself for ``ranks`` ranks, and a tensor of the optimizer holds one part of
    each. ``cut`` takes the ranks' tensors one after the other, as a ``Block``'s does."""

    ranks: int = 1

    def cut(self, whole: torch.Tensor) -> dict[str, torch.Tensor]:
        """The parameters' tensors out of all ranks' tensors together."""
        return join(whole.reshape(-1).chunk(self.ranks), self.shapes)

    def slice(self, tensors: Mapping[str, torch.Tensor], part: int, size: int) -> torch.Tensor:
        """Rank ``part``'s tensor, of ``size`` elements."""
        return torch.cat([part_of(tensors[name], part, self.ranks) for name in self.shapes])


@dataclass(frozen=True)
class PortableState:
    """Whole tensors on the CPU, fp32, in the parameters' shapes.

    ``masters``: the parameters. ``moments``: per parameter the optimizer's tensors (exp_avg, momentum_buffer ...);
    empty before the first applied step. ``steps``: applied steps by the optimizer's own count, where it has one.
    ``loss_scaler``: DeepSpeed's object, None where the layout has none.
    """

    masters: dict[str, torch.Tensor] = field(default_factory=dict)
    moments: dict[str, dict[str, torch.Tensor]] = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=dict)
    loss_scaler: Any = None


def read_model_states(directory: Path) -> dict[str, Any]:
    """DeepSpeed's file of the first rank: weights (below stage 3), counters, ``ds_config``, client state."""
    partitioned = directory / PARTITIONED_STATES
    return _read(partitioned if partitioned.is_file() else directory / MODEL_STATES)


def _read(path: Path) -> dict[str, Any]:
    """A file of tensors, mapped instead of read where its format allows."""
    saved: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=False, mmap=zipfile.is_zipfile(path))
    return saved


def read_portable(directory: Path, groups: Sequence[Sequence[Block]]) -> PortableState:
    """The checkpoint in ``directory`` (where MODEL_STATES is). Its tensors may be views of mapped files.

    ``groups``: the present optimizer's parameter groups; the files of stage 0 don't name their parameters.

    Raises UserError if the optimizer's state is not made of fp32 tensors (AdamW8bit) or is of other parameters.
    """
    saved = read_model_states(directory)
    layout = Layout.of(saved["ds_config"], saved["dp_world_size"])
    shards = [_read(path)["optimizer_state_dict"] for path in _shards(directory, layout)]
    state = PortableState(loss_scaler=shards[0].get("loss_scaler") if shards else None)
    slices = _parts if layout.stage == 3 else _slices
    for block, master, values in slices(saved, shards) if shards else _whole(saved, groups):
        _refuse_quantized(directory, layout, values)
        state.masters.update(block.cut(master.detach()))
        for key, value in values.items():
            if key == "step":
                state.steps.update(dict.fromkeys(block.shapes, int(value)))
                continue
            for name, tensor in block.cut(value).items():
                state.moments.setdefault(name, {})[key] = tensor
    expected = {name: tuple(shape) for group in groups for block in group for name, shape in block.shapes.items()}
    if {name: tuple(tensor.shape) for name, tensor in state.masters.items()} != expected:
        raise UserError(f"{directory}: this checkpoint is of another model: its parameters differ; start a new run")
    return state


_Piece = tuple[Block, torch.Tensor, Mapping[str, Any]]  # a block, its master, its optimizer state


def _shards(directory: Path, layout: Layout) -> list[Path]:
    """The ranks' optimizer files, by rank; none at stage 0."""
    return list(optimizer_files(directory, layout.ranks)) if layout.stage else []


def _whole(saved: dict[str, Any], groups: Sequence[Sequence[Block]]) -> Iterator[_Piece]:
    """Stage 0, a tensor for each parameter. The masters are the weights, or beside them under half precision."""
    optimizer = saved["optimizer"]
    wrapped = "fp32_groups" in optimizer
    base = optimizer["optimizer_state_dict"] if wrapped else optimizer
    for index, (group, described) in enumerate(zip(groups, base["param_groups"], strict=True)):
        shapes = {name: shape for block in group for name, shape in block.shapes.items()}
        for place, (name, number) in enumerate(zip(shapes, described["params"], strict=True)):
            master = optimizer["fp32_groups"][index][place] if wrapped else saved["module"][name]
            yield Block({name: master.shape}), master, base["state"].get(number, {})


def _slices(saved: dict[str, Any], shards: list[dict[str, Any]]) -> Iterator[_Piece]:
    """ZeRO: a flat tensor for each parameter group, joined from the ranks' slices."""
    for index, shapes in enumerate(saved["param_shapes"]):  # in the flat tensor's order
        paddings = shards[0].get("param_alignment_paddings")
        master = torch.cat([shard["single_partition_of_fp32_groups"][index] for shard in shards])
        states = [shard["base_optimizer_state"]["state"].get(index, {}) for shard in shards]
        yield Block(shapes, paddings[index] if paddings else ()), master, _joined(states)


def _parts(saved: dict[str, Any], shards: list[dict[str, Any]]) -> Iterator[_Piece]:
    """Stage 3: a flat tensor for each of DeepSpeed's sub-groups, from the ranks' parts of each parameter."""
    for index, shapes in enumerate(saved["param_shapes"]):
        master = torch.cat([shard["fp32_flat_groups"][index] for shard in shards])
        states = [shard["optimizer_state_dict"]["state"].get(index, {}) for shard in shards]
        yield Shards(shapes, ranks=len(shards)), master, _joined(states)


def _joined(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The ranks' states of one flat tensor, one after the other."""
    return {
        key: torch.cat([state[key] for state in states]) if _is_moment(value) else value
        for key, value in states[0].items()
    }


def _is_moment(value: Any) -> bool:
    return torch.is_tensor(value) and value.ndim > 0


def _refuse_quantized(directory: Path, layout: Layout, values: Mapping[str, Any]) -> None:
    for key, value in values.items():
        if key != "step" and not (_is_moment(value) and value.dtype == torch.float32):
            why = "NAdam keeps a number for each slice" if key == "mu_product" else "AdamW8bit's state is quantized"
            raise UserError(
                f"{directory.parent}: {why} in blocks of the layout that wrote it ({layout}) "
                "and can't be cut anew; resume with that layout, or start a new run"
            )


@torch.no_grad()
def fill(
    optimizer: torch.optim.Optimizer,
    masters: Sequence[Sequence[torch.Tensor]],
    groups: Sequence[Sequence[Block]],
    state: PortableState,
    part: int,
) -> None:
    """Put moments and step into ``optimizer``, and the masters into ``masters``, which hold ``groups``' blocks.

    ``part``: which of a block's equal slices is this rank's (0 at stage 0). Hyperparameters stay as they are.
    """
    optimizer.state.clear()
    for tensors, blocks in zip(masters, groups, strict=True):
        for master, block in zip(tensors, blocks, strict=True):
            master.copy_(block.slice(state.masters, part, master.numel()).view_as(master))
            names = list(block.shapes)
            for key in state.moments.get(names[0], {}):
                whole = {name: state.moments[name][key] for name in names}
                piece = block.slice(whole, part, master.numel()).view_as(master)
                optimizer.state[master][key] = torch.empty_like(master).copy_(piece)
            if names[0] in state.steps:
                optimizer.state[master]["step"] = _step(optimizer, state.steps[names[0]], master.device)


def _step(optimizer: torch.optim.Optimizer, step: int, device: torch.device) -> int | torch.Tensor:
    """The count in the form that the optimizer keeps: torch's fused Adam on the device, its others on the CPU, ours
    as an int.
    """
    if isinstance(optimizer, (torch.optim.Adam, torch.optim.AdamW)):
        return torch.tensor(float(step), device=device)
    if type(optimizer).__module__.startswith("torch.optim"):
        return torch.tensor(float(step))
    return step
