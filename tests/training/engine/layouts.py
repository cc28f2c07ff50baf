"""Every layout that the linter can emit, from the schema itself: what test_applied_update.py runs.

A layout is what decides the arithmetic of an update. ``AXES`` are multiplied out; ``switches`` are all other settings
that could touch an update, each flipped alone on every base of the first four axes. A new value of an axis is one more
entry here (a stage that the linter begins to accept is found without one). ``INERT`` says of every other key why it
can't matter; a key of the schema that is in none of the three fails the test of completeness.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from minimind.base.errors import UserError
from minimind.config.deepspeed import Resolved, resolve
from minimind.config.deepspeed.optimizers import OPTIMIZERS
from minimind.config.deepspeed.schema import OFFLOAD_OPTIMIZER, REMOVED, TOP_LEVEL
from tests.config.paths import leaves
from tests.support import CPU, tiny_config

# 36 x 45 is no multiple of 16 bytes in half precision, and half of the matrices is enough for AdamW8bit's blocks
SMALL = tiny_config("model.num_hidden_layers=1", "model.hidden_size=36", "model.intermediate_size=45")
LR, BETAS, EPS, DECAY, CLIP, SCALE_POWER = 1e-2, (0.9, 0.98), 1e-3, 0.1, 0.1, 12
Json = dict[str, Any]


def factor(step: int) -> float:
    """The share of the peak rate: another one each step, so that a wrong count of steps shows."""
    return 1.0 / (step + 1)


def _optimizer(kind: str, **more: Any) -> Json:
    values = {"lr": LR, "betas": list(BETAS), "eps": EPS, "weight_decay": DECAY}
    params = {key: value for key, value in values.items() if key in OPTIMIZERS[kind].params}
    return {"optimizer": {"type": kind, "params": {**params, **more}}}


AXES: dict[str, dict[str, Json]] = {
    "precision": {
        "fp32": {},
        "bf16": {"bf16": {"enabled": True}},
        "fp16": {"fp16": {"enabled": True, "initial_scale_power": SCALE_POWER}},
    },
    "stage": {
        **{str(stage): {"zero_optimization": {"stage": stage}} for stage in range(3)},
        # nothing whole between its uses; by default every parameter of a small model is kept whole (a switch, below)
        "3": {"zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0}},
    },
    "offload": {
        device: {"zero_optimization": {"offload_optimizer": {"device": device}}}
        for device in OFFLOAD_OPTIMIZER["device"]
    },
    "accumulation": {
        "": {},
        **{name: {"data_types": {"grad_accum_dtype": name}} for name in TOP_LEVEL["data_types"]["grad_accum_dtype"]},
    },
    "optimizer": {kind: _optimizer(kind) for kind in OPTIMIZERS} | {"Adam": _optimizer("Adam", adam_w_mode=False)},
}
# Numbers that reach an update, with a value that is not the default
NUMBERS: dict[str, tuple[Any, ...]] = {
    "gradient_predivide_factor": (2.0,),
    "fp16.loss_scale": (2.0**SCALE_POWER,),
    "zero_optimization.reduce_bucket_size": (3000,),  # several buckets, and parameters larger than one
    "zero_optimization.allgather_bucket_size": (3000,),
    "zero_optimization.stage3_param_persistence_threshold": (100_000,),
    "zero_optimization.sub_group_size": (3000,),  # several flat tensors for a group of parameters
    "data_types.keep_in_fp32_modules": (["norm"],),
    "optimizer.params.momentum": (0.8,),
    "optimizer.params.muon_lr": (2 * LR,),
    "optimizer.params.adam_lr": (LR / 2,),
    "optimizer.params.dampening": (0.3,),
    "optimizer.params.lr_decay": (0.5,),
    "optimizer.params.initial_accumulator_value": (0.01,),
    "optimizer.params.alpha": (0.9,),
    "optimizer.params.rho": (0.8,),
    "optimizer.params.momentum_decay": (0.1,),
}

# Switches below which nothing is emitted or changed
OF_STAGE_3 = {
    "zero_optimization.stage3_param_persistence_threshold",
    "zero_optimization.sub_group_size",
    "zero_optimization.offload_param.device",
}
_STAGE_3 = "has an effect at stage 3 only, and there only on speed and memory"
_WATCHES = "watches or logs"
_DISK = "of a disk, in whose place CPU memory is used"
# Each reason is believed by nobody: test_applied_update.py sets all of these keys at once, and nothing may change
INERT: dict[str, str] = {
    **dict.fromkeys(
        (
            "tensorboard",
            "csv_monitor",
            "wandb",
            "comet",
            "comms_logger",
            "flops_profiler",
            "timers",
            "steps_per_print",
            "dump_state",
            "log_level",
            "wall_clock_breakdown",
            "memory_breakdown",
        ),
        _WATCHES,
    ),
    **dict.fromkeys(
        (
            f"zero_optimization.{name}"
            for name in TOP_LEVEL["zero_optimization"]
            if (name.startswith("stage3_") or f"stage3_{name}" in TOP_LEVEL["zero_optimization"])
            and f"zero_optimization.{name}" not in OF_STAGE_3
        ),
        _STAGE_3,
    ),
    **dict.fromkeys(
        (
            f"zero_optimization.{name}"
            for name in (
                "zero_hpz_partition_size",
                "zero_quantized_weights",
                "zero_quantized_gradients",
                "zero_quantized_nontrainable_weights",
                "memory_efficient_linear",
                "override_module_apply",
                "offload_param.pin_memory",
                "cpu_offload_param",
                "log_trace_cache_warnings",
                "enable_sanity_checks",
                "leaf_module",
                "save_muon_momentum_buffer_in_memory",
                "offload_optimizer.ratio",
                "offload_optimizer.super_offload",
                "offload_optimizer.cpuadam_cores_perc",
            )
        ),
        _STAGE_3,
    ),
    **dict.fromkeys(
        (
            f"zero_optimization.{name}"
            for name in (
                "pipeline_loading_checkpoint",
                "offload_optimizer.nvme_path",
                "offload_optimizer.buffer_count",
                "offload_optimizer.pipeline_read",
                "offload_optimizer.pipeline_write",
                "offload_optimizer.fast_init",
                "offload_param.nvme_path",
                "offload_param.buffer_count",
                "offload_param.buffer_size",
                "offload_param.max_in_cpu",
            )
        ),
        _DISK,
    ),
    "aio": _DISK,
    "checkpoint": "how checkpoints are written",
    "datastates_ckpt": "how checkpoints are written",
    **dict.fromkeys(
        (
            "activation_checkpointing",
            "pipeline",
            "autotuning",
            "data_efficiency",
            "tensor_parallel",
            "expert_parallel",
            "hybrid_engine",
            "weight_quantization",
            "compile",
            "torch_autocast",
            "zero_optimization.zenflow",
            "zero_optimization.legacy_stage1",
            "zero_optimization.elastic_checkpoint",
            "zero_optimization.load_from_fp32_weights",
            "zero_optimization.compute_grad_norm",
            "managed_gradient_accumulation",
            "fp16.fp16_master_weights_and_grads",
            "bf16.bf16_master_weights_and_grads",
            "bf16.bf16_optimizer_states",
            "bf16.immediate_grad_update",
            "bf16.check_grad_overflow",
        ),
        "refused, or dropped, unless it is as DeepSpeed's default",
    ),
    **dict.fromkeys(
        (
            "zero_optimization.cpu_offload",
            "zero_optimization.cpu_offload_use_pin_memory",
            "bfloat16",
            "zero_optimization.stage3_gather_fp16_weights_on_model_save",
        ),
        "an old name of another key",
    ),
    **dict.fromkeys(
        (
            f"optimizer.params.{name}"
            for name in (
                "torch_adam",
                "adam_w_mode",
                "amsgrad",
                "fused",
                "foreach",
                "fp32_optimizer_states",
                "set_grad_none",
            )
        ),
        "which class computes it: the linter chooses, and emits none of them",
    ),
    **dict.fromkeys(
        (
            "optimizer.type",
            "optimizer.params.lr",
            "optimizer.params.betas",
            "optimizer.params.eps",
            "optimizer.params.weight_decay",
            "train_batch_size",
            "train_micro_batch_size_per_gpu",
            "gradient_accumulation_steps",
            "gradient_clipping",
        ),
        "varied or given in every run",
    ),
    **dict.fromkeys(
        (
            "fp16.initial_scale_power",
            "fp16.loss_scale_window",
            "fp16.hysteresis",
            "fp16.min_loss_scale",
            "fp16.consecutive_hysteresis",
        ),
        "when the loss scale moves: test_engine.py follows it",
    ),
    **dict.fromkeys(
        ("sequence_parallel_size", "seq_parallel_communication_data_type", "use_data_before_expert_parallelism"),
        "of parallel forms that are not used: test_batch.py counts the rows",
    ),
    "scheduler": "the rate of a step: test_engine.py and test_deepspeed_config.py follow it",
    "optimizer.legacy_fusion": "of an optimizer that DeepSpeed would make; ours is handed to it",
    "zero_force_ds_cpu_optimizer": "which optimizers DeepSpeed takes",
    "data_types.buffer_dtype": "there are no buffers",
    "zero_optimization.allgather_partitions": "not read",
    "disable_allgather": "not read",
    "vocabulary_size": "not read",
    "disable_python_gc": "Python's memory",
    "dataloader_drop_last": "of DeepSpeed's loader, which is not used",
}

# Settings that say what holds anyway change no layout
_DEFAULTS: dict[str, Any] = {
    **dict.fromkeys((f"optimizer.params.{name}" for name in ("nesterov", "centered", "decoupled_weight_decay")), False),
    "prescale_gradients": False,
    "gradient_predivide_factor": 1.0,
    "gradient_allreduce_op": "mean",
    "fp16.loss_scale": 0,
    "fp16.auto_cast": False,
    "data_types.keep_in_fp32_modules": "auto",
    "zero_optimization.contiguous_gradients": True,
    "zero_optimization.reduce_scatter": True,
    "zero_optimization.use_multi_rank_bucket_allreduce": True,
    "zero_optimization.overlap_comm": False,
    "zero_optimization.ignore_unused_parameters": True,
    "zero_optimization.round_robin_gradients": False,
    "zero_optimization.parameter_alignment": False,
    "zero_optimization.offload_optimizer.pin_memory": True,
    "zero_optimization.stage3_param_persistence_threshold": 0,  # what the axis says
    "zero_optimization.reduce_bucket_size": SMALL.model.num_parameters(),  # what the linter fills in
    "zero_optimization.allgather_bucket_size": SMALL.model.num_parameters(),
}


@dataclass(frozen=True)
class Layout:
    """``switches``: the other settings that the resolved config carries, as sorted (path, value) pairs."""

    precision: str
    stage: int
    offload: bool
    accumulation: str
    optimizer: str
    switches: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, resolved: Resolved) -> Layout:
        accumulation = resolved.config.get("data_types", {}).get("grad_accum_dtype", resolved.precision)
        params = {
            f"optimizer.params.{name}": value
            for name, value in resolved.optimizer.params.items()
            if f"optimizer.params.{name}" not in INERT
        }
        found = {**dict(leaves(resolved.config)), **params}
        switches = tuple(
            sorted(
                (path, str(value))
                for path, value in found.items()
                if is_switch(path) and value != _DEFAULTS.get(path) and (resolved.stage == 3 or path not in OF_STAGE_3)
            )
        )
        kind = resolved.optimizer.type
        return cls(resolved.precision, resolved.stage, resolved.offload, accumulation, kind, switches)

    @property
    def base(self) -> Layout:
        """Without its switches."""
        return Layout(self.precision, self.stage, self.offload, self.accumulation, self.optimizer)

    def __str__(self) -> str:
        offload, dtype = " offload" * self.offload, f" {self.accumulation} accumulation"
        switches = "".join(f" {path.split('.')[-1]}={value}" for path, value in self.switches)
        return f"{self.precision} stage {self.stage}{offload}{dtype} {self.optimizer}{switches}"


# What test_applied_update.py does not set for a try: it prints, writes files or changes the whole process
UNTRIED = {path for path, _ in leaves(TOP_LEVEL) if INERT.get(path.split(".")[0]) in (_WATCHES, _DISK)}
UNTRIED |= {"disable_python_gc", "fp16.consecutive_hysteresis"}

_ON_AXES = {
    "zero_optimization.stage",
    "zero_optimization.offload_optimizer.device",
    "data_types.grad_accum_dtype",
    "data_types.param_dtype",  # must equal the precision
    "fp16.enabled",
    "bf16.enabled",
    "zero_allow_untested_optimizer",  # always set, as is zero_force_ds_cpu_optimizer
}


def is_inert(path: str) -> bool:
    """Whether the key, or a section it is in, cannot matter."""
    parts = path.split(".")
    sections = {".".join(parts[: size + 1]) for size in range(len(parts))}
    return bool(sections & INERT.keys())


def on_an_axis(path: str) -> bool:
    return path in _ON_AXES


def is_switch(path: str) -> bool:
    """Whether the key is tried alone, on every base."""
    return path not in _ON_AXES and not is_inert(path)


def schema_leaves() -> dict[str, Any]:
    """Every key that a JSON may hold, with its kind."""
    params = {f"optimizer.params.{key}": kind for entry in OPTIMIZERS.values() for key, kind in entry.params.items()}
    known = {path: kind for path, kind in leaves(TOP_LEVEL) if path.split(".")[0] not in REMOVED}
    known.pop("optimizer.params")
    return {**known, **params}


def merge(config: Json, more: Mapping[str, Any]) -> Json:
    """``more`` laid over ``config``, section by section."""
    for key, value in more.items():
        if isinstance(value, Mapping):
            merge(config.setdefault(key, {}), value)
        else:
            config[key] = copy.deepcopy(value)
    return config


def at(path: str, value: Any) -> Json:
    """A JSON that holds only this."""
    for name in reversed(path.split(".")):
        value = {name: value}
    return value


def accepted(config: Mapping[str, Any], world: int = 1) -> Resolved | None:
    """What the linter makes of it; None if it refuses."""
    try:
        return resolve(config, SMALL, world, CPU, emulate_fp16=True)
    except UserError:
        return None


def bases() -> dict[Layout, Json]:
    """The product of the axes: each layout once, with a JSON that gives it."""
    found: dict[Layout, Json] = {}
    for parts in itertools.product(*(axis.values() for axis in AXES.values())):
        config: Json = {"gradient_clipping": 0.0}
        for part in parts:
            merge(config, part)
        resolved = accepted(config)
        if resolved is not None:
            found.setdefault(Layout.of(resolved), config)
    return found


def settings() -> Iterator[tuple[str, Any]]:
    """Every value of every switch."""
    for path, kind in schema_leaves().items():
        if not is_switch(path):
            continue
        values = (True, False) if kind == "bool" else kind if isinstance(kind, tuple) else NUMBERS[path]
        yield from ((path, value) for value in values)


# The switches that meet the gradients' dtype; the others are tried with the usual one only
OF_REDUCTION = {"communication_data_type", "prescale_gradients", "gradient_predivide_factor"}


def is_tried(path: str, layout: Layout) -> bool:
    """Whether the switch is tried on this base: with one optimizer, unless it is the optimizer's own."""
    if path.startswith("optimizer."):
        return True
    usual = "fp32" if layout.precision == "bf16" and (layout.stage, layout.offload) != (1, True) else layout.precision
    one = "AdamW" if layout.offload else "Muon"
    return layout.optimizer == one and (layout.accumulation == usual or path in OF_REDUCTION)


_MOMENTUM = at("optimizer.params.momentum", 0.8)
_BESIDE = {"optimizer.params.nesterov": _MOMENTUM, "optimizer.params.dampening": _MOMENTUM}  # what a switch needs


def switched(base: Mapping[Layout, Json]) -> dict[Layout, Json]:
    """Each setting alone on each base on which it is tried."""
    found: dict[Layout, Json] = {}
    for layout, config in base.items():
        for path, value in settings():
            if not is_tried(path, layout):
                continue
            changed = merge(copy.deepcopy(config), {**at(path, value), **_BESIDE.get(path, {})})
            merge(changed, at(path, value))
            resolved = accepted(changed)
            if resolved is not None:
                found.setdefault(Layout.of(resolved), changed)
    return {layout: config for layout, config in found.items() if layout.switches}
