"""Tiny random models of every family, made by transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

SHAPE: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rope_theta": 5e5,
    "rms_norm_eps": 1e-4,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama-own-head-size": ("Llama", {"head_dim": 8, "tie_word_embeddings": True}),
    "llama-linear": ("Llama", {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}),
    "llama-llama3": ("Llama", {"rope_scaling": LLAMA3}),
    "llama-yarn": ("Llama", {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}),
    "mistral": ("Mistral", {"sliding_window": None}),
    "qwen2": ("Qwen2", {}),
    "qwen2-tied": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {"head_dim": 20}),
    "qwen3-tied": ("Qwen3", {"head_dim": 12, "tie_word_embeddings": True}),
    "qwen3-yarn": (
        "Qwen3",
        {"head_dim": 16, "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}},
    ),
}


def make(family: str, **more: Any) -> Any:
    """A model whose logits are far from uniform, with biases and norms that are not at their start."""
    config = getattr(transformers, f"{family}Config")(**{**SHAPE, **more})
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            values = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(0.15 * values + (1.0 if parameter.ndim == 1 else 0.0))
    return model


def save(case: str, directory: Path, shards: str = "1GB") -> Any:
    """The transformers model of a case, saved in ``directory``."""
    family, more = CASES[case]
    model = make(family, **more)
    model.save_pretrained(directory, max_shard_size=shards)
    return model


def ids(rows: int = 2, length: int = 90, vocab: int = 96) -> Tensor:
    return torch.randint(0, vocab, (rows, length), generator=torch.Generator().manual_seed(0))
