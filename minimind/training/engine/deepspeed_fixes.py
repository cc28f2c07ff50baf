"""The private parts of DeepSpeed that engine.py and snapshot.py replace or read, and the version they were proven with.

A correction of a private method is true of one version: with another it may silently correct nothing, or spoil what was
right. So the engine starts only with ``VERSION`` (the one that setup.cfg and constraints.txt pin, too), and only where
each name below is there and takes the parameters it took. Importing this module imports no DeepSpeed.
"""

from __future__ import annotations

import importlib
import inspect
import logging
from importlib import metadata
from typing import Any

import torch

from minimind.base.errors import UserError

VERSION = "0.19.8"
INSTALL = f"pip install deepspeed=={VERSION}"

_ENGINE = "deepspeed.runtime.engine:DeepSpeedEngine"
_ZERO = "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer"
_ZERO_3 = "deepspeed.runtime.zero.stage3:DeepSpeedZeroOptimizer_Stage3"
_BF16 = "deepspeed.runtime.bf16_optimizer:BF16_Optimizer"
_SCALER = "deepspeed.runtime.fp16.loss_scaler:DynamicLossScaler"

# What is replaced or called, with its parameters' names (None: there, whatever it takes)
PRIVATE: dict[str, tuple[str, ...] | None] = {
    "deepspeed.ops:__compatible_ops__": None,
    "deepspeed.runtime.compiler:compile": (),
    "deepspeed.comm.torch:TorchBackend.get_all_gather_function": None,
    "deepspeed.comm.torch:TorchBackend.get_reduce_scatter_function": None,
    "deepspeed.runtime.bf16_optimizer:see_memory_usage": ("message", "force"),
    "deepspeed.utils.comms_logging:log_dist": None,
    "deepspeed.utils.logging:print_dist": ("message", "ranks"),
    "deepspeed.accelerator.cpu_accelerator:CPU_Accelerator.is_fp16_supported": ("self",),
    f"{_ENGINE}.backward": None,  # wrapped for profiling: its signature does not show
    f"{_ENGINE}.set_gradient_accumulation_boundary": ("self", "is_boundary"),
    f"{_ENGINE}.step": ("self", "lr_kwargs"),
    f"{_ENGINE}.clip_fp32_gradients": ("self",),
    f"{_ENGINE}.was_step_applied": ("self",),
    f"{_ENGINE}.get_global_grad_norm": ("self",),
    f"{_ENGINE}.buffered_allreduce_fallback": ("self", "grads", "elements_per_buffer"),
    "deepspeed.ops.op_builder.builder:OpBuilder.jit_load": ("self", "verbose"),
    f"{_ENGINE}._copy_recovery_script": ("self", "save_path"),
    f"{_ENGINE}.save_checkpoint": (
        "self",
        "save_dir",
        "tag",
        "client_state",
        "save_latest",
        "exclude_frozen_parameters",
    ),
    f"{_ZERO}._update_scale": ("self", "has_overflow"),
    f"{_ZERO}.step": ("self", "closure"),
    f"{_ZERO_3}._update_scale": ("self", "has_overflow"),
    f"{_ZERO_3}.step": None,  # wrapped for profiling
    f"{_ZERO_3}.checkpoint_event_prologue": ("self",),
    f"{_ZERO_3}.checkpoint_event_epilogue": ("self",),
    f"{_ZERO_3}._reassign_or_swap_out_partitioned_parameters": None,
    f"{_BF16}.step": ("self", "closure"),
    f"{_BF16}.clear_hp_grads": ("self",),
    f"{_BF16}.update_hp_grads": ("self", "clear_lp_grads"),
    f"{_SCALER}.update_scale": ("self", "overflow"),
    f"{_SCALER}.__init__": (
        "self",
        "init_scale",
        "scale_window",
        "min_scale",
        "delayed_shift",
        "consecutive_hysteresis",
        "raise_error_at_min_scale",
        "dtype",
    ),
    "deepspeed.runtime.checkpoint_engine.checkpoint_engine:CheckpointEngine.makedirs": None,
    "deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine:TorchCheckpointEngine.save": (
        "self",
        "state_dict",
        "path",
    ),
    "deepspeed.ops.adam:DeepSpeedCPUAdam.step": None,
}

# What is read from the optimizer's wrapper, by the name of its class
ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "DeepSpeedZeroOptimizer": (
        "averaged_gradients",
        "clip_grad",
        "dynamic_loss_scale",
        "loss_scaler",
        "round_robin_bit16_groups",
        "round_robin_bit16_padding",
    ),
    "BF16_Optimizer": (
        "bf16_groups",
        "clip_grad",
        "fp32_groups_gradients",
        "fp32_groups_gradients_flat",
        "fp32_groups_has_gradients",
        "immediate_grad_update",
    ),
    "DeepSpeedZeroOptimizer_Stage3": (
        "averaged_gradients",
        "clip_grad",
        "dynamic_loss_scale",
        "dp_process_group",
        "fp16_groups",
        "fp32_partitioned_groups_flat",
        "loss_scaler",
        "partition_count",
        "sub_group_to_group_id",
    ),
}


