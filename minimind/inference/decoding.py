"""The decode step on a CPU: one token a row, with weights laid out for so few rows.

Contract: ``Decoder(model, cache)(tokens)`` gives the logits of ``model.next_logits(tokens[:, None], cache)`` up to
rounding, and moves the cache on. A step reads every weight once and computes little, so its time is how fast a
product of a few rows reads its weight. Measured on one EPYC core (AVX512-BF16), all products of the 26M shape:

                   1 row    16 rows
    fp32           6.0 ms   13.7 ms   F.linear, that is MKL
                   2.6      5.3       oneDNN's packed form (``Packed``); a sum over 104 MB takes 2.7 ms
                   1.6      4.4       FBGEMM, weights held in fp16 (``HeldInHalf``)
    bf16           3.2      4.3       F.linear
                   1.5      2.9       oneDNN's packed form

A model computes in fp32 on a CPU, but its weights were most often saved in bf16 or fp16, and such a weight times a
power of two is an fp16 number: half the memory is read, nothing is rounded. Weights that fp16 cannot hold exactly stay
in fp32, and nobody needs to choose. What is not a product is kept to few operations (about 40 us a layer for one row).

Products of the same input (q, k, v; gate, up) are one product here. Weaknesses: the weights are in memory one and a
half times or twice, as laid-out ones are kept for the model's next answer; laying them out takes 50 ms in fp32, 0.13 s
in fp16 (FBGEMM packs one number at a time) and 14 ms in bf16, the time that 20, 35 and 4 tokens of one row gain, so a
short answer does without (``decode_step``). On a GPU the model's own step runs: nobody has timed another one there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor

from minimind.base.processor import cpu_has_fast, fbgemm_holds_half, linear_pointwise, onednn_packs, reorder
from minimind.model import attention
from minimind.model.ops import rotate, swiglu
from minimind.model.transformer import KVCache, Layer, RMSNorm, Transformer

PAYS_FROM = 32  # new tokens
ROWS = 16  # what the weights are laid out for


def decode_step(model: Transformer, cache: KVCache, count: int) -> Callable[[Tensor], Tensor]:
    """The fastest step for ``count`` more tokens a row: last tokens ``[B]`` -> logits ``[B, output_size]``."""
    weight = model.output_weight
    native = weight.dtype in (torch.float32, torch.bfloat16) and cpu_has_fast(weight.dtype)
    can_pack = weight.device.type == "cpu" and native and onednn_packs(weight.dtype)
    if can_pack and count >= PAYS_FROM:
        return Decoder(model, cache)
    return lambda tokens: model.next_logits(tokens[:, None], cache)


class Product(Protocol):
    """``x`` [rows, I] times constant weights [O, I] transposed -> [rows, O], to be multiplied by ``scale``."""

    scale: float

    def __call__(self, x: Tensor) -> Tensor: ...


class Packed:
    """By oneDNN, in the weights' dtype."""

    scale = 1.0

    def __init__(self, weight: Tensor) -> None:
        self.dtype = weight.dtype
        self.weight: Tensor = reorder(weight, ROWS)

    def __call__(self, x: Tensor) -> Tensor:
        return linear_pointwise(x.to(self.dtype), self.weight)


class Plain:
    """By torch, in fp32, where the processor or the build has neither of the others."""

    scale = 1.0

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight.float()

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)


class HeldInHalf:
    """By FBGEMM: fp32 rows times weights held in fp16, widened as they are read; products and sums in fp32."""

    def __init__(self, weight: Tensor, exponent: int) -> None:
        self.scale = 2.0**-exponent
        self.weight = torch.ops.quantized.linear_prepack_fp16(weight * 2.0**exponent, None)

    def __call__(self, x: Tensor) -> Tensor:
        output: Tensor = torch.ops.quantized.linear_dynamic_fp16(x, self.weight)
        return output


def half_exponent(weight: Tensor) -> int | None:
    """An ``e`` so that fp16 holds each of ``weight * 2**e`` exactly; None if there is none, as in most fp32 models.

    Weights that were once rounded to fp16 or bf16 have one, unless they lie further apart than fp16 reaches: with the
    largest just below fp16's end, bf16 values down to 2**-32 of it are exact.
    """
    largest = float(weight.abs().max())
    if not math.isfinite(largest):
        return None
    exponent = min(15 - math.frexp(largest)[1], 100) if largest > 0 else 0  # fp32 holds 2**100 as well
    shifted = weight * 2.0**exponent
    return exponent if torch.equal(shifted.half().float(), shifted) else None


def fastest_product(*weights: Tensor) -> Product:
    """The fastest product by ``weights``, stacked along O, that rounds no weight."""
    stacked = torch.cat(weights).detach()
    if not onednn_packs(stacked.dtype):  # bf16 without AVX-512: fp32 holds it exactly
        stacked = stacked.float()
    exponent = half_exponent(stacked) if stacked.dtype == torch.float32 and fbgemm_holds_half() else None
    if exponent is not None:
        return HeldInHalf(stacked, exponent)
    return Packed(stacked) if onednn_packs(stacked.dtype) else Plain(stacked)


