"""The pointwise-and-matmul pieces of the transformer, each in the fastest exact form for where it runs.

Contract: every function has one meaning, whatever form runs. Half precision in and out means fp32 inside,
rounded once at the end. The hand-written gradients (``torch.autograd.Function``) exist for eager CPU runs,
where each extra pass over memory is paid for; under ``torch.compile`` and on a GPU the plain formulas run,
because compilers and fused kernels do better.

Measured on two Ice Lake cores (no AVX512-BF16, no AMX), 4096x512 by 512x1408, forward: fp32 40 ms, bf16 172 ms, fp16
600 ms, bf16 through fp32 46 ms. So half-precision products go through fp32 there: same accumulator, three to ten times
the speed. On one EPYC core with AVX512-BF16 the same product runs at 88 GFLOP/s in fp32 (backward 89 to 101), 217 in
bf16 (195 to 217), 97 in bf16 through fp32: bf16 stays bf16 there. One product for q, k and v, or for gate and up, is no
faster at these sizes (208 to 213 against 217). fp32 products go to oneDNN: 250 GFLOP/s there, backward 190 to 250,
where MKL, torch's own choice, gets 110. Weakness: gradients of these functions cannot themselves be differentiated.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from minimind.base.processor import cpu_has_fast, linear_pointwise, onednn_multiplies
from minimind.config.model import RopeScaling
from minimind.model.rope import attention_factor, inverse_frequencies
from minimind.model.torch_gradients import silu_gradient


def through_fp32(x: Tensor) -> bool:
    """Whether to compute products of ``x`` in fp32: it is in half precision that this CPU only emulates."""
    return x.device.type == "cpu" and x.dtype in (torch.bfloat16, torch.float16) and not cpu_has_fast(x.dtype)


def apply(function: type[torch.autograd.Function], *inputs: Any) -> Tensor:
    """``function.apply``, which torch leaves untyped."""
    output: Tensor = function.apply(*inputs)
    return output


def hand_written(x: Tensor) -> bool:
    """Whether the hand-written gradients run: eager training on a CPU."""
    return x.device.type == "cpu" and torch.is_grad_enabled() and not torch.compiler.is_compiling()


def _fp32_product(x: Tensor, weight: Tensor) -> Tensor:
    if x.device.type == "cpu" and not torch.compiler.is_compiling() and onednn_multiplies(x.dtype):
        # The same precision; torch itself would ask MKL, which is slow on AMD's processors.
        return linear_pointwise(x, weight)
    return F.linear(x, weight)


def product(x: Tensor, weight: Tensor) -> Tensor:
    """``x`` [..., I] times ``weight`` [O, I] transposed, without autograd, sums in fp32, rounded once."""
    if x.dtype == torch.float32:
        return _fp32_product(x, weight)
    return _fp32_product(x.float(), weight.float()).to(x.dtype) if through_fp32(x) else F.linear(x, weight)


def input_gradient(grad: Tensor, weight: Tensor) -> Tensor:
    """Gradient of ``product``'s ``x``, [..., I], of ``grad`` [..., O]."""
    return product(grad, weight.t())


def weight_gradient(grad: Tensor, x: Tensor) -> Tensor:
    """Gradient of ``product``'s ``weight``, [O, I]."""
    return product(grad.flatten(0, -2).t(), x.flatten(0, -2).t())