def version_problem(installed: str | None = None) -> str | None:
    """What is wrong with the ``installed`` version (by default asked for); None if it is the proven one.

    A local suffix (``0.19.8+cu126``, a build from source) is the same version.
    """
    try:
        found = installed or metadata.version("deepspeed")
    except metadata.PackageNotFoundError:
        return f"DeepSpeed is not installed: {INSTALL}"
    if found.split("+")[0] == VERSION:
        return None
    return f"DeepSpeed {found} is installed, and this trainer corrects what {VERSION} does: {INSTALL}"


def check_private_names() -> None:
    """Raises UserError unless each of ``PRIVATE`` is there and takes what it took."""
    changed = [name for name, parameters in PRIVATE.items() if not _is_there(name, parameters)]
    if changed:
        raise UserError(_changed(changed))


def check_wrapper(optimizer: Any) -> None:
    """The same for the attributes of the ``optimizer`` that DeepSpeed has built."""
    kind = type(optimizer).__name__
    if missing := [name for name in ATTRIBUTES.get(kind, ()) if not hasattr(optimizer, name)]:
        raise UserError(_changed([f"{kind}.{name}" for name in missing]))


def quiet_deepspeed() -> None:
    """DeepSpeed logs some forty lines at start; what a user must know is in our header."""
    from deepspeed.runtime import bf16_optimizer
    from deepspeed.utils import comms_logging, logger
    from deepspeed.utils.logging import print_dist

    logger.setLevel(logging.ERROR)
    comms_logging.log_dist = print_dist  # asked for by comms_logger.verbose, and logged for nobody else
    # BF16_Optimizer forces memory reports through print, each with a garbage collection.
    bf16_optimizer.see_memory_usage = _say_nothing


def use_todays_collectives() -> None:
    """Call torch's collectives by the names that replace the deprecated ones: at stage 3 DeepSpeed's choice warns with
    every parameter that is gathered. Call once the process group is there."""
    from deepspeed.comm import comm

    for attribute, name in (
        ("all_gather_function", "all_gather_single"),
        ("reduce_scatter_function", "reduce_scatter_single"),
    ):
        if hasattr(torch.distributed, name):
            setattr(comm.cdb, attribute, getattr(torch.distributed, name))


def _say_nothing(message: str, force: bool = False) -> None:
    """Takes what ``see_memory_usage`` takes: the check of a second start meets this one."""


def import_muon_uncompiled() -> None:
    """DeepSpeed imports its Muon at every start (zero/utils.py ``is_zero_supported_optimizer``), used or not, and its
    torch.compile decorators load Inductor: a second and a half. Ours is another (muon.py)."""
    from deepspeed.runtime import compiler

    original, compiler.compile = compiler.compile, lambda *_, **__: lambda function: function
    try:
        importlib.import_module("deepspeed.runtime.zero.muon.original_muon")
    finally:
        compiler.compile = original


def release_gradients(optimizer: Any) -> None:
    """Give BF16_Optimizer's fp32 gradients memory from the end of a step's first backward pass to its update, and none
    in between. DeepSpeed holds zeros there while the next forward pass reaches its peak: 4 bytes a parameter. The first
    micro-batch's gradients are copied there at once instead of added to zeros one by one, which on a GPU is two kernels
    each. The same gradients; where hooks add to them during the backward pass they stay as they are."""
    if optimizer.immediate_grad_update:
        return
    flats = optimizer.fp32_groups_gradients_flat
    sizes = [flat.untyped_storage().nbytes() for flat in flats]
    add = optimizer.update_hp_grads

    def clear_hp_grads() -> None:
        optimizer.fp32_groups_has_gradients[:] = [[False] * len(group) for group in optimizer.bf16_groups]
        for flat in flats:
            flat.untyped_storage().resize_(0)  # its views see the same storage

    def update_hp_grads(clear_lp_grads: bool = False) -> None:
        if flats[0].untyped_storage().nbytes():
            add(clear_lp_grads)
            return
        for flat, size in zip(flats, sizes, strict=True):
            flat.untyped_storage().resize_(size)
            flat.zero_()  # its padding, too, is updated
        _copy_gradients(optimizer)

    optimizer.clear_hp_grads, optimizer.update_hp_grads = clear_hp_grads, update_hp_grads
    clear_hp_grads()


@torch.no_grad()
def _copy_gradients(optimizer: Any) -> None:
    """Set BF16_Optimizer's fp32 gradients, which are zero, to the parameters' own."""
    for index, group in enumerate(optimizer.bf16_groups):
        pairs = zip(optimizer.fp32_groups_gradients[index], group, strict=True)
        found = [(single, half.grad) for single, half in pairs if half.grad is not None]
        if found:
            torch._foreach_copy_([single for single, _ in found], [half.view_as(single) for single, half in found])
        optimizer.fp32_groups_has_gradients[index] = [half.grad is not None for half in group]


def _changed(names: list[str]) -> str:
    return (
        f"the installed DeepSpeed is not the released {VERSION}: {', '.join(names)} "
        f"{'is' if len(names) == 1 else 'are'} gone or changed: {INSTALL} --force-reinstall"
    )


def _is_there(name: str, parameters: tuple[str, ...] | None) -> bool:
    module, _, path = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError):
        return False
    return parameters is None or tuple(inspect.signature(found).parameters) == parameters
