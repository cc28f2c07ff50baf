"""Every field of Hugging Face's TrainingArguments, and what it means here; docs/hf_arguments.md is made of it.

Tests compare the table with the installed transformers; fields of older versions and of TRL are in it too.
"""

from __future__ import annotations

from minimind.config.yaml_names.frameworks import FRAMEWORKS
from minimind.config.yaml_names.meaning import (
    KERNELS,
    OF_THE_MODEL,
    PACKED,
    PACKED_APART,
    TEMPLATE,
    Meaning,
    other,
    refused,
    unused,
    used,
    words_for,
)

_HUB = "nothing is uploaded; the command `export` writes a directory that can be"
_BATCHES = "batches are read from a memory-mapped store of tokens, without worker processes"
_COLUMNS = "records are read by their content; see `text_field` and `map`"
_WRAPPER = "DeepSpeed reduces the gradients, not DistributedDataParallel"
_EVALUATION = "the held-out loss is computed in rows of the training batch, exactly"
_FSDP = "DeepSpeed's ZeRO splits the states: `zero_optimization` in the JSON"

TABLE: dict[str, Meaning] = {
    "output_dir": used(),
    "per_device_train_batch_size": used("rows of `max_seq_length` tokens"),
    "num_train_epochs": used("default 1"),
    "max_steps": used("-1 is: not given"),
    "learning_rate": used("default by optimizer and size"),
    "lr_scheduler_type": used(
        "cosine and linear (to 0, unless `min_lr_ratio` is given), constant, constant_with_warmup, "
        "warmup_stable_decay, cosine_with_min_lr, cosine_with_restarts (one cycle), polynomial (of power 1, to 1e-7); "
        "of ours cooldown (constant, then linear to 0 over the last seven tenths); by default a cosine to a tenth"
    ),
    "lr_scheduler_kwargs": other(
        "min_lr_rate and min_lr (polynomial: lr_end) become `min_lr_ratio`; other keys are refused unless they are "
        "Hugging Face's defaults"
    ),
    "warmup_steps": used("below 1 it is `warmup_ratio`"),
    "warmup_ratio": used("default 0.02"),
    "optim": used("adamw_torch, adamw_torch_fused, adamw_bnb_8bit, lion_32bit, sgd, adagrad, rmsprop and their like"),
    "optim_args": refused("the optimizer's parameters are in the DeepSpeed JSON", ""),
    "optim_target_modules": refused("of GaLore and APOLLO, which are not here"),
    "weight_decay": used(),
    "adam_beta1": used(),
    "adam_beta2": used(),
    "adam_epsilon": used(),
    "gradient_accumulation_steps": used(),
    "average_tokens_across_devices": unused("always so: the loss is the mean over all ranks' tokens", True),
    "max_grad_norm": used("0 switches clipping off"),
    "label_smoothing_factor": refused("the loss is plain cross-entropy", 0, 0.0),
    "bf16": used(),
    "fp16": used(),
    "bf16_full_eval": unused("evaluation runs in the training precision"),
    "fp16_full_eval": unused("evaluation runs in the training precision"),
    "tf32": unused("PyTorch's default holds"),
    "activation_checkpointing": other("`gradient_checkpointing`"),
    "activation_checkpointing_kwargs": unused("there is one way of recomputing"),
    "gradient_checkpointing": used(),
    "gradient_checkpointing_kwargs": unused("there is one way of recomputing"),
    "torch_compile": other("`compile: on` or `off`"),
    "torch_compile_backend": unused("inductor compiles"),
    "torch_compile_mode": unused("the default mode compiles"),
    "use_liger_kernel": unused(KERNELS),
    "liger_kernel_config": unused(KERNELS),
    "use_cache": unused("training keeps no cache"),
    "neftune_noise_alpha": refused("embeddings get no noise", 0),
    "torch_empty_cache_steps": unused("memory is planned before the run: the command `plan`"),
    "auto_find_batch_size": unused("the command `plan` finds the largest micro-batch before the run"),
    "logging_strategy": unused("every `logging_steps`", "steps"),
    "logging_steps": used("default 10; below 1 a share of the run"),
    "logging_first_step": unused("the first step is always logged"),
    "log_on_each_node": unused("rank 0 logs", True),
    "logging_nan_inf_filter": unused("a NaN is shown, and its cause sought", True),
    "include_num_input_tokens_seen": unused("tokens are always counted", "no"),
    "log_level": unused("findings are always shown", "passive"),
    "log_level_replica": unused("other ranks are silent", "warning"),
    "disable_tqdm": unused("there is a line a log step, no bar"),
    "report_to": used("none, wandb, tensorboard, swanlab, or a list of them"),
    "run_name": used(),
    "project": other("`wandb_project`"),
    "trackio_space_id": unused("there is no trackio", "trackio"),
    "trackio_bucket_id": unused("there is no trackio"),
    "trackio_static_space_id": unused("there is no trackio"),
    "eval_strategy": used("no, steps or epoch"),
    "eval_steps": used("below 1 a share of the run; default: ten evaluations a run, for 2% of its time at most"),
    "eval_delay": unused("evaluations are at their steps from the start", 0),
    "per_device_eval_batch_size": unused(_EVALUATION, 8),
    "prediction_loss_only": unused("only the loss is computed", True),
    "eval_on_start": unused("the first evaluation is at its step"),
    "eval_do_concat_batches": unused(_EVALUATION, True),
    "eval_use_gather_object": unused(_EVALUATION),
    "eval_accumulation_steps": unused(_EVALUATION),
    "include_for_metrics": unused("only the loss is computed", []),
    "batch_eval_metrics": unused("only the loss is computed"),
    "save_only_model": unused("a checkpoint is always complete; weights alone are in `final/`"),
    "save_strategy": used("no, steps, epoch; a stop and the end always save"),
    "save_steps": used("below 1 a share of the run; default: by the clock, at most 2% of the time"),
    "save_on_each_node": unused("all nodes write into one directory"),
    "save_total_limit": used("default 3; the best one is kept besides"),
    "enable_jit_checkpoint": unused("a stop by a signal always saves"),
    "push_to_hub": unused(_HUB),
    "hub_token": unused(_HUB),
    "hub_private_repo": unused(_HUB),
    "hub_model_id": unused(_HUB),
    "hub_strategy": unused(_HUB, "every_save"),
    "hub_always_push": unused(_HUB),
    "hub_revision": unused(_HUB),
    "load_best_model_at_end": unused(
        "the best checkpoint is kept as `checkpoints/best`; `final/` has the last weights"
    ),
    "metric_for_best_model": unused("the best is by held-out loss", "loss", "eval_loss"),
    "greater_is_better": unused("the best is by held-out loss"),
    "ignore_data_skip": unused("a resumed run finds its place in the data at once"),
    "restore_callback_states_from_checkpoint": unused("there are no callbacks"),
    "full_determinism": unused("the order of samples is a function of seed and epoch"),
    "seed": used(),
    "data_seed": unused("`seed` orders the data too"),
    "use_cpu": unused("the GPU is used if there is one; hide it by CUDA_VISIBLE_DEVICES"),
    "accelerator_config": unused("there is no Accelerate here"),
    "parallelism_config": unused("ranks share the data; ZeRO splits the states"),
    "dataloader_drop_last": unused("an epoch's last rows make a shorter step"),
    "dataloader_num_workers": unused(_BATCHES, 0),
    "dataloader_pin_memory": unused(_BATCHES, True),
    "dataloader_persistent_workers": unused(_BATCHES),
    "dataloader_prefetch_factor": unused(_BATCHES),
    "dataloader_multiprocessing_context": unused(_BATCHES),
    "dataloader_in_order": unused("always in order", True),
    "remove_unused_columns": unused(_COLUMNS, True),
    "label_names": unused(_COLUMNS),
    "train_sampling_strategy": unused("rows are packed to one length and shuffled by seed", "random"),
    "length_column_name": unused("rows are packed to one length", "length"),
    "ddp_find_unused_parameters": unused(_WRAPPER),
    "ddp_bucket_cap_mb": unused(_WRAPPER),
    "ddp_broadcast_buffers": unused(_WRAPPER),
    "ddp_static_graph": unused(_WRAPPER),
    "ddp_backend": unused("NCCL on GPUs, gloo on CPUs", "nccl", "gloo"),
    "ddp_timeout": unused("`watchdog` decides when a rank counts as hung", 1800),
    "fsdp": refused(_FSDP, "", []),
    "fsdp_config": unused(_FSDP, {}),
    "deepspeed": used("a path, or the JSON itself as a section"),
    "debug": unused("`--debug` shows tracebacks", "", []),
    "skip_memory_metrics": unused("memory is in the summary", True),
    "do_train": unused("the script says what is done", True),
    "do_eval": unused("`eval_file` says so", True),
    "do_predict": unused("the command `generate` does"),
    "resume_from_checkpoint": other("the option `--resume`"),
    "local_rank": unused("the launcher says it", -1, 0),
}

