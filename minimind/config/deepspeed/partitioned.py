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
# ZeRO++'s, whose kernels need CUDA
_QUANTIZED = {
    "zero_quantized_weights": "weights are gathered in their own precision, not rounded to 8 bits",
    "zero_quantized_nontrainable_weights": "every weight is trained",
    "zero_quantized_gradients": "gradients are reduced in their own precision, not rounded to 4 bits",
}


def check_partitioned(draft: Draft, run: RunConfig, world_size: int) -> None:
    """Fill and check the keys of stage 3 on ``world_size`` ranks."""
    for name, rule in _AUTOMATIC.items():
        for path in (f"zero_optimization.{name}", f"zero_optimization.stage3_{name}"):
            if draft.get(path) == AUTO:
                draft.set(path, rule(run.model.hidden_size))
    _check_offload_param(draft)
    _check_secondary(draft, world_size)
    for name, instead in _QUANTIZED.items():
        path = f"zero_optimization.{name}"
        if draft.get(path) is True:
            draft.unused("setting-dropped", path, f"{path} true is not used: {instead}", "delete it")
            draft.drop(path)
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
        why = "what DeepSpeed keeps on a disk is copied beside a checkpoint unverified"
        keep_in_memory(draft, "zero_optimization.offload_param", "weights", why)


def keep_in_memory(draft: Draft, section: str, what: str, why: str) -> None:
    """NVMe at stage 3 is CPU memory: the updates are the same, and right."""
    text = f"{section}.device nvme is cpu: the {what} are kept in CPU memory, for {why}"
    draft.unused("setting-dropped", f"{section}.device", text, 'write "cpu"; `minimind plan` has the bytes')
    draft.set(f"{section}.device", "cpu")


def _check_secondary(draft: Draft, world_size: int) -> None:
    """hpZ: each group of so many ranks keeps a second copy of the weights for the backward pass.

    DeepSpeed takes no more than there are ranks (utils/groups.py ``_create_zero_param_parallel_group``).
    """
    path = "zero_optimization.zero_hpz_partition_size"
    size = draft.get(path, 1)
    if not isinstance(size, int):
        return
    if size > world_size:
        ranks = f"{world_size} rank{'s' * (world_size > 1)}"
        text = f"{path} {size} is more than this run's {ranks}: DeepSpeed uses {world_size}"
        draft.find("hpz-other-ranks", text, "use a node's number of GPUs")
        draft.set(path, world_size)
    elif size < 1 or world_size % size:
        draft.problem(path, f"{size} does not divide the {world_size} rank(s): use a node's number of GPUs")
