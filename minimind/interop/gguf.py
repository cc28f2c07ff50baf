"""A model as one GGUF file (version 3, architecture ``llama``, ``qwen2`` or ``qwen3``), which llama.cpp and what is
built on it load. Needs the extra ``gguf``.

Contract: llama.cpp computes the same logits up to the precision of ``dtype``, takes the same tokens for ordinary text
and builds the same chat prompts. What that needs:

- As ``llama`` (Mistral too) llama.cpp turns neighbouring channels (rope type NORM), so the rows of q and k within each
  head go from half-rotation order into pairs: ``LlamaModel.permute`` of its convert_hf_to_gguf.py. As ``qwen2`` and
  ``qwen3`` it turns halves, as we do.
- Of scaled positions, ``linear`` and ``yarn`` are named in the file, and ``llama3`` is a tensor of what each frequency
  is divided by. YaRN with a factor of the attention that is not the usual one is refused: llama.cpp has no such field.
- The tokenizer's fields are gguf_tokenizer.py's, how weights are stored gguf_types.py's.
- Norms and biases stay fp32, which llama.cpp wants. Rows of the vocabulary beyond the tokenizer's are left out:
  nothing is generated from them here either.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from minimind.base.defaults import GgufDtype
from minimind.base.errors import UserError
from minimind.base.files import replacing
from minimind.config.model import ModelConfig, ModelType, RopeScaling
from minimind.interop.gguf_tokenizer import add_tokenizer
from minimind.interop.gguf_types import FILE_TYPES, stored, type_of
from minimind.model.rope import attention_factor, inverse_frequencies
from minimind.text.tokenizer import Tokenizer

_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_ARCHITECTURES: dict[ModelType, str] = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}


def save_gguf(
    model_state: Mapping[str, Tensor],
    config: ModelConfig,
    tokenizer: Tokenizer,
    path: str | Path,
    dtype: GgufDtype = "f16",
    name: str = "minimind",
) -> None:
    """Write ``path``, complete or not at all; ``dtype`` of the matrices, ``name`` for people.

    Raises UserError without the extra ``gguf``, for positions that llama.cpp can't scale so, and when a weight is too
    large for f16.
    """
    _refuse_scaling(config)
    try:
        import gguf
    except ImportError as error:
        raise UserError("gguf is missing: pip install 'minimind-deepspeed[gguf]'") from error
    with replacing(Path(path)) as file:
        writer = gguf.GGUFWriter(file.name, _ARCHITECTURES[config.model_type])
        try:
            writer.add_name(name)
            writer.add_file_type(gguf.LlamaFileType[FILE_TYPES[dtype]])
            writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
            _add_shape(writer, config, tokenizer.vocab_size)
            add_tokenizer(writer, tokenizer)
            for tensor in named_tensors(model_state, config, tokenizer.vocab_size):
                _add_tensor(writer, tensor, dtype, config)
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
        finally:
            writer.close()


class Named(NamedTuple):
    """A tensor on the CPU under GGUF's name, and the name that it has here."""

    name: str
    ours: str
    tensor: Tensor


def _add_tensor(writer: Any, given: Named, dtype: GgufDtype, config: ModelConfig) -> None:
    from gguf import GGMLQuantizationType

    shape = tuple(given.tensor.shape)
    kind = type_of(given.name, shape, dtype, config.num_hidden_layers, config.tie_word_embeddings)
    writer.add_tensor(given.name, stored(given.ours, given.tensor, kind), raw_dtype=GGMLQuantizationType[kind])


def named_tensors(model_state: Mapping[str, Tensor], config: ModelConfig, vocab_size: int) -> Iterator[Named]:
    """Everything that the file holds: q and k in pairs, ``vocab_size`` rows of embedding and output."""
    for name, value in model_state.items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        value = value.detach().cpu()
        if name.endswith(("q_proj.weight", "k_proj.weight")) and _ARCHITECTURES[config.model_type] == "llama":
            value = paired_rows(value, config.head_dim)
        if name in ("model.embed_tokens.weight", "lm_head.weight"):
            value = value[:vocab_size]
        yield Named(gguf_name(name), name, value)
    if config.rope_scaling is not None and config.rope_scaling.rope_type == "llama3":
        plain, stretched = (
            inverse_frequencies(config.head_dim, config.rope_theta, scaling) for scaling in (None, config.rope_scaling)
        )
        yield Named("rope_freqs.weight", "rope_scaling", plain / stretched)


def gguf_name(name: str) -> str:
    """``model.layers.3.mlp.up_proj.weight`` -> ``blk.3.ffn_up.weight``."""
    stem, kind = name.rsplit(".", 1)
    if not stem.startswith("model.layers."):
        return f"{_NAMES[stem]}.{kind}"
    layer, part = stem.removeprefix("model.layers.").split(".", 1)
    return f"blk.{layer}.{_NAMES[part]}.{kind}"


def paired_rows(weight: Tensor, head_dim: int) -> Tensor:
    """Rows within each head from (x0, x1, ..., y0, y1, ...) to (x0, y0, x1, y1, ...); ``weight`` [heads * D, H]."""
    rows = weight.view(-1, 2, head_dim // 2, weight.shape[1])  # [heads, 2, pairs, H]
    return rows.transpose(1, 2).reshape(weight.shape)


def _add_shape(writer: Any, config: ModelConfig, vocab_size: int) -> None:
    writer.add_vocab_size(vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    _add_scaling(writer, config.rope_scaling)


def _add_scaling(writer: Any, scaling: RopeScaling | None) -> None:
    """llama3 is a tensor instead."""
    from gguf import RopeScalingType

    if scaling is None or scaling.rope_type == "llama3":
        return
    writer.add_rope_scaling_type(RopeScalingType.YARN if scaling.rope_type == "yarn" else RopeScalingType.LINEAR)
    writer.add_rope_scaling_factor(scaling.factor)
    if scaling.original_max_position_embeddings is not None:
        writer.add_rope_scaling_orig_ctx_len(scaling.original_max_position_embeddings)


def _refuse_scaling(config: ModelConfig) -> None:
    """llama.cpp takes YaRN's usual factor and ramp."""
    scaling = config.rope_scaling
    if scaling is None or scaling.rope_type != "yarn":
        return
    usual = RopeScaling(
        rope_type="yarn",
        factor=scaling.factor,
        original_max_position_embeddings=scaling.original_max_position_embeddings,
    )
    ramp = ((scaling.beta_fast or 32), (scaling.beta_slow or 1), scaling.truncate is not False)
    if attention_factor(scaling) != attention_factor(usual) or ramp != (32, 1, True):
        raise UserError(
            "rope_scaling: YaRN with its own attention_factor, mscale, beta or truncate has no place in a GGUF file: "
            "take --format hf"
        )