class _Linear(torch.autograd.Function):
    """``product`` with its gradients; keeps ``x`` in its own dtype."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return product(x, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight = ctx.needs_input_grad
        grad_x = input_gradient(grad, weight) if needs_x else None
        return grad_x, weight_gradient(grad, x) if needs_weight else None


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """``x`` [..., I] times ``weight`` [O, I] transposed -> [..., O] in the dtype of ``x``; sums in fp32."""
    plain = x.device.type != "cpu" or (torch.compiler.is_compiling() and not through_fp32(x))
    if plain or x.dtype != weight.dtype:
        return F.linear(x, weight)
    if torch.is_grad_enabled():
        return apply(_Linear, x, weight)
    if through_fp32(x) and x.numel() == x.shape[-1]:
        # One token: reading the weights is the whole cost; widening them first would move them twice more.
        return F.linear(x, weight)
    return product(x, weight)


class _RmsNorm(torch.autograd.Function):
    """RMSNorm with the gradient written out: a third of the passes over memory of the composed form."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        scale = inverse_rms(x, eps)
        ctx.save_for_backward(x, weight, scale)
        return scaled(x, scale, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        return *rms_norm_gradients(grad, *ctx.saved_tensors), None


def inverse_rms(x: Tensor, eps: float) -> Tensor:
    """1 / sqrt(mean(x^2) + eps) over the last dimension of ``x`` [..., H]: fp32 [..., 1]."""
    mean_square: Tensor = torch.linalg.vector_norm(x.float(), dim=-1, keepdim=True).square_().div_(x.shape[-1])
    return mean_square.add_(eps).rsqrt_()


def scaled(x: Tensor, scale: Tensor, weight: Tensor) -> Tensor:
    """``x * scale * weight`` in fp32, rounded once: RMSNorm [..., H] with its ``scale`` [..., 1] known."""
    return (x.float() * scale).mul_(weight.float()).to(x.dtype)


def rms_norm_gradients(grad: Tensor, x: Tensor, weight: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of RMSNorm's ``x`` [..., H] and ``weight`` [H]; ``scale`` [..., 1] is ``inverse_rms`` of ``x``."""
    x32, grad32, weight32 = x.float(), grad.float(), weight.float()  # [..., H], [..., H], [H]
    pointwise = (grad32 * x32).flatten(0, -2)  # [N, H]
    grad_weight = scale.view(1, -1) @ pointwise  # [1, H], sum over rows of grad * x / rms
    along = (pointwise @ weight32).view_as(scale)  # [..., 1], how far the gradient points along x
    grad_x = (grad32 * weight32).mul_(scale)  # [..., H]
    grad_x.addcmul_(x32, along * scale.pow(3), value=-1.0 / x.shape[-1])
    return grad_x.to(x.dtype), grad_weight.view(-1).to(weight.dtype)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """``x / sqrt(mean(x^2) + eps) * weight`` over the last dimension, in fp32, rounded once at the end."""
    if hand_written(x):
        return apply(_RmsNorm, x, weight, eps)
    x32 = x.float()
    return F.rms_norm(x32, (x.shape[-1],), weight.float(), eps).to(x.dtype)


def rope_tables(
    position_ids: Tensor, head_dim: int, theta: float, scaling: RopeScaling | None = None
) -> tuple[Tensor, Tensor]:
    """Cosine and sine of the rotary angles: ``position_ids [B, T]`` -> two fp32 ``[B, T, 1, D]``.

    Each half of the channels has all angles; the first half's sines are negated, as ``rotate`` wants them. Computed at
    each forward (about a thousandth of it) rather than kept as buffers: nothing to be cast to half by
    ``module.half()``, to be lost in a meta-device build, or to bound the length. The formula is Hugging Face Llama's.
    ``scaling``: see rope.py; YaRN's factor of the attention is in both tables.
    """
    frequencies = inverse_frequencies(head_dim, theta, scaling, position_ids.device)  # [D / 2]
    angles = (position_ids[..., None].float() * frequencies).unsqueeze(2)  # [B, T, 1, D / 2]
    cos, sin = angles.cos(), angles.sin()
    if scaling is not None and (factor := attention_factor(scaling)) != 1.0:
        cos, sin = cos * factor, sin * factor
    return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    wide = x.float()  # [B, T, heads, D]
    # The roll puts each half where the other was: fewer passes than to turn the halves apart and join them.
    return torch.addcmul(wide * cos, wide.roll(x.shape[-1] // 2, -1), sin).to(x.dtype)


class _Rotate(torch.autograd.Function):
    """A rotation's gradient is the rotation back; nothing but the tables need be kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _rotate(x, cos, sin)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return _rotate(grad, cos, -sin), None, None


def rotate(x: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary positions, half-rotation form (channel i turns with i + head_dim / 2). ``x`` [B, T, heads, D]."""
    return apply(_Rotate, x, *tables) if hand_written(x) else _rotate(x, *tables)


class _SwiGlu(torch.autograd.Function):
    """Keeps its two inputs and computes ``silu(gate)`` again in the backward pass: a third less memory."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return gated(gate, up)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        return swiglu_gradients(grad, *ctx.saved_tensors)


def gated(gate: Tensor, up: Tensor) -> Tensor:
    """``silu(gate) * up`` [..., I] without autograd."""
    return F.silu(gate).mul_(up)


def swiglu_gradients(grad: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of ``gate`` and ``up``, all [..., I]."""
    grad_up = F.silu(gate).mul_(grad)
    return silu_gradient(grad * up, gate), grad_up


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """``silu(gate) * up``, elementwise, [..., I]."""
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        return apply(_SwiGlu, gate, up)
    return F.silu(gate) * up
