"""Every key that DeepSpeed 0.19.8 reads from its JSON, with the type of its value, as plain data.

DeepSpeed ignores an unknown top-level key (``gradient_acumulation_steps: 8`` trains with 1) and checks only
some sections, so this project keeps its own table. It is compared with the installed DeepSpeed's pydantic
models, constants and scheduler signatures in ``tests/config/test_deepspeed.py``: a new DeepSpeed that
adds or drops a key fails there, not in a run.

Kinds: ``bool int number str list names any``; ``count`` and ``amount`` are an int and a number of at least 0,
``share`` a number from 0 to 1; a tuple lists the allowed strings; a dict is a section. Known weakness:
the contents of sections that this trainer refuses when they are switched on (``data_efficiency`` ...) are not
listed (``any``).
"""

from __future__ import annotations

from typing import Any

ValueKind = Any  # "bool" | "int" | ... | tuple of choices | dict of sections

_OFFLOAD_DEVICE = ("none", "cpu", "nvme")
_DTYPES = (
    "fp32",
    "float32",
    "float",
    "torch.float32",
    "fp16",
    "float16",
    "half",
    "torch.float16",
    "bf16",
    "bfloat16",
    "torch.bfloat16",
)

FP16: dict[str, ValueKind] = {
    "enabled": "bool",
    "auto_cast": "bool",
    "loss_scale": "amount",
    "initial_scale_power": "int",
    "loss_scale_window": "int",
    "hysteresis": "int",
    "consecutive_hysteresis": "bool",
    "min_loss_scale": "int",
    "fp16_master_weights_and_grads": "bool",
}

BF16: dict[str, ValueKind] = {
    "enabled": "bool",
    "immediate_grad_update": "bool",
    "check_grad_overflow": "bool",
    "bf16_master_weights_and_grads": "bool",
    "bf16_optimizer_states": "bool",
}

OFFLOAD_OPTIMIZER: dict[str, ValueKind] = {
    "device": _OFFLOAD_DEVICE,
    "nvme_path": "str",
    "buffer_count": "count",
    "pin_memory": "bool",
    "pipeline_read": "bool",
    "pipeline_write": "bool",
    "fast_init": "bool",
    "ratio": "share",
    "super_offload": "bool",
    "cpuadam_cores_perc": "share",
}

OFFLOAD_PARAM: dict[str, ValueKind] = {
    "device": _OFFLOAD_DEVICE,
    "nvme_path": "str",
    "buffer_count": "count",
    "buffer_size": "count",
    "max_in_cpu": "count",
    "pin_memory": "bool",
}

# pydantic accepts both the field's name and its stage3_ alias
_STAGE3: dict[str, ValueKind] = {
    "prefetch_bucket_size": "count",
    "param_persistence_threshold": "count",
    "model_persistence_threshold": "count",
    "max_live_parameters": "count",
    "max_reuse_distance": "count",
    "gather_16bit_weights_on_model_save": "bool",
    "module_granularity_threshold": "int",
    "use_all_reduce_for_fetch_params": "bool",
    "allgather_sequential": "bool",
}

ZERO: dict[str, ValueKind] = {
    "stage": "int",
    "contiguous_gradients": "bool",
    "reduce_scatter": "bool",
    "reduce_bucket_size": "int",
    "use_multi_rank_bucket_allreduce": "bool",
    "allgather_partitions": "bool",
    "allgather_bucket_size": "int",
    "overlap_comm": "bool",
    "compute_grad_norm": "bool",
    "load_from_fp32_weights": "bool",
    "elastic_checkpoint": "bool",
    "offload_param": OFFLOAD_PARAM,
    "offload_optimizer": OFFLOAD_OPTIMIZER,
    "zenflow": {
        "topk_ratio": "number",
        "select_strategy": "str",
        "select_interval": "any",
        "update_interval": "any",
        "overlap_step": "bool",
        "offload": "bool",
        "auto_ratio": "number",
        "full_warm_up_rounds": "int",
        "pt_reserved_cores_perc": "number",
        "steps_per_epoch": "int",
    },
    "sub_group_size": "count",
    "cpu_offload": "bool",
    "cpu_offload_param": "bool",
    "cpu_offload_use_pin_memory": "bool",
    **_STAGE3,
    **{f"stage3_{name}": kind for name, kind in _STAGE3.items()},
    "stage3_gather_fp16_weights_on_model_save": "bool",
    "ignore_unused_parameters": "bool",
    "legacy_stage1": "bool",
    "round_robin_gradients": "bool",
    "parameter_alignment": "bool",
    "zero_hpz_partition_size": "count",
    "zero_quantized_weights": "bool",
    "zero_quantized_nontrainable_weights": "bool",
    "zero_quantized_gradients": "bool",
    "memory_efficient_linear": "bool",
    "pipeline_loading_checkpoint": "bool",
    "override_module_apply": "bool",
    "log_trace_cache_warnings": "bool",
    "enable_sanity_checks": "bool",
    "save_muon_momentum_buffer_in_memory": "bool",
    "leaf_module": {"classes": "names", "names": "names", "name_suffixes": "names"},
}

