"""The transformer: a dense Llama, Mistral, Qwen2 or Qwen3 (MiniMind's shapes are among them), with Hugging Face's
parameter names.

Pre-norm RMSNorm, rotary positions (half rotation), grouped-query attention, SwiGLU, no dropout; Qwen2 adds biases to
queries, keys and values, Qwen3 norms each head of queries and keys. With the same weights its logits equal
transformers' (tests/model/test_transformer.py). Packed rows: pass ``document_ids`` and positions that restart, and a
document gives the logits of the document alone. Labels are aligned already; the loss is a sum. Half-precision
parameters are expected to be cast by the engine; norms and loss still compute in fp32.

Weakness: these families only. Windows, other biases and experts are refused on import instead of being approximated.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from minimind.config.model import PRESETS, ModelConfig
from minimind.model import attention
from minimind.model.attention import AttentionPlan, KVCache
from minimind.model.cpu.recompute import normed_projections, swiglu_down
from minimind.model.loss import cross_entropy_by_row, summed_cross_entropy
from minimind.model.ops import linear, rms_norm, rope_tables, rotate

__all__ = ["PRESETS", "KVCache", "ModelConfig", "Transformer"]

Tables = tuple[Tensor, Tensor]


class Linear(nn.Module):
    """A weight [out, in], with a bias [out] only where one is asked for; unset memory until
    ``Transformer.init_weights`` or a load fills it."""

    def __init__(self, in_features: int, out_features: int, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_features, in_features))
        self.bias = nn.Parameter(torch.empty(out_features)) if bias else None

    def shifted(self, product: Tensor) -> Tensor:
        """The ``product`` of the weight and an input, with the bias."""
        return product if self.bias is None else product + self.bias


class RMSNorm(nn.Module):
    """Root-mean-square norm with a learned gain, computed in fp32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)


class Normed(NamedTuple):
    """The residual stream ``x`` [B, T, H] for linear layers that read its ``norm``: ``project`` computes both."""

    x: Tensor
    norm: RMSNorm


def project(normed: Normed, *layers: Linear) -> tuple[Tensor, ...]:
    """The linear ``layers`` of the normed stream, [B, T, out] each. Not a tensor before: eager training on a CPU then
    keeps the stream alone, and norms it again in the backward pass (model/cpu/recompute.py)."""
    weights = [layer.weight for layer in layers]
    products = normed_projections(normed.x, normed.norm.weight, normed.norm.eps, weights)
    return tuple(layer.shifted(product) for layer, product in zip(layers, products, strict=True))


class Attention(nn.Module):
    """Grouped-query attention with rotary positions; the heads of queries and keys are normed where the family does."""

    def __init__(self, config: ModelConfig, index: int) -> None:
        super().__init__()
        self.index, self.head_dim = index, config.head_dim
        queries = config.num_attention_heads * config.head_dim
        keys = config.num_key_value_heads * config.head_dim
        self.q_proj = Linear(config.hidden_size, queries, config.qkv_bias)
        self.k_proj = Linear(config.hidden_size, keys, config.qkv_bias)
        self.v_proj = Linear(config.hidden_size, keys, config.qkv_bias)
        self.o_proj = Linear(queries, config.hidden_size)
        self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps) if config.qk_norm else None
        self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps) if config.qk_norm else None

    def forward(self, x: Normed, tables: Tables, plan: AttentionPlan, cache: KVCache | None) -> Tensor:
        projected = project(x, self.q_proj, self.k_proj, self.v_proj)  # [B, T, heads * D], twice [B, T, kv_heads * D]
        q, k, v = (y.view(*y.shape[:2], -1, self.head_dim) for y in projected)  # [B, T, heads or kv_heads, D]
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = rotate(q, tables), rotate(k, tables)
        if cache is not None:
            k, v = cache.append(self.index, k, v)  # [B, S, kv_heads, D]
        return attention.project(plan, q, k, v, self.o_proj.weight)  # [B, T, H]


class MLP(nn.Module):
    """SwiGLU."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = Linear(config.hidden_size, config.intermediate_size)
        self.up_proj = Linear(config.hidden_size, config.intermediate_size)
        self.down_proj = Linear(config.intermediate_size, config.hidden_size)

    def forward(self, x: Normed) -> Tensor:
        gate, up = project(x, self.gate_proj, self.up_proj)  # [B, T, I]
        return swiglu_down(gate, up, self.down_proj.weight)  # [B, T, H]


class Layer(nn.Module):
    """Attention and SwiGLU, each of the normed residual stream, added to it."""

    def __init__(self, config: ModelConfig, index: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config, index)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, tables: Tables, plan: AttentionPlan, cache: KVCache | None) -> Tensor:
        x = x + self.self_attn(Normed(x, self.input_layernorm), tables, plan, cache)  # [B, T, H]
        added: Tensor = self.mlp(Normed(x, self.post_attention_layernorm))
        return x + added


class Body(nn.Module):
    """Everything but the output projection; the ``model.`` in Llama's parameter names."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(
            config.vocab_size, config.hidden_size, _weight=torch.empty(config.vocab_size, config.hidden_size)
        )
        self.layers = nn.ModuleList(Layer(config, index) for index in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)


