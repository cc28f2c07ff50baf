"""Where a DeepSpeed JSON has a name that somebody wrote into the YAML, for hints; tests compare it with the schema."""

from __future__ import annotations

_SECTIONS: dict[str, tuple[str, ...]] = {
    "": (
        "train_batch_size",
        "train_micro_batch_size_per_gpu",
        "gradient_clipping",
        "steps_per_print",
        "wall_clock_breakdown",
        "communication_data_type",
        "prescale_gradients",
        "gradient_predivide_factor",
        "zero_optimization",
        "scheduler",
        "activation_checkpointing",
        "flops_profiler",
        "comms_logger",
        "csv_monitor",
        "tensorboard",
        "data_types",
        "torch_autocast",
        "aio",
    ),
    "zero_optimization": (
        "stage",
        "offload_optimizer",
        "offload_param",
        "reduce_bucket_size",
        "allgather_bucket_size",
        "overlap_comm",
        "contiguous_gradients",
        "round_robin_gradients",
        "reduce_scatter",
        "allgather_partitions",
        "sub_group_size",
    ),
    "zero_optimization.offload_optimizer": ("pin_memory", "nvme_path", "buffer_count"),
    "fp16": ("loss_scale", "min_loss_scale", "consecutive_hysteresis", "auto_cast"),
    "data_types": ("grad_accum_dtype",),
    "optimizer.params": ("betas", "eps", "momentum", "muon_lr", "adam_lr", "torch_adam", "adam_w_mode"),
    "scheduler.params": ("warmup_num_steps", "warmup_min_lr", "warmup_max_lr", "total_num_steps", "warmup_type"),
}
HOMES = {name: section for section, names in _SECTIONS.items() for name in names}


def json_home(key: str) -> str:
    """`` it belongs in the DeepSpeed JSON, ...`` for a name of its; else nothing."""
    section = HOMES.get(key.lower().replace("-", "_"))
    if section is None:
        return ""
    where = f'in "{section}"' if section else "at the top level"
    return f": it belongs in the DeepSpeed JSON (or the YAML's `deepspeed:`), {where}"
