"""The decode step on a CPU: one token a row, with weights laid out for so few rows.

Contract: ``Decoder(model, cache)(tokens)`` gives the logits of ``model.next_logits(tokens[:, None], cache)`` up to
rounding, and moves the cache on. A step reads every weight once and computes little, so its time is how fast a
product of a few rows reads its weight. Measured on one EPYC core (AVX512-BF16), all products of the 26M shape:

    fp32, 1 row    F.linear (MKL) 9.1 ms, transposed 6.0 ms, oneDNN's packed form 7.1 ms
    fp32, 16 rows  F.linear 18.4 ms, transposed 17.8 ms, packed 10.5 ms
    bf16, 1 row    F.linear 6.3 ms, packed 3.8 ms;  16 rows 9.7 and 5.7 ms

(By numpy's OpenBLAS a transposed fp32 row takes 5.1 ms, but its threads and torch's then wait for each other's cores:
with two threads on two busy cores 10 tokens/s instead of 31.)

Products of the same input (q, k, v; gate, up) are one product here. Weaknesses: the weights are in memory twice, as
laid-out ones are kept for the model's next answer; laying them out costs the time of some twenty tokens, so a short
first answer does without (``decode_step``). On a GPU the model's own step runs: nobody has timed another one there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from minimind import attention
from minimind.model import KVCache, Layer, Transformer
from minimind.ops import cpu_has_fast, rope_tables, rotate, swiglu

PAYS_FROM = 16  # new tokens


def decode_step(model: Transformer, cache: KVCache, count: int) -> Callable[[Tensor], Tensor]:
    """The fastest step for ``count`` more tokens a row: last tokens ``[B]`` -> logits ``[B, output_size]``."""
    weight = model.output_weight
    native = weight.dtype in (torch.float32, torch.bfloat16) and cpu_has_fast(weight.dtype)
    can_pack = weight.device.type == "cpu" and torch.backends.mkldnn.is_available()
    if can_pack and native and count >= PAYS_FROM:
        return Decoder(model, cache)
    return lambda tokens: model.next_logits(tokens[:, None], cache)


class Product:
    """``x`` [rows, I] times constant weights [O, I] transposed -> [rows, O], in the best form for ``rows``."""

    def __init__(self, weights: Sequence[Tensor], rows: int) -> None:
        """``weights``: stacked along O, for products of the same input."""
        self.packed: Tensor | None = None
        self.transposed: Tensor | None = None
        stacked = torch.cat(tuple(weights))
        if rows == 1 and stacked.dtype == torch.float32:
            self.transposed = stacked.t().contiguous()
        else:
            self.packed = torch.ops.mkldnn._reorder_linear_weight(stacked, rows)

    def __call__(self, x: Tensor) -> Tensor:
        if self.transposed is not None:
            return x @ self.transposed
        product: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.packed, None, "none", [], "")
        return product


class LayerWeights:
    """One layer's weights for ``rows`` rows, and its step."""

    def __init__(self, layer: Layer, rows: int) -> None:
        attend, mlp = layer.self_attn, layer.mlp
        projections = [projection.weight for projection in (attend.q_proj, attend.k_proj, attend.v_proj)]
        self.index, self.head_dim = attend.index, attend.head_dim
        self.heads = [weight.shape[0] // self.head_dim for weight in projections]  # of q, k, v
        self.qkv = Product(projections, rows)
        self.out = Product([attend.o_proj.weight], rows)
        self.gate_up = Product([mlp.gate_proj.weight, mlp.up_proj.weight], rows)
        self.down = Product([mlp.down_proj.weight], rows)
        self.before_attention, self.before_mlp = layer.input_layernorm, layer.post_attention_layernorm

    def step(self, x: Tensor, tables: tuple[Tensor, Tensor], plan: attention.Plan, cache: KVCache) -> Tensor:
        """``x`` [B, H] -> [B, H]; ``tables`` of the rows' positions, as ``rope_tables``."""
        heads = self.qkv(self.before_attention(x)).view(x.shape[0], 1, -1, self.head_dim)
        turned, v = heads.split([sum(self.heads[:2]), self.heads[2]], dim=2)
        q, k = rotate(turned, tables).split(self.heads[:2], dim=2)
        keys, values = cache.append(self.index, k, v)
        x = x + self.out(plan.attend(q.contiguous(), keys, values).view(x.shape[0], -1))
        gate, up = self.gate_up(self.before_mlp(x)).chunk(2, dim=-1)
        return x + self.down(swiglu(gate, up))


class Weights:
    """A copy of a model's weights as they are now, laid out for ``rows`` rows."""

    def __init__(self, model: Transformer, rows: int, version: list[tuple[int, int]] | None) -> None:
        self.made_of = version, rows
        self.layers = [LayerWeights(layer, rows) for layer in model.model.layers]  # type: ignore[arg-type]
        self.head = Product([model.output_weight[: model.output_size]], rows)


_KEPT: WeakKeyDictionary[Transformer, Weights] = WeakKeyDictionary()


def versions(model: Transformer) -> list[tuple[int, int]] | None:
    """What changes whenever a weight does: where it is and how often it was written to; None: nobody counts."""
    parameters = list(model.parameters())
    if any(parameter.is_inference() for parameter in parameters):
        return None
    return [(p.data_ptr(), p._version) for p in parameters] + [(model.output_size, 0)]


def laid_out(model: Transformer, rows: int) -> Weights:
    """The model's weights for ``rows`` rows: those of the last answer, if nothing has changed since."""
    kept, now = _KEPT.get(model), versions(model)
    if kept is not None and now is not None and kept.made_of == (now, rows):
        return kept
    _KEPT.pop(model, None)  # before the new ones are made: never three copies
    del kept
    _KEPT[model] = Weights(model, rows, now)
    return _KEPT[model]


class Decoder:
    """The step of one batch of answers. Use it in inference mode."""

    @torch.inference_mode()
    def __init__(self, model: Transformer, cache: KVCache) -> None:
        self.cache, self.body = cache, model.model
        self.weights = laid_out(model, rows=cache.keys[0].shape[0])
        columns = torch.arange(cache.capacity)[None]
        self.tables = rope_tables(columns, model.config.head_dim, model.config.rope_theta)

    def __call__(self, tokens: Tensor) -> Tensor:
        """``tokens`` [B], the last of each row -> logits [B, output_size] of the next."""
        plan, positions = self.cache.plan(1), self.cache.positions(1)[:, 0]
        tables = self.tables[0][0, positions, None], self.tables[1][0, positions, None]  # [B, 1, 1, D]
        x = self.body.embed_tokens(tokens)
        for layer in self.weights.layers:
            x = layer.step(x, tables, plan, self.cache)
        self.cache.advance(1)
        return self.weights.head(self.body.norm(x))
