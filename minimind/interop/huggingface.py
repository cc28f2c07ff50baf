"""Hugging Face layout: a directory that ``transformers`` loads as LlamaForCausalLM, and such directories read back.

Written: config.json, model.safetensors, generation_config.json, tokenizer.model (ours, the original), tokenizer.json,
tokenizer_config.json and chat_template.jinja (for transformers). Each file appears complete or not at all, config.json
last, so a directory with a config.json is whole. Reading accepts sharded safetensors and what transformers 4 and 5
write; a Llama that ``model.py`` can't build (biases, RoPE scaling, another activation) is refused with the reason.

Weakness: pickled ``pytorch_model.bin`` files are not read; re-save such a model as safetensors with transformers.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from minimind.base.defaults import TEXT_TEMPERATURE, TEXT_TOP_P
from minimind.base.errors import UserError
from minimind.base.files import path_inside, read_inside, replacing, write_bytes_durably
from minimind.config.model import ModelConfig
from minimind.interop.tokenizer_files import tokenizer_files
from minimind.text.tokenizer import BOS_ID, EOS_ID, FILE_NAME, PAD_ID, Tokenizer

WEIGHTS, INDEX, CONFIG = "model.safetensors", "model.safetensors.index.json", "config.json"
MAKER = "minimind-deepspeed"  # in the weights' header, where transformers looks for "format" only
_FIXED: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "attention_dropout": 0.0,
    "pad_token_id": PAD_ID,
    "bos_token_id": BOS_ID,
    "eos_token_id": EOS_ID,
}  # what an export's config.json says besides shape and dtype
State = dict[str, Tensor]


def save_pretrained(
    model_state: Mapping[str, Tensor], config: ModelConfig, tokenizer: Tokenizer | None, directory: str | Path
) -> None:
    """Write the directory (created if needed; other files in it stay). Weights keep their dtype. Raises OSError.

    Raises UserError where files of these names are not an earlier export's.
    """
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    contents = {"generation_config.json": _json(_generation_config(tokenizer))}
    if tokenizer is not None:
        contents |= {FILE_NAME: tokenizer.model_bytes}
        contents |= tokenizer_files(tokenizer, config.max_position_embeddings)
    _refuse_others(directory, contents)
    (directory / CONFIG).unlink(missing_ok=True)  # not whole until the end
    weights = {
        name: value.detach().cpu().contiguous() for name, value in model_state.items() if not _tied(name, config)
    }
    with replacing(directory / WEIGHTS) as file:
        save_file(weights, file.name, metadata=_header(tokenizer))
    contents[CONFIG] = _json(llama_config(config, next(iter(weights.values())).dtype))
    for name, content in contents.items():
        write_bytes_durably(directory / name, content)


def _header(tokenizer: Tokenizer | None) -> dict[str, str]:
    """What the weights' file says of itself: its maker, and the hash of the tokenizer that the weights belong to."""
    hash_ = {} if tokenizer is None else {"tokenizer": tokenizer.fingerprint}
    return {"format": "pt", "made_by": MAKER, **hash_}


def trained_with(directory: Path) -> str | None:
    """The fingerprint of the tokenizer that an export's weights belong to; None where the file doesn't say."""
    try:
        with safe_open(path_inside(directory, WEIGHTS), "pt") as file:
            about = file.metadata() or {}
    except (OSError, SafetensorError):
        return None
    return about.get("tokenizer") if about.get("made_by") == MAKER else None


def _refuse_others(directory: Path, names: Iterable[str]) -> None:
    """UserError where a file would be replaced that is no export's: another model's, or another program's config."""
    there = [name for name in (CONFIG, WEIGHTS, *names) if os.path.lexists(directory / name)]
    if there and not _is_export(directory):
        raise UserError(
            f"{directory}: holds {', '.join(there)}, which no export of this program made; name another directory"
        )


def _is_export(directory: Path) -> bool:
    """By the keys of its config.json; without one (the export was killed) by what the weights say of themselves."""
    try:
        if os.path.lexists(directory / CONFIG):
            return set(_read_json(directory / CONFIG)) == {*_FIXED, "torch_dtype", *ModelConfig.model_fields}
        with safe_open(path_inside(directory, WEIGHTS), framework="pt") as file:
            return bool((file.metadata() or {}).get("made_by") == MAKER)
    except (UserError, OSError, SafetensorError):
        return False


