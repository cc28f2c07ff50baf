"""Every field of Hugging Face's TrainingArguments, and what it means here; docs/hf_arguments.md is made of it.

``USED``: the same name and meaning. ``OTHER``: this trainer has it under another name, or decides it in another way.
``UNUSED``: without meaning here; accepted, and said when it is given another value than Hugging Face's default.
``REFUSED``: would train differently and is not there; refused unless it is off. tests compare the table with the
installed transformers; fields of older versions are in it too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Status = Literal["used", "other", "unused", "refused"]


@dataclass(frozen=True)
class Meaning:
    """``text``: for "used" a remark or nothing, else what it is here, or why it has no meaning. ``off``: values
    that ask for nothing (besides None and False)."""

    status: Status
    text: str = ""
    off: tuple[Any, ...] = ()


def _used(text: str = "") -> Meaning:
    return Meaning("used", text)


def _other(text: str) -> Meaning:
    return Meaning("other", text)


def _unused(text: str, *off: Any) -> Meaning:
    return Meaning("unused", text, off)


def _refused(text: str, *off: Any) -> Meaning:
    return Meaning("refused", text, off)


_HUB = "nothing is uploaded; the command `export` writes a directory that can be"
_BATCHES = "batches are read from a memory-mapped store of tokens, without worker processes"
_COLUMNS = "records are read by their content; see `text_field` and `map`"
_WRAPPER = "DeepSpeed reduces the gradients, not DistributedDataParallel"
_KERNELS = "the model chooses its kernels"
_EVALUATION = "the held-out loss is computed in rows of the training batch, exactly"
_FSDP = "DeepSpeed's ZeRO splits the states: `zero_optimization` in the JSON"

TABLE: dict[str, Meaning] = {
    "output_dir": _used(),
    "per_device_train_batch_size": _used("rows of `max_seq_length` tokens"),
    "num_train_epochs": _used("default 1"),
    "max_steps": _used("-1 is: not given"),
    "learning_rate": _used("default by optimizer and size"),
    "lr_scheduler_type": _used(
        "cosine and linear (to 0, unless `min_lr_ratio` is given), constant, constant_with_warmup, "
        "warmup_stable_decay, cosine_with_min_lr; of ours cooldown (constant, then linear to 0 over the last seven "
        "tenths); by default a cosine to a tenth"
    ),
    "lr_scheduler_kwargs": _other("min_lr_rate and min_lr become `min_lr_ratio`; other keys are refused"),
    "warmup_steps": _used("below 1 it is `warmup_ratio`"),
    "warmup_ratio": _used(),
    "optim": _used("adamw_torch, adamw_torch_fused, adamw_bnb_8bit, lion_32bit, sgd, adagrad, rmsprop and their like"),
    "optim_args": _refused("the optimizer's parameters are in the DeepSpeed JSON", ""),
    "optim_target_modules": _refused("of GaLore and APOLLO, which are not here"),
    "weight_decay": _used(),
    "adam_beta1": _used(),
    "adam_beta2": _used(),
    "adam_epsilon": _used(),
    "gradient_accumulation_steps": _used(),
    "average_tokens_across_devices": _unused("always so: the loss is the mean over all ranks' tokens", True),
    "max_grad_norm": _used("0 switches clipping off"),
    "label_smoothing_factor": _refused("the loss is plain cross-entropy", 0, 0.0),
    "bf16": _used(),
    "fp16": _used(),
    "bf16_full_eval": _unused("evaluation runs in the training precision"),
    "fp16_full_eval": _unused("evaluation runs in the training precision"),
    "tf32": _unused("PyTorch's default holds"),
    "activation_checkpointing": _other("`gradient_checkpointing`"),
    "activation_checkpointing_kwargs": _unused("there is one way of recomputing"),
    "gradient_checkpointing": _used(),
    "gradient_checkpointing_kwargs": _unused("there is one way of recomputing"),
    "torch_compile": _other("`compile: on` or `off`"),
    "torch_compile_backend": _unused("inductor compiles"),
    "torch_compile_mode": _unused("the default mode compiles"),
    "use_liger_kernel": _unused(_KERNELS),
    "liger_kernel_config": _unused(_KERNELS),
    "use_cache": _unused("training keeps no cache"),
    "neftune_noise_alpha": _refused("embeddings get no noise", 0),
    "torch_empty_cache_steps": _unused("memory is planned before the run: the command `plan`"),
    "auto_find_batch_size": _unused("the command `plan` finds the largest micro-batch before the run"),
    "logging_strategy": _unused("every `logging_steps`", "steps"),
    "logging_steps": _used("default 10; below 1 a share of the run"),
    "logging_first_step": _unused("the first step is always logged"),
    "log_on_each_node": _unused("rank 0 logs", True),
    "logging_nan_inf_filter": _unused("a NaN is shown, and its cause sought", True),
    "include_num_input_tokens_seen": _unused("tokens are always counted", "no"),
    "log_level": _unused("findings are always shown", "passive"),
    "log_level_replica": _unused("other ranks are silent", "warning"),
    "disable_tqdm": _unused("there is a line a log step, no bar"),
    "report_to": _used("none, wandb, tensorboard, swanlab, or a list of them"),
    "run_name": _used(),
    "project": _other("`wandb_project`"),
    "trackio_space_id": _unused("there is no trackio", "trackio"),
    "trackio_bucket_id": _unused("there is no trackio"),
    "trackio_static_space_id": _unused("there is no trackio"),
    "eval_strategy": _used("no, steps or epoch"),
    "eval_steps": _used("below 1 a share of the run; default: ten evaluations a run, for 2% of its time at most"),
    "eval_delay": _unused("evaluations are at their steps from the start", 0),
    "per_device_eval_batch_size": _unused(_EVALUATION, 8),
    "prediction_loss_only": _unused("only the loss is computed", True),
    "eval_on_start": _unused("the first evaluation is at its step"),
    "eval_do_concat_batches": _unused(_EVALUATION, True),
    "eval_use_gather_object": _unused(_EVALUATION),
    "eval_accumulation_steps": _unused(_EVALUATION),
    "include_for_metrics": _unused("only the loss is computed", []),
    "batch_eval_metrics": _unused("only the loss is computed"),
    "save_only_model": _unused("a checkpoint is always complete; weights alone are in `final/`"),
    "save_strategy": _used("no, steps, epoch; a stop and the end always save"),
    "save_steps": _used("below 1 a share of the run; default: by the clock, at most 2% of the time"),
    "save_on_each_node": _unused("all nodes write into one directory"),
    "save_total_limit": _used("default 3; the best one is kept besides"),
    "enable_jit_checkpoint": _unused("a stop by a signal always saves"),
    "push_to_hub": _unused(_HUB),
    "hub_token": _unused(_HUB),
    "hub_private_repo": _unused(_HUB),
    "hub_model_id": _unused(_HUB),
    "hub_strategy": _unused(_HUB, "every_save"),
    "hub_always_push": _unused(_HUB),
    "hub_revision": _unused(_HUB),
    "load_best_model_at_end": _unused(
        "the best checkpoint is kept as `checkpoints/best`; `final/` has the last weights"
    ),
    "metric_for_best_model": _unused("the best is by held-out loss", "loss", "eval_loss"),
    "greater_is_better": _unused("the best is by held-out loss"),
    "ignore_data_skip": _unused("a resumed run finds its place in the data at once"),
    "restore_callback_states_from_checkpoint": _unused("there are no callbacks"),
    "full_determinism": _unused("the order of samples is a function of seed and epoch"),
    "seed": _used(),
    "data_seed": _unused("`seed` orders the data too"),
    "use_cpu": _unused("the GPU is used if there is one; hide it by CUDA_VISIBLE_DEVICES"),
    "accelerator_config": _unused("there is no Accelerate here"),
    "parallelism_config": _unused("ranks share the data; ZeRO splits the states"),
    "dataloader_drop_last": _unused("an epoch's last rows make a shorter step"),
    "dataloader_num_workers": _unused(_BATCHES, 0),
    "dataloader_pin_memory": _unused(_BATCHES, True),
    "dataloader_persistent_workers": _unused(_BATCHES),
    "dataloader_prefetch_factor": _unused(_BATCHES),
    "dataloader_multiprocessing_context": _unused(_BATCHES),
    "dataloader_in_order": _unused("always in order", True),
    "remove_unused_columns": _unused(_COLUMNS, True),
    "label_names": _unused(_COLUMNS),
    "train_sampling_strategy": _unused("rows are packed to one length and shuffled by seed", "random"),
    "length_column_name": _unused("rows are packed to one length", "length"),
    "ddp_find_unused_parameters": _unused(_WRAPPER),
    "ddp_bucket_cap_mb": _unused(_WRAPPER),
    "ddp_broadcast_buffers": _unused(_WRAPPER),
    "ddp_static_graph": _unused(_WRAPPER),
    "ddp_backend": _unused("NCCL on GPUs, gloo on CPUs", "nccl", "gloo"),
    "ddp_timeout": _unused("`watchdog` decides when a rank counts as hung", 1800),
    "fsdp": _refused(_FSDP, "", []),
    "fsdp_config": _unused(_FSDP, {}),
    "deepspeed": _used("a path, or the JSON itself as a section"),
    "debug": _unused("`--debug` shows tracebacks", "", []),
    "skip_memory_metrics": _unused("memory is in the summary", True),
    "do_train": _unused("the script says what is done", True),
    "do_eval": _unused("`eval_file` says so", True),
    "do_predict": _unused("the command `generate` does"),
    "resume_from_checkpoint": _other("the option `--resume`"),
    "local_rank": _unused("the launcher says it", -1, 0),
}

# Fields that older versions had, and SFTConfig's of TRL
OLDER: dict[str, Meaning] = {
    "evaluation_strategy": _other("`eval_strategy`"),
    "per_gpu_train_batch_size": _other("`per_device_train_batch_size`"),
    "max_length": _other("`max_seq_length`"),
    "model_max_length": _other("`max_seq_length`"),
    "cutoff_len": _other("`max_seq_length`"),
    "block_size": _other("`max_seq_length`"),
    "dataset_text_field": _other("`text_field`"),
    "validation_file": _other("`eval_file`"),
    "optimizer": _other("`optim`"),
    "name_or_path": _other("`model_name_or_path`"),
    "clip_norm": _other("`max_grad_norm`"),
    "init_scale": _other("`initial_scale_power`, its power of two"),
    "scale_init": _other("`initial_scale_power`, its power of two"),
    "init_loss_scaling": _other("`initial_scale_power`, its power of two"),
    "growth_interval": _other("`loss_scale_window`"),
    "incr_every_n_steps": _other("`loss_scale_window`"),
    "decr_every_n_nan_or_inf": _other("`hysteresis`"),
    "backoff_factor": _refused("DeepSpeed always halves the loss scale", 0.5),
    "decr_ratio": _refused("DeepSpeed always halves the loss scale", 0.5),
    "growth_factor": _refused("DeepSpeed always doubles the loss scale", 2, 2.0),
    "incr_ratio": _refused("DeepSpeed always doubles the loss scale", 2, 2.0),
    "overwrite_output_dir": _unused("an old run's files are kept under another name"),
    "logging_dir": _unused("metrics are in `output_dir`"),
    "group_by_length": _unused("rows are packed to one length"),
    "packing": _unused("rows are always packed", True),
    "no_cuda": _unused("the GPU is used if there is one; hide it by CUDA_VISIBLE_DEVICES"),
    "half_precision_backend": _unused("DeepSpeed computes in half precision", "auto"),
    "fp16_backend": _unused("DeepSpeed computes in half precision", "auto"),
    "fp16_opt_level": _unused("of NVIDIA Apex", "O1"),
    "save_safetensors": _unused("weights are always safetensors", True),
    "per_gpu_eval_batch_size": _unused(_EVALUATION),
    "include_tokens_per_second": _unused("tokens a second are always shown"),
    "include_inputs_for_metrics": _unused("only the loss is computed"),
    "preprocessing_num_workers": _other("`num_workers`"),
    "dataset_num_proc": _other("`num_workers`"),
    "torchdynamo": _unused("`compile: on`"),
    "use_mps_device": _unused("there is no form for it"),
    "jit_mode_eval": _unused("`compile: on`"),
    "use_ipex": _unused(_KERNELS),
    "ray_scope": _unused("there is no Ray here", "last"),
    "past_index": _unused("the model has no memory between batches", -1),
    "tpu_num_cores": _unused("there is no form for it"),
    "tpu_metrics_debug": _unused("there is no form for it"),
    "use_legacy_prediction_loop": _unused(_EVALUATION),
    "split_batches": _unused(_BATCHES),
    "dispatch_batches": _unused(_BATCHES),
    "push_to_hub_model_id": _unused(_HUB),
    "push_to_hub_organization": _unused(_HUB),
    "push_to_hub_token": _unused(_HUB),
    "eval_packing": _unused("rows are always packed", True),
    "torch_dtype": _unused("`bf16` or `fp16` decides", "auto"),
    "attn_implementation": _other("`attention_backend`"),
    "trust_remote_code": _unused("no code of a model directory is run"),
}

MEANINGS = {**TABLE, **OLDER}
_HERE = {
    "used": "used",
    "other": "here it is",
    "unused": "without meaning here:",
    "refused": "refused unless it is off:",
}


def table_markdown() -> str:
    """The table of docs/hf_arguments.md: a line a field of TrainingArguments, then the others' names."""
    lines: list[str] = []
    for title, fields in (("TrainingArguments", TABLE), ("Older versions, TRL and the articles", OLDER)):
        lines += [f"## {title}", "", "| name | here |", "|---|---|"]
        lines += [f"| `{name}` | {words_for(meaning)} |" for name, meaning in fields.items()]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def words_for(meaning: Meaning) -> str:
    """One cell of the table."""
    head = _HERE[meaning.status]
    if meaning.status == "used":
        return f"{head}; {meaning.text}" if meaning.text else head
    return f"{head} {meaning.text}"


if __name__ == "__main__":
    from minimind.base.display import say

    say(table_markdown().rstrip())
