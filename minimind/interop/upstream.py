"""MiniMind's own weight files (jingyaogong/minimind): a bare ``torch.save`` of a state dict, without a configuration.

Contract: three generations are told apart by their names, and the shape is inferred from the tensors.

- 2026, ``model_minimind.py`` with ``q_norm`` and ``k_norm``: Qwen3's names and formulas, taken as they are. The size of
  a head is that of its norm, and so its numbers of heads are known.
- 2025, ``model_minimind.py``: Llama's names, half-rotation positions: taken as they are.
- 2024 to early 2025, ``model.py``: ``tok_embeddings``, ``attention.wq``, ``feed_forward.w1/w2/w3`` (gate,
  down, up). Rotary positions turn neighbouring channels, so the rows of wq and wk are put into
  half-rotation order, which gives the same logits.
- Any mixture of experts: refused.

Before 2026 head counts are not in the file. MiniMind used 8 query and 2 key/value heads (theta 1e6), and in 2024 16 and
8 (theta 1e4): the ratio of the projections tells which. Pass ``config`` for anything else. Weakness: a fork
with another head count of the same ratio would be misread without it. MiniMind's tokenizer differs from
ours; the vocabulary of the file is what counts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from minimind.base.errors import UserError
from minimind.base.files import replacing
from minimind.config.model import ModelConfig, default_intermediate_size
from minimind.interop.bombs import refuse_bombs, refuse_misfits

State = dict[str, Tensor]
_HEADS = {4: (8, 2, 1e6), 2: (16, 8, 1e4)}  # query rows per key row -> query heads, key/value heads, rope_theta
_OF_2025: dict[str, Any] = {"model_type": "llama", "rms_norm_eps": 1e-5}
_OF_2026: dict[str, Any] = {"model_type": "qwen3", "rms_norm_eps": 1e-6}
_OLD_NAMES = {
    "tok_embeddings.weight": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_OLD_LAYER_NAMES = {
    "attention.wq": "self_attn.q_proj",
    "attention.wk": "self_attn.k_proj",
    "attention.wv": "self_attn.v_proj",
    "attention.wo": "self_attn.o_proj",
    "feed_forward.w1": "mlp.gate_proj",
    "feed_forward.w2": "mlp.down_proj",
    "feed_forward.w3": "mlp.up_proj",
    "attention_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
_BUFFERS = re.compile(r"(pos_cis|freqs_cos|freqs_sin|rotary_emb\.inv_freq|attention\.mask|self_attn\.mask)$")


def read_torch(path: Path) -> dict[str, Any]:
    """``torch.load`` that can't run code. Raises UserError for a damaged file or one that holds more than tensors."""
    try:
        refuse_bombs(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a file that is no pickle fails in as many ways as there are bytes
        reason = (str(error).strip() or type(error).__name__).split("\n")[0][:160]
        raise UserError(f"{path}: can't be read as weights only ({reason})") from error
    if not isinstance(content, dict):
        raise UserError(f"{path}: holds a {type(content).__name__}, not a dictionary of weights")
    return content


def load_pth(path: str | Path, config: ModelConfig | None = None) -> tuple[State, ModelConfig]:
    """Weights under Llama's names and the shape (``config``: used instead of the inferred one). Raises UserError."""
    path = Path(path)
    raw = read_torch(path)
    if not all(isinstance(name, str) for name in raw):
        raise UserError(f"{path}: not a MiniMind weight file (it holds more than named tensors)")
    state = {name.removeprefix("_orig_mod."): value for name, value in raw.items() if not _BUFFERS.search(name)}
    if not state or not all(isinstance(value, Tensor) for value in state.values()):
        raise UserError(f"{path}: not a MiniMind weight file (it holds more than named tensors)")
    refuse_misfits(state, path)
    _refuse_unknown(state, path)
    old = "tok_embeddings.weight" in state
    if old:
        state = {_new_name(name): value for name, value in state.items()}
    config = config or infer_config(state, path)
    if old:
        state = {name: _half_rotation_order(name, value, config.head_dim) for name, value in state.items()}
    if config.tie_word_embeddings:
        state.pop("lm_head.weight", None)
    return state, config


def save_pth(model_state: Mapping[str, Tensor], config: ModelConfig, path: str | Path) -> None:
    """Write the file of 2025, or of 2026 for its shape: a tied projection under both names, fp16 as MiniMind saves."""
    state = {name: value.detach().cpu().half() for name, value in model_state.items()}
    if config.tie_word_embeddings:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    with replacing(Path(path)) as file:
        torch.save(state, file)


def check_exportable(state: Mapping[str, Tensor], config: ModelConfig, source: Path) -> None:
    """Raises UserError for a model that its .pth would not bring back: one whose shape can't be told from its tensors,
    that MiniMind itself would not build, or with a weight too large for fp16."""
    silent = {"initializer_range": 0.02, "max_position_embeddings": 32768}  # neither changes a logit
    _refuse_scaling(config, source)
    read = infer_config(state, source)
    theirs, ours = read.model_copy(update=silent), config.model_copy(update=silent)
    if theirs != ours:
        raise UserError(
            f"{source}: a MiniMind .pth holds no shape, and this one would be read with {_told(ours, theirs)}: "
            "take --format hf"
        )
    built = ours.model_copy(update=_of_minimind(ours))
    if built != ours:
        raise UserError(f"{source}: MiniMind builds its models with {_told(ours, built)}: take --format hf")
    largest = torch.finfo(torch.float16).max
    if any(value.abs().max() > largest for value in state.values()):
        raise UserError(f"{source}: a weight is too large for a MiniMind .pth, which is fp16: take --format hf")


def _refuse_scaling(config: ModelConfig, source: Path) -> None:
    """For a reason in words; the comparison of shapes would find it too."""
    if config.rope_scaling is not None:
        raise UserError(
            f"{source}: its positions are scaled ({config.rope_scaling.rope_type}), which a MiniMind .pth can't say: "
            "take --format hf"
        )


def _of_minimind(config: ModelConfig) -> dict[str, Any]:
    """What MiniMind derives from a model's width and family instead of reading it."""
    fields = {
        "tie_word_embeddings": True,
        "intermediate_size": default_intermediate_size(config.hidden_size, config.model_type),
    }
    if config.model_type == "qwen3":
        fields |= {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": config.hidden_size // 8}
    return fields


def _told(ours: ModelConfig, theirs: ModelConfig) -> str:
    names = [name for name in ModelConfig.model_fields if getattr(theirs, name) != getattr(ours, name)]
    return ", ".join(f"{name} {getattr(ours, name)} as {getattr(theirs, name)}" for name in names)


def _refuse_unknown(state: State, path: Path) -> None:
    if any(".experts." in name or "shared_experts" in name for name in state):
        raise UserError(f"{path}: a mixture of experts; only MiniMind's dense models can be loaded")
    if not {"tok_embeddings.weight", "model.embed_tokens.weight"} & state.keys():
        raise UserError(f"{path}: not a MiniMind weight file (no token embedding among {len(state)} tensors)")


def _new_name(name: str) -> str:
    found = re.fullmatch(r"layers\.(\d+)\.(.+)\.weight", name)
    if found is None:
        return _OLD_NAMES.get(name, name)
    return f"model.layers.{found[1]}.{_OLD_LAYER_NAMES.get(found[2], found[2])}.weight"


def infer_config(state: Mapping[str, Tensor], path: Path) -> ModelConfig:
    """The shape of a state dict with Llama's names. Raises UserError when it isn't one of MiniMind's."""
    try:
        vocab, hidden = state["model.embed_tokens.weight"].shape
        queries = state["model.layers.0.self_attn.q_proj.weight"].shape[0]
        keys = state["model.layers.0.self_attn.k_proj.weight"].shape[0]
        if 0 in (vocab, hidden, queries, keys):
            raise ValueError("a projection or the embedding has no rows")
        normed = state.get("model.layers.0.self_attn.q_norm.weight")
        if normed is None:
            heads, kv_heads, theta = _HEADS[queries // keys]
            family = _OF_2025
        else:
            heads, kv_heads, theta = queries // len(normed), keys // len(normed), 1e6
            family = _OF_2026
        layers = 1 + max(int(name.split(".")[2]) for name in state if name.startswith("model.layers."))
        intermediate = state["model.layers.0.mlp.gate_proj.weight"].shape[0]
        output = state.get("lm_head.weight")
        tied = output is None or torch.equal(output, state["model.embed_tokens.weight"])
        return ModelConfig(
            vocab_size=vocab,
            hidden_size=hidden,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            head_dim=queries // heads,
            intermediate_size=intermediate,
            rope_theta=theta,
            tie_word_embeddings=tied,
            **family,
        )
    except ValidationError as error:
        first = error.errors()[0]
        reason = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise UserError(f"{path}: its shape is not one of MiniMind's dense models ({reason})") from error
    except (KeyError, ValueError, IndexError, ZeroDivisionError) as error:
        raise UserError(
            f"{path}: its shape is not one of MiniMind's dense models ({type(error).__name__}: {error})"
        ) from error


def _half_rotation_order(name: str, weight: Tensor, head_dim: int) -> Tensor:
    """Rows of wq and wk from (x0, y0, x1, y1, ...) within each head to (x0, x1, ..., y0, y1, ...)."""
    if not name.endswith(("q_proj.weight", "k_proj.weight")):
        return weight
    rows = weight.view(-1, head_dim // 2, 2, weight.shape[1])  # [heads, pairs, 2, H]
    return rows.transpose(1, 2).reshape(weight.shape)
