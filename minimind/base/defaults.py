"""Every default and name that more than one module needs, once. Plain values, without any import of weight.

Command line, YAML and JSON read their defaults here (tests/base/test_defaults.py ties the shipped JSONs to them). A
constant that one module owns and others use stays in that module.
"""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType
from typing import Literal

# What can be chosen by name in the YAML or on the command line
Kind = Literal["pretrain", "sft"]
Reasoning = Literal["train", "drop"]  # what becomes of an answer's reasoning
AttentionBackend = Literal["auto", "mask", "varlen", "flex"]
Context = Literal["error", "shift"]  # what becomes of a served conversation that outgrows the model
GgufDtype = Literal["f32", "f16", "bf16", "q8_0", "q4_k_m"]  # of the weights; the last two in a GGUF file only

# Data
ROW_LENGTH = 512  # max_seq_length
MAX_BAD_RATIO = 0.01  # with --skip-bad
MAX_WEIGHT = 1000  # of a training source: how often an epoch reads it
VOCABULARY = 6400
IGNORE = -100  # a label that carries no loss

MUON_LEARNING_RATES = MappingProxyType({"pretrain": 0.02, "sft": 2e-3})  # muon_lr, of the matrices
# What else an "auto" in the JSON means when neither the YAML nor the command line sets it
ENGINE = MappingProxyType(
    {
        "weight_decay": 0.01,
        "adam_beta1": 0.9,
        "adam_beta2": 0.999,
        "adam_epsilon": 1e-8,
        "max_grad_norm": 1.0,
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 1,
    }
)
LION_BETAS = (0.9, 0.99)
# DeepSpeed's own, for parameters that are absent from a JSON's optimizer; its weight decay is FusedAdam's
DEEPSPEED_LR, DEEPSPEED_EPS, DEEPSPEED_WEIGHT_DECAY = 1e-3, 1e-8, 0.0
DEEPSPEED_WARMUP_STEPS = 1000  # of its Warmup* schedulers

USUAL_MFU = 0.25  # share of a card's peak that hours assume: that of docs/performance.md's tables
FIXED_LOSS_SCALE = 1024.0  # of fp16_fixed_scale.json, and of the recovery ladder's rung

# Generation: texts are continued, questions answered
TEXT_TOKENS, TEXT_TEMPERATURE, TEXT_TOP_P = 200, 0.8, 0.95
CHAT_TOKENS, CHAT_TEMPERATURE, CHAT_TOP_P = 400, 0.7, 0.9
SAMPLES_TEMPERATURE, SAMPLES_TOP_P = 0.0, 1.0  # of `samples:`, to compare one evaluation's with the next

# What a run directory holds
OUTPUT_DIRECTORY = Path("runs/run")
ABOUT = "about.json"  # beside weights: what the model was made to know
CHECKPOINTS, LATEST, BEST, FINAL = "checkpoints", "latest", "best", "final"
STEP_NAME = "step-[0-9]{8,18}"  # a checkpoint's directory in CHECKPOINTS, as a pattern
RUN_CONFIG, RUN_JSON, ENVIRONMENT = "config.yaml", "ds_config.json", "environment.json"
RECOVERY, POST_MORTEM, HANG = "recovery.json", "post_mortem.json", "hang"
SAMPLES = "samples.jsonl"  # what the model made of the prompts of `samples:`, by step
MODEL_STATES = "mp_rank_00_model_states.pt"  # DeepSpeed's file with the module's weights, one for all ranks
PARTITIONED_STATES = f"zero_pp_rank_0_{MODEL_STATES}"  # of ZeRO stage 3: shapes and counters, one for each rank


def loss_chunk(device_type: str, vocab_size: int) -> int:
    """Tokens whose fp32 logits exist at once: about 16 MB of them on a CPU (stays in cache), 256 MB on a GPU."""
    budget = 2**22 if device_type == "cpu" else 2**26
    return max(64, budget // vocab_size)