class Norm:
    """A root-mean-square norm of fp32 rows in four operations, half the time of torch's for so few rows."""

    def __init__(self, norm: RMSNorm, scale: float) -> None:
        """``scale``: of the product by what comes out."""
        size = norm.weight.shape[0]
        self.gain = norm.weight.float() * (math.sqrt(size) * scale)
        self.least = torch.tensor(math.sqrt(norm.eps * size))

    def __call__(self, x: Tensor) -> Tensor:
        # sqrt(sum of squares + size * eps) is a hypotenuse
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True).hypot_(self.least)
        return (x * self.gain).div_(length)


class LayerWeights:
    """One layer's weights, and its step."""

    def __init__(self, layer: Layer) -> None:
        attend, mlp = layer.self_attn, layer.mlp
        linears = (attend.q_proj, attend.k_proj, attend.v_proj)
        projections = [projection.weight for projection in linears]
        biases: list[torch.Tensor] = [projection.bias for projection in linears if projection.bias is not None]
        self.bias = torch.cat(biases).float() if biases else None
        self.q_norm, self.k_norm = (norm and Norm(norm, 1.0) for norm in (attend.q_norm, attend.k_norm))
        self.index, self.head_dim = attend.index, attend.head_dim
        self.heads = [weight.shape[0] // self.head_dim for weight in projections]  # of q, k, v
        self.qkv, self.out = fastest_product(*projections), fastest_product(attend.o_proj.weight)
        self.gate_up = fastest_product(mlp.gate_proj.weight, mlp.up_proj.weight)
        self.down = fastest_product(mlp.down_proj.weight)
        self.before_attention = Norm(layer.input_layernorm, self.qkv.scale)
        self.before_mlp = Norm(layer.post_attention_layernorm, self.gate_up.scale)

    def step(self, x: Tensor, tables: tuple[Tensor, Tensor], plan: attention.AttentionPlan, cache: KVCache) -> None:
        """Adds to ``x`` [B, H] fp32, in place; ``tables`` of the rows' positions, as ``rope_tables``."""
        projected = self.qkv(self.before_attention(x)).float()
        if self.bias is not None:
            projected = projected + self.bias
        heads = projected.view(x.shape[0], 1, -1, self.head_dim)
        turned, v = heads.split([sum(self.heads[:2]), self.heads[2]], dim=2)
        if self.q_norm and self.k_norm:
            q, k = turned.split(self.heads[:2], dim=2)
            turned = torch.cat((self.q_norm(q), self.k_norm(k)), dim=2)
        q, k = rotate(turned, tables).split(self.heads[:2], dim=2)
        keys, values = cache.append(self.index, k, v)
        x.add_(self.out(plan.attend(q, keys, values).view(x.shape[0], -1)), alpha=self.out.scale)
        gate, up = self.gate_up(self.before_mlp(x)).chunk(2, dim=-1)
        x.add_(self.down(swiglu(gate, up)), alpha=self.down.scale)


class Weights:
    """A copy of a model's weights as they are now, laid out for few rows."""

    def __init__(self, model: Transformer, version: list[tuple[int, int]] | None) -> None:
        self.made_of = version
        self.layers = [LayerWeights(layer) for layer in model.model.layers]  # type: ignore[arg-type]
        self.head = fastest_product(model.output_weight[: model.output_size])
        self.norm = Norm(model.model.norm, self.head.scale)


_KEPT: WeakKeyDictionary[Transformer, Weights] = WeakKeyDictionary()


def versions(model: Transformer) -> list[tuple[int, int]] | None:
    """What changes whenever a weight does: where it is and how often it was written to; None: nobody counts."""
    parameters = list(model.parameters())
    if any(parameter.is_inference() for parameter in parameters):
        return None
    return [(p.data_ptr(), p._version) for p in parameters] + [(model.output_size, 0)]


def laid_out(model: Transformer) -> Weights:
    """The model's weights for few rows: those of the last answer, if nothing has changed since."""
    kept, now = _KEPT.get(model), versions(model)
    if kept is not None and now is not None and kept.made_of == now:
        return kept
    _KEPT.pop(model, None)  # before the new ones are made: never three copies
    del kept
    _KEPT[model] = Weights(model, now)
    return _KEPT[model]


class Decoder:
    """The step of one batch of answers. Use it in inference mode."""

    @torch.inference_mode()
    def __init__(self, model: Transformer, cache: KVCache) -> None:
        self.cache, self.embed, self.weights = cache, model.model.embed_tokens, laid_out(model)
        columns = torch.arange(cache.capacity)[None]
        self.tables = model.rope_tables(columns)

    def __call__(self, tokens: Tensor) -> Tensor:
        """``tokens`` [B], the last of each row -> logits [B, output_size] of the next."""
        plan, positions = self.cache.plan(1), self.cache.positions(1)[:, 0]
        tables = self.tables[0][0, positions, None], self.tables[1][0, positions, None]  # [B, 1, 1, D]
        x = self.embed(tokens).float()  # the residual stream, in fp32 whatever the weights are in
        for layer in self.weights.layers:
            layer.step(x, tables, plan, self.cache)
        self.cache.advance(1)
        return self.weights.head(self.weights.norm(x))