class Transformer(nn.Module):
    """The language model. ``seed=None`` leaves the weights unset, for a ``load_state_dict`` that follows.

    ``gradient_checkpointing`` (attribute): recompute each layer in the backward pass; less memory, a third
    more work, the same gradients. ``attention_backend`` (attribute): see ``attention.py``. ``output_size`` (attribute):
    ids from here on are never generated; a tokenizer may hold fewer pieces than the vocabulary has rows, and the rows
    beyond it were never trained.
    """

    def __init__(self, config: ModelConfig, seed: int | None = 0) -> None:
        super().__init__()
        self.config = config
        self.gradient_checkpointing = False
        self.output_size = config.vocab_size
        self.attention_backend: attention.Backend = "auto"
        self.model = Body(config)
        self.lm_head = None if config.tie_word_embeddings else Linear(config.hidden_size, config.vocab_size)
        if seed is not None:
            self.init_weights(seed)

    @torch.no_grad()
    def init_weights(self, seed: int) -> None:
        """N(0, initializer_range); what writes to the residual stream scaled by 1/sqrt(2 * layers); norms 1, biases 0.

        Deterministic in ``seed``, the same on every device, and without touching the global random state.
        """
        for parameter, values in zip(self.parameters(), self.initial_values(seed), strict=True):
            parameter.copy_(values)

    def initial_values(self, seed: int) -> Iterator[Tensor]:
        """What ``init_weights`` gives each parameter, in order: fp32 on the CPU, made one at a time from the shapes
        alone (those of a model on the meta device will do)."""
        generator = torch.Generator().manual_seed(seed)
        residual = 1.0 / math.sqrt(2 * self.config.num_hidden_layers)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 1:
                yield (torch.zeros if name.endswith(".bias") else torch.ones)(parameter.shape)
                continue
            scale = residual if name.endswith(("o_proj.weight", "down_proj.weight")) else 1.0
            yield torch.randn(parameter.shape, generator=generator) * (self.config.initializer_range * scale)

    @property
    def output_weight(self) -> Tensor:
        """The output projection ``[V, H]``: the embedding itself when tied."""
        return self.model.embed_tokens.weight if self.lm_head is None else self.lm_head.weight

    def rope_tables(self, position_ids: Tensor) -> Tables:
        """``ops.rope_tables`` of this model."""
        config = self.config
        return rope_tables(position_ids, config.head_dim, config.rope_theta, config.rope_scaling)

    def hidden_states(
        self,
        input_ids: Tensor,
        position_ids: Tensor | None = None,
        document_ids: Tensor | None = None,
        cache: KVCache | None = None,
    ) -> Tensor:
        """Final normed hidden states ``[B, T, H]``; see ``forward`` for the arguments."""
        length = input_ids.shape[1]
        if cache is not None:
            plan, positions = cache.plan(length), cache.positions(length)
        else:
            dtype, head_dim = self.output_weight.dtype, self.config.head_dim
            plan = attention.plan(document_ids, self.attention_backend, dtype, head_dim)
            positions = torch.arange(length, device=input_ids.device)[None]  # [1, T]
        positions = positions if position_ids is None else position_ids
        tables = self.rope_tables(positions)  # two [B or 1, T, 1, D]
        x = self.model.embed_tokens(input_ids)  # [B, T, H]
        for layer in self.model.layers:
            if self.gradient_checkpointing and torch.is_grad_enabled():
                x = checkpoint(layer, x, tables, plan, cache, use_reentrant=False)
            else:
                x = layer(x, tables, plan, cache)
        if cache is not None:
            cache.advance(length)
        hidden: Tensor = self.model.norm(x)
        return hidden

    def forward(
        self,
        input_ids: Tensor,
        labels: Tensor | None = None,
        position_ids: Tensor | None = None,
        document_ids: Tensor | None = None,
        cache: KVCache | None = None,
        by_row: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Loss (a sum, 0-d fp32) if ``labels`` are given, else logits ``[B, T, V]`` in the parameters'
        dtype. With ``by_row`` the loss, the same to the last bit, and each row's part of it (fp32 [B], detached).

        ``input_ids`` [B, T] int64. ``labels`` [B, T] int64, aligned: ``labels[b, t]`` is the target of
        position t, -100 carries no loss. ``position_ids`` [B, T] int64, restarting at 0 in each document
        (default: 0 .. T-1, or the cache's next positions). ``document_ids`` [B, T]: tokens attend causally
        within a run of equal ids (default: one document a row); not used with ``cache``.
        """
        hidden = self.hidden_states(input_ids, position_ids, document_ids, cache)  # [B, T, H]
        if labels is not None and by_row:
            return cross_entropy_by_row(hidden, self.output_weight, labels)
        if labels is not None:
            return summed_cross_entropy(hidden, self.output_weight, labels)
        return linear(hidden, self.output_weight)

    def next_logits(self, input_ids: Tensor, cache: KVCache) -> Tensor:
        """Logits [B, output_size] for the token after ``input_ids`` [B, T]: other positions' are not computed."""
        weight = self.output_weight[: self.output_size]
        return linear(self.hidden_states(input_ids, cache=cache)[:, -1], weight)

    def new_cache(self, batch: int, capacity: int, starts: Tensor | None = None) -> KVCache:
        """An empty cache for ``batch`` rows of up to ``capacity`` tokens (``starts``: left padding, see KVCache)."""
        shape = (batch, capacity, self.config.num_key_value_heads, self.config.head_dim)
        weight = self.output_weight
        return KVCache(shape, self.config.num_hidden_layers, weight.dtype, weight.device, starts)

    def flops_per_token(self, length: int) -> float:
        """Training FLOPs of one token in a document of ``length``: 6 x parameters + 6 x layers x heads x D x length.

        Convention: backward counts twice the forward, a multiply-add counts 2, recomputation does not count, and only
        the causal half of attention does. An untied input embedding is a look-up, not a product. 26M at 512: 1.68e8.
        """
        config = self.config
        lookup = 0 if config.tie_word_embeddings else config.vocab_size * config.hidden_size
        width = config.num_attention_heads * config.head_dim
        return 6.0 * (config.num_parameters() - lookup) + 6.0 * config.num_hidden_layers * width * length
