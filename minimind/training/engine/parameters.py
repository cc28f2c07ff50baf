"""Where parameters and their fp32 masters lie: whole on every rank (stages 0 to 2), or split over the ranks (stage 3).

Both classes answer the same questions, so that engine.py asks no stage. At stage 3 ``module.parameters()`` are tensors
of shape (0,) outside of a forward pass: whatever looks at weights must come here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import deepspeed
import torch

from minimind.interop.partitioned import part_size
from minimind.training.checkpoint.layouts import Block, PortableState, Shards
from minimind.training.engine.muon import Muon

Sum = Callable[[list[float]], list[float]]


class Parameters(Protocol):
    """What the engine asks. ``blocks`` and ``masters`` go by the optimizer's parameter groups, tensor by tensor."""

    def blocks(self) -> list[list[Block]]: ...
    def masters(self) -> list[list[torch.Tensor]]: ...
    def follow(self, state: PortableState) -> None: ...
    def after_skip(self) -> None: ...
    def broken(self, sum_over_ranks: Sum) -> list[str]: ...
    def weights(self) -> dict[str, torch.Tensor]: ...


def parameters_of(ds: Any, stage: int, offload: bool) -> Parameters:
    """By the ZeRO ``stage`` of the DeepSpeed engine ``ds``. ``offload``: of the optimizer."""
    return Partitioned(ds) if stage == 3 else Whole(ds, stage, offload)


class Whole:
    """Stages 0 to 2: every rank has all weights; masters and moments are whole at stage 0, else slices."""

    def __init__(self, ds: Any, stage: int, offload: bool) -> None:
        self._ds, self._stage, self._offload = ds, stage, offload
        for group, blocks in zip(ds.basic_optimizer.param_groups, self.blocks(), strict=True):
            if group.get("use_muon"):  # `round_robin_gradients` moves matrices, and `parameter_alignment` leaves gaps
                group["shapes"] = [shape for block in blocks for shape in block.pieces()]

    def blocks(self) -> list[list[Block]]:
        """What each tensor of the optimizer holds, in the order of the wrapper's flat tensors."""
        ds, optimizer = self._ds, self._ds.optimizer
        basic = [group["params"] for group in ds.basic_optimizer.param_groups]
        # ZeRO, BF16_Optimizer; at stage 0 the parameters themselves
        names = ("round_robin_bit16_groups", "bf16_groups")
        groups = next((getattr(optimizer, name) for name in names if hasattr(optimizer, name)), basic)
        shapes = [{ds.param_names[p]: tuple(p.shape) for p in group} for group in groups]
        if not self._stage:
            return [[Block({name: shape}) for name, shape in group.items()] for group in shapes]
        paddings = getattr(optimizer, "round_robin_bit16_padding", [()] * len(shapes))
        return [[Block(group, padding)] for group, padding in zip(shapes, paddings, strict=True)]

    def masters(self) -> list[list[torch.Tensor]]:
        """The optimizer's own tensors: this rank's."""
        return [group["params"] for group in self._ds.basic_optimizer.param_groups]

    @torch.no_grad()
    def follow(self, state: PortableState) -> None:
        """Make the weights the masters of ``state``, rounded."""
        for parameter, name in self._ds.param_names.items():
            parameter.copy_(state.masters[name])

    def after_skip(self) -> None:
        """Drop the skipped step's gradients: with offload DeepSpeed adds the next ones to them, and skips for ever."""
        gradients = getattr(self._ds.optimizer, "averaged_gradients", {}) if self._offload else {}
        for group in gradients:
            gradients[group] = None

    @torch.no_grad()
    def broken(self, sum_over_ranks: Sum) -> list[str]:
        """Names of the weights that hold a NaN or inf, on this rank; waits for the device once."""
        named = list(self._ds.module.named_parameters())
        finite = torch.stack([parameter.isfinite().all() for _, parameter in named]).tolist()
        return [name for (name, _), fine in zip(named, finite, strict=True) if not fine]

    def weights(self) -> dict[str, torch.Tensor]:
        """Copies on the CPU, on every rank."""
        return {name: value.detach().cpu().clone() for name, value in self._ds.module.state_dict().items()}


class Partitioned:
    """Stage 3: every rank has a part of each weight, of its master and of its moments."""

    def __init__(self, ds: Any) -> None:
        self._ds, self._zero = ds, ds.optimizer
        self._ranks, self._rank = self._zero.partition_count, torch.distributed.get_rank(self._zero.dp_process_group)
        if isinstance(ds.basic_optimizer, Muon):
            for masters, blocks in zip(self.masters(), self.blocks(), strict=True):
                shapes = [list(block.shapes.values()) for block in blocks]
                ds.basic_optimizer.cuts.update(zip(masters, shapes, strict=True))

    def blocks(self) -> list[list[Block]]:
        """One for each of DeepSpeed's sub-groups (``sub_group_size``)."""
        groups = self._zero.fp16_groups
        shards = [Shards({self._ds.param_names[p]: tuple(p.ds_shape) for p in g}, (), self._ranks) for g in groups]
        return self._by_group(shards)

    def masters(self) -> list[list[torch.Tensor]]:
        """DeepSpeed keeps them out of the optimizer's groups between two steps."""
        return self._by_group(self._zero.fp32_partitioned_groups_flat)

    def _by_group(self, values: Any) -> list[list[Any]]:
        found: list[list[Any]] = [[] for _ in self._ds.basic_optimizer.param_groups]
        for index, value in enumerate(values):
            found[self._zero.sub_group_to_group_id[index]].append(value)
        return found

    def follow(self, state: PortableState) -> None:
        """Make the weights the masters that the optimizer holds, rounded; all ranks call it. DeepSpeed's setters of
        masters leave the weights as they were until the next step."""
        self._zero.checkpoint_event_prologue()
        for index in range(len(self._zero.fp16_groups)):
            self._zero._reassign_or_swap_out_partitioned_parameters(index)
        self._zero.checkpoint_event_epilogue()

    def after_skip(self) -> None:
        """Make whole again what stays whole; all ranks call it. DeepSpeed leaves it cut. A module that then meets a
        neighbour's weight cut, for the first time, takes it into its list, which the recorded order lacks."""
        self._zero.checkpoint_event_epilogue()

    @torch.no_grad()
    def broken(self, sum_over_ranks: Sum) -> list[str]:
        """Names of the weights that hold a NaN or inf in any rank's part; all ranks call it."""
        named = list(self._ds.module.named_parameters())
        finite = torch.stack([self._own(parameter).isfinite().all() for _, parameter in named]).tolist()
        counts = sum_over_ranks([float(not fine) for fine in finite])
        return [name for (name, _), count in zip(named, counts, strict=True) if count]

    def _own(self, parameter: Any) -> torch.Tensor:
        """This rank's part of a weight, without the padding, which may hold anything."""
        size = part_size(parameter.ds_numel, self._ranks)
        part: torch.Tensor = parameter.ds_tensor.reshape(-1)
        return part[: max(0, min(size, parameter.ds_numel - self._rank * size))]

    @torch.no_grad()
    def weights(self) -> dict[str, torch.Tensor]:
        """Copies on the CPU of the first rank, gathered one at a time; the others have none. All ranks call it."""
        found = {}
        self._zero.checkpoint_event_prologue()
        for name, parameter in self._ds.module.named_parameters():
            with deepspeed.zero.GatheredParameters([parameter]):
                if self._rank == 0:
                    found[name] = parameter.detach().cpu().clone()
        self._zero.checkpoint_event_epilogue()
        return found