# Fields that older versions had, and SFTConfig's of TRL
OLDER: dict[str, Meaning] = {
    "evaluation_strategy": other("`eval_strategy`"),
    "per_gpu_train_batch_size": other("`per_device_train_batch_size`"),
    "max_length": other("`max_seq_length`"),
    "model_max_length": other("`max_seq_length`"),
    "cutoff_len": other("`max_seq_length`"),
    "block_size": other("`max_seq_length`"),
    "dataset_text_field": other("`text_field`"),
    "validation_file": other("`eval_file`"),
    "optimizer": other("`optim`"),
    "name_or_path": other("`model_name_or_path`"),
    "clip_norm": other("`max_grad_norm`"),
    "init_scale": other("`initial_scale_power`, its power of two"),
    "scale_init": other("`initial_scale_power`, its power of two"),
    "init_loss_scaling": other("`initial_scale_power`, its power of two"),
    "growth_interval": other("`loss_scale_window`"),
    "incr_every_n_steps": other("`loss_scale_window`"),
    "decr_every_n_nan_or_inf": other("`hysteresis`"),
    "backoff_factor": refused("DeepSpeed always halves the loss scale", 0.5),
    "decr_ratio": refused("DeepSpeed always halves the loss scale", 0.5),
    "growth_factor": refused("DeepSpeed always doubles the loss scale", 2, 2.0),
    "incr_ratio": refused("DeepSpeed always doubles the loss scale", 2, 2.0),
    "overwrite_output_dir": unused("an old run's files are kept under another name"),
    "logging_dir": unused("metrics are in `output_dir`"),
    "group_by_length": unused("rows are packed to one length"),
    "packing": unused(PACKED, True),
    "packing_strategy": unused("whole documents where they fit, the rest of a row by the next", "bfd"),
    "padding_free": unused(PACKED_APART, True),
    "pad_to_multiple_of": unused("rows are of one length"),
    "shuffle_dataset": unused("rows are shuffled by seed and epoch", True),
    "completion_only_loss": unused("fine-tuning always trains the answers", True),
    "assistant_only_loss": unused("fine-tuning always trains the answers", True),
    "loss_type": refused("the loss is plain cross-entropy", "nll"),
    "dataset_kwargs": unused(_COLUMNS, {}),
    "model_init_kwargs": unused(OF_THE_MODEL, {}),
    "chat_template_path": unused(TEMPLATE),
    "eos_token": unused("the tokenizer's own is used"),
    "pad_token": unused("the tokenizer's own is used"),
    "activation_offloading": unused("`gradient_checkpointing` saves the same memory"),
    "no_cuda": unused("the GPU is used if there is one; hide it by CUDA_VISIBLE_DEVICES"),
    "half_precision_backend": unused("DeepSpeed computes in half precision", "auto"),
    "fp16_backend": unused("DeepSpeed computes in half precision", "auto"),
    "fp16_opt_level": unused("of NVIDIA Apex", "O1"),
    "save_safetensors": unused("weights are always safetensors", True),
    "per_gpu_eval_batch_size": unused(_EVALUATION),
    "include_tokens_per_second": unused("tokens a second are always shown"),
    "include_inputs_for_metrics": unused("only the loss is computed"),
    "preprocessing_num_workers": other("`num_workers`"),
    "dataset_num_proc": other("`num_workers`"),
    "torchdynamo": unused("`compile: on`"),
    "use_mps_device": unused("there is no form for it"),
    "jit_mode_eval": unused("`compile: on`"),
    "use_ipex": unused(KERNELS),
    "ray_scope": unused("there is no Ray here", "last"),
    "past_index": unused("the model has no memory between batches", -1),
    "tpu_num_cores": unused("there is no form for it"),
    "tpu_metrics_debug": unused("there is no form for it"),
    "use_legacy_prediction_loop": unused(_EVALUATION),
    "split_batches": unused(_BATCHES),
    "dispatch_batches": unused(_BATCHES),
    "push_to_hub_model_id": unused(_HUB),
    "push_to_hub_organization": unused(_HUB),
    "push_to_hub_token": unused(_HUB),
    "eval_packing": unused(PACKED, True),
    "torch_dtype": unused("`bf16` or `fp16` decides", "auto"),
    "attn_implementation": other("`attention_backend`"),
    "trust_remote_code": unused("no code of a model directory is run"),
}

MEANINGS = {**TABLE, **OLDER, **FRAMEWORKS}


_OTHERS = "LLaMA-Factory, Axolotl and ms-swift"


def table_markdown() -> str:
    """The table of docs/hf_arguments.md: a line a field of TrainingArguments, then the others' names."""
    lines: list[str] = []
    parts = {"TrainingArguments": TABLE, "Older versions, TRL and the articles": OLDER, _OTHERS: FRAMEWORKS}
    for title, fields in parts.items():
        lines += [f"## {title}", "", "| name | here |", "|---|---|"]
        lines += [f"| `{name}` | {words_for(meaning)} |" for name, meaning in fields.items()]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    from minimind.base.display import say

    say(table_markdown().rstrip())
