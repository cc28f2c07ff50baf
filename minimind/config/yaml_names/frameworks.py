"""Names of the YAMLs of LLaMA-Factory, Axolotl and ms-swift, and what each means here.

A value that has a meaning is used (translate.py renames it); one that would train something else is refused.
"""

from __future__ import annotations

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
)

_ADAPTER = "all weights are trained, without an adapter"
_OF_ADAPTERS = "of an adapter, which is not here"
_QUANTIZED = "weights are trained in the precision of `bf16` or `fp16`"
_DATA = "`train_file`: a path, or a list of paths with weights"
_HELD_OUT = "hold records out in a file of their own: `eval_file`"
_TARGETS = "fine-tuning trains the answers of every turn"
_STORE = "tokens are prepared once, in the cache"

FRAMEWORKS: dict[str, Meaning] = {
    # The model and how much of it is trained
    "base_model": other("`model_name_or_path`"),
    "stage": refused("`launch/pretrain.py` and `launch/sft.py` say what is done; there is nothing else", "sft", "pt"),
    "finetuning_type": refused(_ADAPTER, "full"),
    "train_type": refused(_ADAPTER, "full"),
    "tuner_type": refused(_ADAPTER, "full"),
    "adapter": refused(_ADAPTER, ""),
    **dict.fromkeys(
        (
            *("lora_r", "lora_rank", "lora_alpha", "lora_dropout", "lora_target", "lora_target_modules"),
            *("lora_target_linear", "lora_modules_to_save", "target_modules", "additional_target"),
        ),
        unused(_OF_ADAPTERS),
    ),
    **dict.fromkeys(("load_in_4bit", "load_in_8bit", "quantization_bit", "quant_bits"), refused(_QUANTIZED)),
    "pure_bf16": unused("masters are kept in fp32"),
    "upcast_layernorm": unused("masters are kept in fp32"),
    **dict.fromkeys(("use_galore", "use_apollo", "use_badam"), refused("the optimizer is `optim`, or the JSON's")),
    "rope_scaling": refused("positions belong to the model: `model`", "none"),
    "model_type": unused(OF_THE_MODEL),
    "tokenizer_type": unused("the tokenizer's directory says what it is"),
    "tokenizer_name": other("`tokenizer`, a path"),
    "special_tokens": refused("the tokenizer has its own", {}),
    "resize_vocab": unused("`model` states the vocabulary's size"),
    # Data
    **dict.fromkeys(("dataset", "datasets", "dataset_dir", "dataset_name", "data_path", "train_dataset"), other(_DATA)),
    "eval_dataset": other("`eval_file`"),
    "val_dataset": other("`eval_file`"),
    **dict.fromkeys(("val_size", "val_set_size", "split_dataset_ratio"), refused(_HELD_OUT, 0, 0.0)),
    "max_samples": refused("the files are read whole: shorten them, or give one a weight below 1 in `train_file`"),
    "interleave_probs": refused("a file's share is its weight in `train_file`"),
    "mix_strategy": unused("all files are mixed by their weights in `train_file`", "concat"),
    "streaming": unused(_STORE),
    **dict.fromkeys(("overwrite_cache", "tokenized_path", "dataset_prepared_path", "cache_dir"), unused(_STORE)),
    "sequence_len": other("`max_seq_length`"),
    "sample_packing": unused(PACKED, True),
    "eval_sample_packing": unused(PACKED, True),
    "neat_packing": unused(PACKED_APART, True),
    "pad_to_sequence_len": unused(PACKED, True),
    "template": unused(TEMPLATE),
    "chat_template": unused(TEMPLATE),
    "default_system": refused("write it into the records, as a turn of role system"),
    "mask_history": refused(_TARGETS),
    "train_on_prompt": refused(_TARGETS),
    "train_on_inputs": refused(_TARGETS),
    # The run
    "micro_batch_size": other("`per_device_train_batch_size`"),
    "num_epochs": other("`num_train_epochs`"),
    "lr_scheduler": other("`lr_scheduler_type`"),
    "evals_per_epoch": other("`eval_steps`; below 1 it is a share of the run"),
    "saves_per_epoch": other("`save_steps`; below 1 it is a share of the run"),
    "plot_loss": unused("`minimind report` draws it", True),
    "wandb_name": other("`run_name`"),
    "wandb_entity": unused("set WANDB_ENTITY"),
    "wandb_log_model": unused("checkpoints stay in `output_dir`", ""),
    "wandb_watch": unused("gradient norms are always logged", ""),
    **dict.fromkeys(
        (
            *("flash_attn", "flash_attention", "xformers_attention", "sdp_attention", "attn_impl"),
            "enable_liger_kernel",
        ),
        unused(KERNELS, "auto"),
    ),
}