MONITORS: dict[str, ValueKind] = {
    "tensorboard": {"enabled": "bool", "output_path": "str", "job_name": "str"},
    "csv_monitor": {"enabled": "bool", "output_path": "str", "job_name": "str"},
    "wandb": {"enabled": "bool", "group": "str", "team": "str", "project": "str"},
    "comet": {
        "enabled": "bool",
        "samples_log_interval": "int",
        "project": "str",
        "workspace": "str",
        "api_key": "str",
        "experiment_name": "str",
        "experiment_key": "str",
        "online": "bool",
        "mode": "str",
    },
}

COMPILE: dict[str, ValueKind] = {
    "deepcompile": "bool",
    "autoep_non_moe": "bool",
    "free_activation": "bool",
    "free_activation_threshold": "int",
    "offload_activation": "bool",
    "offload_activation_pin_memory": "bool",
    "offload_opt_states": "bool",
    "double_buffer": "bool",
    "symmetric_memory": "bool",
    "debug_log": "bool",
    "offload_parameters": "bool",
    "sync_before_reduce": "bool",
    "sync_after_reduce": "bool",
    "sync_before_allgather": "bool",
    "sync_after_allgather": "bool",
    "keep_int_input_tensors": "bool",
    "keep_all_input_tensors": "bool",
    "passes": "list",
}

CHECKPOINT: dict[str, ValueKind] = {
    "tag_validation": ("ignore", "warn", "fail"),
    "load_universal": "bool",
    "use_node_local_storage": "bool",
    "checkpoint_serialization": "bool",
    "parallel_write": {"pipeline_stage": "bool"},
    "writer": {
        "type": "str",
        "io_buffer_size": "int",
        "io_buffer_double": "bool",
        "show_statistics": "bool",
        "data_parallel": "str",
        "decoupled": "bool",
        "io_multiplier": "int",
    },
}

# Not one pydantic model in DeepSpeed but read by get_scalar_param and friends, each with its constant
TOP_LEVEL: dict[str, ValueKind] = {
    "train_batch_size": "int",
    "train_micro_batch_size_per_gpu": "int",
    "gradient_accumulation_steps": "int",
    "managed_gradient_accumulation": "bool",
    "steps_per_print": "any",
    "dump_state": "bool",
    "disable_python_gc": "bool",
    "disable_allgather": "bool",
    "dataloader_drop_last": "bool",
    "log_level": "str",
    "communication_data_type": ("fp16", "bf16", "fp32"),
    "seq_parallel_communication_data_type": ("fp16", "bf16", "fp32"),
    "prescale_gradients": "bool",
    "gradient_predivide_factor": "number",
    "gradient_allreduce_op": ("mean", "sum"),
    "gradient_clipping": "number",
    "vocabulary_size": "int",
    "wall_clock_breakdown": "bool",
    "memory_breakdown": "bool",
    "zero_allow_untested_optimizer": "bool",
    "zero_force_ds_cpu_optimizer": "bool",
    "use_data_before_expert_parallelism": "bool",
    "sequence_parallel_size": "int",
    "datastates_ckpt": "any",
    "optimizer": {"type": "str", "params": "any", "legacy_fusion": "bool"},
    "scheduler": {"type": "str", "params": "any"},
    "fp16": FP16,
    "bf16": BF16,
    "bfloat16": BF16,
    "zero_optimization": ZERO,
    "compile": COMPILE,
    "checkpoint": CHECKPOINT,
    **MONITORS,
    "torch_autocast": {"enabled": "bool", "dtype": "str", "lower_precision_safe_modules": "list"},
    "data_types": {
        "grad_accum_dtype": _DTYPES,
        "param_dtype": _DTYPES,
        "buffer_dtype": _DTYPES,
        "keep_in_fp32_modules": "names",
    },
    "activation_checkpointing": {
        "partition_activations": "bool",
        "number_checkpoints": "int",
        "contiguous_memory_optimization": "bool",
        "synchronize_checkpoint_boundary": "bool",
        "profile": "bool",
        "cpu_checkpointing": "bool",
    },
    "comms_logger": {"enabled": "bool", "prof_all": "bool", "prof_ops": "list", "verbose": "bool", "debug": "bool"},
    "flops_profiler": {
        "enabled": "bool",
        "recompute_fwd_factor": "number",
        "profile_step": "int",
        "module_depth": "int",
        "top_modules": "int",
        "detailed": "bool",
        "output_file": "str",
    },
    "timers": {"throughput": {"enabled": "bool", "synchronized": "bool"}},
    "aio": {
        "block_size": "int",
        "queue_depth": "int",
        "intra_op_parallelism": "int",
        "single_submit": "bool",
        "overlap_events": "bool",
        "use_gds": "bool",
    },
    "autotuning": "any",
    "data_efficiency": "any",
    "pipeline": "any",
    "tensor_parallel": "any",
    "expert_parallel": "any",
    "hybrid_engine": "any",
    "weight_quantization": "any",
}

