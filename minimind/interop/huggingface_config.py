"""config.json of ``transformers``: the families that the transformer can build, read and written.

Contract: what a file leaves out has that family's own defaults, and rotary positions are read in the order in which
transformers reads them. Whatever would change a logit and can't be built is refused, with every reason in one line.
MiniMind's own ``model_type`` stands for two architectures; its weights tell which (``of_minimind``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, get_args

import torch

from minimind.config.model import ModelConfig, ModelType, rope_fields
from minimind.text.tokenizer import BOS_ID, EOS_ID, PAD_ID

MINIMIND = "minimind"
_CLASSES: Mapping[ModelType, str] = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
_SILENT: Mapping[ModelType, Mapping[str, Any]] = {
    "llama": {"attention_bias": False, "mlp_bias": False},
    "mistral": {"sliding_window": None},
    "qwen2": {"use_sliding_window": False},
    "qwen3": {"attention_bias": False, "use_sliding_window": False},
}  # what an export says of things that it does not have
_FIXED: Mapping[str, Any] = {
    "hidden_act": "silu",
    "attention_dropout": 0.0,
    "pad_token_id": PAD_ID,
    "bos_token_id": BOS_ID,
    "eos_token_id": EOS_ID,
}
_OF_LLAMA: Mapping[str, Any] = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}
_OF_QWEN = {**_OF_LLAMA, "vocab_size": 151936, "intermediate_size": 22016, "max_position_embeddings": 32768}
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "llama": _OF_LLAMA,
    "mistral": {
        **_OF_LLAMA,
        "intermediate_size": 14336,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "sliding_window": 4096,
    },
    "qwen2": {**_OF_QWEN, "num_key_value_heads": 32},
    "qwen3": {**_OF_QWEN, "num_key_value_heads": 32, "head_dim": 128},
    # transformers leaves a true tie_word_embeddings out of MiniMind's files; the rest is always there
    MINIMIND: {"rope_theta": 1e6, "tie_word_embeddings": True},
}


def transformers_config(config: ModelConfig, dtype: torch.dtype) -> dict[str, Any]:
    """config.json of an export; transformers 4 and 5 both read ``torch_dtype``, ``rope_theta``, ``rope_scaling``."""
    family = {"architectures": [_CLASSES[config.model_type]], "model_type": config.model_type}
    shape = {"torch_dtype": str(dtype).removeprefix("torch."), **config.model_dump()}
    return {**family, **_FIXED, **_SILENT[config.model_type], **shape}


def shape_fields(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a ModelConfig in a config.json that ``refusals`` has passed."""
    kind = raw["model_type"]
    given = {name: value for name, value in raw.items() if value is not None or name == "num_key_value_heads"}
    filled = {**_DEFAULTS[kind], **given}
    fields = {name: filled[name] for name in ModelConfig.model_fields if name in filled}
    if fields.get("num_key_value_heads") is None:
        fields["num_key_value_heads"] = fields.get("num_attention_heads")
    fields["model_type"] = "llama" if kind == MINIMIND else kind
    rope = _rope(raw)
    fields["rope_theta"] = rope.get("rope_theta") or filled["rope_theta"]
    fields["rope_scaling"] = _scaling(filled, rope)
    return fields


def of_minimind(config: ModelConfig, raw: Mapping[str, Any], names: Iterable[str]) -> ModelConfig:
    """``config`` as the weights' ``names`` make it: MiniMind of 2026 has Qwen3's norms under its old model_type."""
    normed = raw["model_type"] == MINIMIND and any(name.endswith("q_norm.weight") for name in names)
    return config.model_copy(update={"model_type": "qwen3"}) if normed else config


def refusals(raw: Mapping[str, Any]) -> list[str]:
    """Every reason why the transformer can't build the model of a config.json; none for one that it can."""
    kind, rope = raw.get("model_type"), _rope(raw)
    known = isinstance(kind, str) and kind in _DEFAULTS
    window = (
        raw.get("sliding_window", _DEFAULTS[kind].get("sliding_window")) if isinstance(kind, str) and known else None
    )
    windows = (kind == "mistral" and window is not None) or bool(raw.get("use_sliding_window"))
    layers = raw.get("layer_types") or []
    partial = rope.get("partial_rotary_factor", raw.get("partial_rotary_factor"))
    checks = {
        f'model_type is "{kind}", only {_quoted(get_args(ModelType))} and MiniMind\'s own are known': not known,
        "it is a mixture of experts": _has_experts(raw),
        f"its activation is {raw.get('hidden_act')}, not silu": raw.get("hidden_act", "silu") not in ("silu", "swish"),
        "it has attention biases besides Qwen2's": kind != "qwen2" and bool(raw.get("attention_bias")),
        "it has MLP biases": bool(raw.get("mlp_bias")),
        f"its attention has a sliding window ({window or raw.get('sliding_window')})": windows,
        "its layers attend differently (layer_types)": not isinstance(layers, list)
        or any(layer != "full_attention" for layer in layers),
        f"only a part of each head is rotated ({partial})": partial not in (None, 1),
        f"its positions are scaled ({rope_type(rope)})": not _can_scale(kind, rope),
        "its weights are quantized": bool(raw.get("quantization_config")),
    }
    return [reason for reason, applies in checks.items() if applies]


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


def _has_experts(raw: Mapping[str, Any]) -> bool:
    if raw.get("model_type") == MINIMIND:  # which names its number of experts in dense models as well
        return bool(raw.get("use_moe"))
    return any(raw.get(name) for name in ("use_moe", "num_experts", "num_local_experts", "n_routed_experts"))


def _rope(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """``rope_scaling`` (transformers 4), else ``rope_parameters`` (5), which holds theta as well."""
    given = raw.get("rope_scaling") or raw.get("rope_parameters") or {}
    return given if isinstance(given, dict) else {"rope_type": str(given)}


def rope_type(rope: Mapping[str, Any]) -> str:
    """The type by either of its names."""
    return str(rope.get("rope_type") or rope.get("type") or "default")


def _can_scale(kind: Any, rope: Mapping[str, Any]) -> bool:
    """MiniMind's own YaRN ends its ramp elsewhere than transformers'."""
    if any(isinstance(value, dict) for value in rope.values()):  # another scaling for each type of layer
        return False
    return rope_type(rope) == "default" or (rope_fields(rope_type(rope)) is not None and kind != MINIMIND)


def _scaling(filled: Mapping[str, Any], rope: Mapping[str, Any]) -> dict[str, Any] | None:
    """The fields that transformers reads for this type; it ignores others."""
    kind = rope_type(rope)
    names = rope_fields(kind)
    if names is None:
        return None
    fields = {name: rope[name] for name in names if rope.get(name) is not None}
    length = filled.get("original_max_position_embeddings", fields.get("original_max_position_embeddings"))
    if "original_max_position_embeddings" in names and length is not None:
        fields["original_max_position_embeddings"] = length
        longest = filled["max_position_embeddings"]
        if kind == "yarn" and "factor" not in fields and all(isinstance(n, int) and n > 0 for n in (longest, length)):
            fields["factor"] = longest / length
    return {"rope_type": kind, **fields}
