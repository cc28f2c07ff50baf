"""How DeepSpeed's ZeRO stage 3 cuts parameters over the ranks, in memory and in its checkpoint files.

Every parameter is cut by itself into as many equal parts as there are ranks, the last one padded; a rank's flat tensor
holds its parts one after the other (runtime/zero/partition_parameters.py ``_partition_param``). The paddings are memory
that nobody has written: they may hold a NaN.

``read_weights`` needs no DeepSpeed and runs nothing that a file says: the objects of DeepSpeed that lie beside the
tensors become empty stand-ins.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import torch

from minimind.base.defaults import PARTITIONED_STATES
from minimind.base.errors import UserError
from minimind.base.files import path_inside

Shapes = Mapping[str, Sequence[int]]


def part_size(count: int, ranks: int) -> int:
    """Elements of a parameter of ``count`` elements on each of ``ranks`` ranks, padding included."""
    return -(-count // ranks)


def join(flats: Sequence[torch.Tensor], shapes: Shapes) -> dict[str, torch.Tensor]:
    """The whole parameters out of the ranks' flat tensors [n]; ``shapes`` in the flat tensors' order."""
    tensors, start = {}, 0
    for name, shape in shapes.items():
        count = math.prod(shape)
        size = part_size(count, len(flats))
        parts = [flat.reshape(-1)[start : start + size] for flat in flats]
        whole = torch.cat(parts) if len(parts) > 1 else parts[0]
        tensors[name] = whole[:count].view(*shape)
        start += size
    return tensors


def part(whole: torch.Tensor, rank: int, ranks: int) -> torch.Tensor:
    """Rank ``rank``'s part [part_size] of one parameter of any shape, zeros beyond its end."""
    flat = whole.reshape(-1)
    size = part_size(flat.numel(), ranks)
    piece = flat[rank * size : (rank + 1) * size]
    return torch.nn.functional.pad(piece, (0, size - piece.numel()))


class _StandIn:
    """In place of an object of DeepSpeed's: takes any arguments and does nothing."""

    def __init__(self, *_: Any, **__: Any) -> None: ...


_DEEPSPEED = (
    "deepspeed.runtime.fp16.loss_scaler.LossScaler",
    "deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler",
    "deepspeed.runtime.zero.config.ZeroStageEnum",
)


def read_weights(directory: Path, saved: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The weights of the stage-3 checkpoint in ``directory``, in the training precision, by name.

    ``saved``: the content of its PARTITIONED_STATES. Raises UserError when a rank's file is missing, damaged, or of
    another checkpoint.
    """
    where = directory / PARTITIONED_STATES
    try:
        dtype, ranks = next(iter(saved["module"].values())).dtype, int(saved["dp_world_size"])
        shards = [_read(path) for path in optimizer_files(directory, ranks)]
        weights: dict[str, torch.Tensor] = {}
        for index, shapes in enumerate(saved["param_shapes"]):
            masters = join([shard["fp32_flat_groups"][index].detach() for shard in shards], shapes)
            weights.update((name, master.to(dtype)) for name, master in masters.items())
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RuntimeError, StopIteration) as error:
        raise UserError(f"{where}: does not fit the files of the ranks beside it ({error!r})") from error
    return weights


def optimizer_files(directory: Path, ranks: int) -> Iterator[Path]:
    """The ranks' optimizer files, by rank; DeepSpeed's names under bf16 have a prefix."""
    name = "zero_pp_rank_{}_mp_rank_00_optim_states.pt"
    prefix = "bf16_" if (directory / f"bf16_{name.format(0)}").is_file() else ""
    return (directory / f"{prefix}{name.format(rank)}" for rank in range(ranks))


def _read(path: Path) -> dict[str, Any]:
    known: list[Any] = [(_StandIn, name) for name in _DEEPSPEED]
    try:
        inside = path_inside(path.parent, path.name)
        with torch.serialization.safe_globals(known):
            saved: dict[str, Any] = torch.load(inside, map_location="cpu", weights_only=True, mmap=is_zipfile(inside))
    except OSError as error:
        raise UserError(
            f"{path}: {error.strerror}; the file of every rank is needed beside {PARTITIONED_STATES}"
        ) from error
    except Exception as error:  # a file that is no pickle fails in as many ways as there are bytes
        reason = str(error).strip().split("\n")[0][:160]
        raise UserError(f"{path}: can't be read as weights only ({reason})") from error
    found: dict[str, Any] = saved["optimizer_state_dict"]
    return found