# Refused by DeepSpeed even when they are off; obsolete.py says which leftovers are dropped
REMOVED: dict[str, str] = {
    "amp": "Apex AMP: use the fp16 or bf16 section",
    "elasticity": "elastic training: set the batch sizes directly",
    "nebula": "Nebula checkpoints: this trainer writes its own verified checkpoints",
    "compression_training": "the compression library",
    "quantize_training": "mixture of quantization",
    "sparse_gradients": "sparse embedding gradients: a tied embedding's gradient is dense",
    "eigenvalue": "mixture of quantization",
    "sparse_attention": "sparse attention: attention belongs to the model",
    "graph_harvesting": "graph harvesting",
    "curriculum_learning": "the old curriculum learning: this trainer's sample order is a function of seed and epoch",
    "progressive_layer_drop": "progressive layer dropping",
}
REMOVED_ZERO: dict[str, str] = {
    "mics_shard_size": "MiCS sharding of stage 3",
    "mics_hierarchical_params_gather": "MiCS sharding of stage 3",
    "zeropp_loco_param": "LoCo-ZeRO++",
}


SCHEDULERS: dict[str, dict[str, ValueKind]] = {
    "LRRangeTest": {
        "lr_range_test_min_lr": "amount",
        "lr_range_test_step_size": "int",
        "lr_range_test_step_rate": "number",
        "lr_range_test_staircase": "bool",
        "last_batch_iteration": "int",
    },
    "OneCycle": {
        "cycle_min_lr": "amount",
        "cycle_max_lr": "amount",
        "decay_lr_rate": "amount",
        "cycle_first_step_size": "int",
        "cycle_second_step_size": "count",
        "cycle_first_stair_count": "count",
        "cycle_second_stair_count": "count",
        "decay_step_size": "count",
        "cycle_momentum": "bool",
        "cycle_min_mom": "number",
        "cycle_max_mom": "number",
        "decay_mom_rate": "number",
        "last_batch_iteration": "int",
    },
    "WarmupLR": {
        "warmup_min_lr": "amount",
        "warmup_max_lr": "amount",
        "warmup_num_steps": "int",
        "warmup_type": ("log", "linear"),
        "last_batch_iteration": "int",
    },
    "WarmupDecayLR": {
        "total_num_steps": "int",
        "warmup_min_lr": "amount",
        "warmup_max_lr": "amount",
        "warmup_num_steps": "int",
        "warmup_type": ("log", "linear"),
        "last_batch_iteration": "int",
    },
    "WarmupCosineLR": {
        "total_num_steps": "int",
        "warmup_min_ratio": "amount",
        "warmup_num_steps": "int",
        "cos_min_ratio": "amount",
        "warmup_type": ("log", "linear"),
        "last_batch_iteration": "int",
    },
}
