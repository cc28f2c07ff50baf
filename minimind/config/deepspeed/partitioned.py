"""What ``zero_optimization`` says for stage 3 only: parameters split over the ranks, and perhaps kept in CPU memory."""

from __future__ import annotations

from collections.abc import Callable

from minimind.config.deepspeed.lint import AUTO, Draft
from minimind.config.run import RunConfig

# By which "auto" is filled, as Hugging Face does; of the hidden size
_AUTOMATIC: dict[str, Callable[[int], int]] = {
    "prefetch_bucket_size": lambda hidden: int(0.9 * hidden * hidden),
    "param_persistence_threshold": lambda hidden: 10 * hidden,
}
_QUANTIZED = {
    "zero_quantized_weights": "it rounds the weights to 8 bits before each forward pass",
    "zero_quantized_nontrainable_weights": "it rounds weights to 8 bits",
    "zero_quantized_gradients": "it rounds gradients to 4 bits on their way",
}


def check_partitioned(draft: Draft, run: RunConfig, world_size: int) -> None:
    """Fill and check the keys of stage 3 on ``world_size`` ranks."""
    for name, rule in _AUTOMATIC.items():
        for path in (f"zero_optimization.{name}", f"zero_optimization.stage3_{name}"):
            if draft.get(path) == AUTO:
                draft.set(path, rule(run.model.hidden_size))
    _check_offload_param(draft)
    _check_secondary(draft, world_size)
    for name, what in _QUANTIZED.items():
        if draft.get(f"zero_optimization.{name}") is True:
            draft.problem(
                f"zero_optimization.{name}",
                f"true is not supported: {what}, by kernels that need CUDA, and is not proven here: delete it",
            )
    if draft.get("zero_optimization.leaf_module"):
        draft.find(
            "section-unused",
            "zero_optimization.leaf_module is dropped: it is for models that choose modules as they run (experts)",
            "delete leaf_module",
        )
        draft.drop("zero_optimization.leaf_module")


def _check_offload_param(draft: Draft) -> None:
    device = draft.get("zero_optimization.offload_param.device", "none")
    if device in ("none", AUTO):
        draft.drop("zero_optimization.offload_param")
    elif device == "nvme":
        refuse_disk(draft, "zero_optimization.offload_param.device")


def refuse_disk(draft: Draft, where: str) -> None:
    """NVMe: DeepSpeed itself needs libaio for it."""
    draft.problem(
        where,
        "nvme is not supported: what DeepSpeed swaps to the disk is not in its checkpoint files, so that this trainer "
        "could neither verify nor resume them: use cpu",
    )


def _check_secondary(draft: Draft, world_size: int) -> None:
    """hpZ: each group of so many ranks keeps a second copy of the weights for the backward pass."""
    size = draft.get("zero_optimization.zero_hpz_partition_size", 1)
    if isinstance(size, int) and (size < 1 or world_size % size):
        draft.problem(
            "zero_optimization.zero_hpz_partition_size",
            f"{size} does not divide the {world_size} rank(s) of this run: use a node's number of GPUs, or delete it",
        )
