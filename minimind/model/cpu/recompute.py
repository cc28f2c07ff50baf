"""Projections that keep less for the backward pass: what costs one pass over memory is computed again instead.

For eager training on a CPU (``ops.hand_written``). Not kept are a norm's output, where it only feeds linear layers, and
the product of SwiGLU: 4.75 of the 14.75 numbers that a layer of the 26M model would keep for each channel of a token,
for one more pass over memory each. Elsewhere the plain pieces run: a compiler decides such things itself, and on a GPU
``gradient_checkpointing`` is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from minimind.model.ops import (
    gated,
    hand_written,
    input_gradient,
    inverse_rms,
    linear,
    product,
    rms_norm,
    rms_norm_gradients,
    scaled,
    swiglu,
    swiglu_gradients,
    weight_gradient,
)


class _NormedProjections(torch.autograd.Function):
    """RMSNorm and linear layers of its output; keeps the norm's input and one number a token."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor, eps: float, *weights: Tensor) -> tuple[Tensor, ...]:
        scale = inverse_rms(x, eps)
        ctx.save_for_backward(x, gain, scale, *weights)
        normed = scaled(x, scale, gain)
        return tuple(product(normed, weight) for weight in weights)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, gain, scale, *weights = ctx.saved_tensors  # [..., H], [H], [..., 1], [O, H] each
        normed = scaled(x, scale, gain)  # [..., H]
        grad_weights = [weight_gradient(grad, normed) for grad in grads]
        del normed
        grad_normed = input_gradient(grads[0], weights[0])  # [..., H]
        for grad, weight in zip(grads[1:], weights[1:], strict=True):
            grad_normed += input_gradient(grad, weight)
        return *rms_norm_gradients(grad_normed, x, gain, scale), None, *grad_weights


class _SwiGluDown(torch.autograd.Function):
    """SwiGLU and the linear layer after it; keeps gate and up."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up, weight)
        return product(gated(gate, up), weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        gate, up, weight = ctx.saved_tensors  # [..., I] twice, [H, I]
        grad_weight = weight_gradient(grad, gated(gate, up))
        return *swiglu_gradients(input_gradient(grad, weight), gate, up), grad_weight


def normed_projections(x: Tensor, gain: Tensor, eps: float, weights: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The linear layers ``weights`` [O, H] of the RMSNorm (``gain`` [H]) of ``x`` [..., H] -> [..., O] each."""
    if hand_written(x):
        outputs: tuple[Tensor, ...] = _NormedProjections.apply(x, gain, eps, *weights)
        return outputs
    normed = rms_norm(x, gain, eps)
    return tuple(linear(normed, weight) for weight in weights)


def swiglu_down(gate: Tensor, up: Tensor, weight: Tensor) -> Tensor:
    """``linear(silu(gate) * up, weight)``: gate and up [..., I], weight [H, I] -> [..., H]."""
    if hand_written(gate):
        down: Tensor = _SwiGluDown.apply(gate, up, weight)
        return down
    return linear(swiglu(gate, up), weight)