def _json(value: dict[str, Any]) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


def _tied(name: str, config: ModelConfig) -> bool:
    return config.tie_word_embeddings and name == "lm_head.weight"


def llama_config(config: ModelConfig, dtype: torch.dtype) -> dict[str, Any]:
    """config.json of a LlamaForCausalLM; transformers 4 and 5 both read ``torch_dtype`` and ``rope_theta``."""
    return {**_FIXED, "torch_dtype": str(dtype).removeprefix("torch."), **config.model_dump()}


def _generation_config(tokenizer: Tokenizer | None) -> dict[str, Any]:
    """Answers end with <|im_end|>, texts with eos."""
    stops = [EOS_ID] if tokenizer is None else [EOS_ID, tokenizer.im_end_id]
    sampling = {"do_sample": True, "temperature": TEXT_TEMPERATURE, "top_p": TEXT_TOP_P}
    return {"pad_token_id": PAD_ID, "bos_token_id": BOS_ID, "eos_token_id": stops, **sampling}


def load_pretrained(directory: str | Path) -> tuple[State, ModelConfig]:
    """Weights (as saved, without a tied output projection) and shape. Raises UserError for what can't be ours."""
    directory = Path(directory)
    config = read_config(directory / CONFIG)
    state: State = {}
    for name in _weight_files(directory):
        try:
            state |= load_file(path_inside(directory, name))
        except OSError as error:
            raise UserError(f"{directory / name}: can't be read: {error.strerror or error}") from error
        except SafetensorError as error:
            raise UserError(f"{directory / name}: can't be read as safetensors ({error})") from error
    dropped = {name for name in state if _tied(name, config) or name.endswith("rotary_emb.inv_freq")}
    return {name: value for name, value in state.items() if name not in dropped}, config


def _weight_files(directory: Path) -> list[str]:
    if (directory / WEIGHTS).is_file():
        return [WEIGHTS]
    if not (directory / INDEX).is_file():
        raise UserError(
            f"{directory}: neither {WEIGHTS} nor {INDEX}; re-save the model as safetensors with transformers"
        )
    names = _read_json(directory / INDEX).get("weight_map", {}).values()
    return sorted({Path(str(name)).name for name in names})  # .name: never outside the directory


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(read_inside(path.parent, path.name))
    except OSError as error:
        raise UserError(f"{path}: can't be read: {error.strerror}") from error
    except ValueError as error:
        raise UserError(f"{path}: can't be read as JSON ({error})") from error
    if not isinstance(content, dict):
        raise UserError(f"{path}: must be a JSON object")
    return content


def read_config(path: Path) -> ModelConfig:
    """The shape in a config.json. Raises UserError with every reason why ``model.py`` can't build it."""
    raw = _read_json(path)
    rope = raw.get("rope_parameters") or {}  # where transformers 5 keeps theta
    reasons = _refusals(raw, rope)
    if reasons:
        raise UserError(f"{path}: this model can't be loaded: {'; '.join(reasons)}")
    fields = {name: raw[name] for name in ModelConfig.model_fields if name in raw}
    fields.setdefault("rope_theta", rope.get("rope_theta", 10000.0))  # Llama's own default
    fields.setdefault("tie_word_embeddings", False)
    fields.setdefault("rms_norm_eps", 1e-6)
    fields.setdefault("num_key_value_heads", raw.get("num_attention_heads"))
    try:
        return ModelConfig(**fields)
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error


def _refusals(raw: dict[str, Any], rope: dict[str, Any]) -> list[str]:
    kind, scaling = raw.get("model_type"), raw.get("rope_scaling") or {}
    rope_type = rope.get("rope_type") or scaling.get("rope_type") or scaling.get("type") or "default"
    checks = {
        f'model_type is "{kind}", only "llama" and MiniMind\'s own are known': kind not in ("llama", "minimind"),
        "it is a mixture of experts": bool(raw.get("use_moe")),
        f"its activation is {raw.get('hidden_act')}, not silu": raw.get("hidden_act", "silu") != "silu",
        "it has attention biases": bool(raw.get("attention_bias")),
        "it has MLP biases": bool(raw.get("mlp_bias")),
        f"its positions are scaled ({rope_type})": rope_type != "default",
    }
    return [reason for reason, applies in checks.items() if applies]
