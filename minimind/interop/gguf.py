"""A model as one GGUF file (version 3, architecture ``llama``, ``qwen2`` or ``qwen3``), which llama.cpp and what is
built on it load. Needs the extra ``gguf``.

Contract: llama.cpp computes the same logits up to the precision of ``dtype``, takes the same tokens for ordinary text
and builds the same chat prompts. What that needs:

- As ``llama`` (Mistral too) llama.cpp turns neighbouring channels (rope type NORM), so the rows of q and k within each
  head go from half-rotation order into pairs: ``LlamaModel.permute`` of its convert_hf_to_gguf.py. As ``qwen2`` and
  ``qwen3`` it turns halves, as we do.
- Of scaled positions, ``linear`` and ``yarn`` are named in the file, and ``llama3`` is a tensor of what each frequency
  is divided by. YaRN with a factor of the attention that is not the usual one is refused: llama.cpp has no such field.
- The tokenizer is SentencePiece's (``tokenizer.ggml.model = llama``): pieces, scores and types as they are, and no
  space put in front. Every prompt begins with bos. The first four ids are spelled ``<|bos|>`` and so on, as in
  tokenizer_files.py: llama.cpp takes a special token's spelling in a chat for the token, and ``<s>`` is common.
- Norms and biases stay fp32, which llama.cpp wants. Rows of the vocabulary beyond the tokenizer's are left out:
  nothing is generated from them here either.

Weaknesses: ``<|im_start|>`` typed by a user in a chat is taken for the token, and U+2581 for a space.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sentencepiece
import torch
from torch import Tensor

from minimind.base.defaults import GgufDtype
from minimind.base.errors import UserError
from minimind.base.files import replacing
from minimind.config.model import ModelConfig, ModelType, RopeScaling
from minimind.model.rope import attention_factor, inverse_frequencies
from minimind.text.chat import JINJA
from minimind.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
_GGML_TYPES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
_FILE_TYPES = {"f32": "ALL_F32", "f16": "MOSTLY_F16", "bf16": "MOSTLY_BF16"}
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
    tensors = dict(named_tensors(model_state, config, tokenizer.vocab_size, dtype))
    with replacing(Path(path)) as file:
        writer = gguf.GGUFWriter(file.name, _ARCHITECTURES[config.model_type])
        try:
            writer.add_name(name)
            writer.add_file_type(gguf.LlamaFileType[_FILE_TYPES[dtype]])
            _add_shape(writer, config, tokenizer.vocab_size)
            _add_tokenizer(writer, tokenizer)
            for tensor_name, tensor in tensors.items():
                kind = gguf.GGMLQuantizationType[_GGML_TYPES[tensor.dtype]]
                writer.add_tensor(tensor_name, _as_numpy(tensor), raw_dtype=kind)
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
        finally:
            writer.close()


def named_tensors(
    model_state: Mapping[str, Tensor], config: ModelConfig, vocab_size: int, dtype: GgufDtype
) -> Iterator[tuple[str, Tensor]]:
    """GGUF names and tensors on the CPU: q and k in pairs, ``vocab_size`` rows of embedding and output.

    Raises UserError when a weight is too large for f16.
    """
    for name, value in model_state.items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        value = value.detach().cpu()
        if name.endswith(("q_proj.weight", "k_proj.weight")) and _ARCHITECTURES[config.model_type] == "llama":
            value = paired_rows(value, config.head_dim)
        if name in ("model.embed_tokens.weight", "lm_head.weight"):
            value = value[:vocab_size]
        wanted = value.to(torch.float32 if value.ndim == 1 else _DTYPES[dtype]).contiguous()
        if not wanted.isfinite().all() and value.isfinite().all():
            raise UserError(f"{name}: a weight is too large for f16: take --dtype bf16 or f32")
        yield gguf_name(name), wanted
    if config.rope_scaling is not None and config.rope_scaling.rope_type == "llama3":
        plain, stretched = (
            inverse_frequencies(config.head_dim, config.rope_theta, scaling) for scaling in (None, config.rope_scaling)
        )
        yield "rope_freqs.weight", plain / stretched


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


def _as_numpy(tensor: Tensor) -> npt.NDArray[np.generic]:
    """The bytes for the writer; numpy has no bf16, for which it takes rows of bytes."""
    return tensor.view(torch.uint8).numpy() if tensor.dtype == torch.bfloat16 else tensor.numpy()


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


def _add_tokenizer(writer: Any, tokenizer: Tokenizer) -> None:
    spelled, scores, types = _vocabulary(tokenizer)
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(spelled)
    writer.add_token_scores(scores)
    writer.add_token_types(types)
    writer.add_bos_token_id(tokenizer.bos_id)
    writer.add_eos_token_id(tokenizer.eos_id)  # ends texts
    writer.add_eot_token_id(tokenizer.im_end_id)  # ends answers
    writer.add_pad_token_id(tokenizer.pad_id)
    writer.add_unk_token_id(spelled.index("<|unk|>"))
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)
    writer.add_add_space_prefix(False)
    writer.add_remove_extra_whitespaces(False)
    writer.add_chat_template(JINJA)


def _vocabulary(tokenizer: Tokenizer) -> tuple[list[str], list[float], list[int]]:
    """Spelling, score and type of each piece, as GGUF wants them."""
    from gguf import TokenType

    processor = sentencepiece.SentencePieceProcessor()
    processor.LoadFromSerializedProto(tokenizer.model_bytes)
    ids = range(tokenizer.vocab_size)
    spelled = [processor.IdToPiece(i) for i in ids]
    named = {tokenizer.pad_id: "pad", tokenizer.bos_id: "bos", tokenizer.eos_id: "eos", processor.unk_id(): "unk"}
    for i, name in named.items():
        spelled[i] = f"<|{name}|>"

    def kind(i: int) -> int:
        if processor.IsUnknown(i):
            return int(TokenType.UNKNOWN)
        if processor.IsControl(i):
            return int(TokenType.CONTROL)
        return int(TokenType.BYTE if processor.IsByte(i) else TokenType.NORMAL)

    return spelled, [processor.GetScore(i) for i in ids], [kind(i) for i in ids]
