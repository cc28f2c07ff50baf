"""Sub-blocks that keep less: the values and gradients of the plain pieces, and what is kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from minimind.model import ops
from minimind.model.cpu.recompute import normed_projections, swiglu_down

EPS = 1e-5


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def plain_projections(x: Tensor, gain: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
    normed = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * gain
    return tuple(normed @ weight.t() for weight in weights)


def gradients(outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    upstream = [torch.randn(out.shape, generator=torch.Generator().manual_seed(9)).to(out.dtype) for out in outputs]
    return torch.autograd.grad(outputs, inputs, upstream)


def test_normed_projections_are_norm_and_linear_layers() -> None:
    inputs = normal(2, 5, 16, seed=0), normal(16, seed=1), normal(8, 16, seed=2), normal(4, 16, seed=3)
    x, gain, *weights = inputs
    ours, plain = normed_projections(x, gain, EPS, weights), plain_projections(*inputs)
    for a, b in zip((*ours, *gradients(ours, inputs)), (*plain, *gradients(plain, inputs)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_swiglu_down_is_swiglu_and_a_linear_layer() -> None:
    inputs = gate, up, weight = normal(2, 5, 12, seed=0), normal(2, 5, 12, seed=1), normal(8, 12, seed=2)
    ours = [swiglu_down(gate, up, weight)]
    plain = [(torch.nn.functional.silu(gate) * up) @ weight.t()]
    for a, b in zip((*ours, *gradients(ours, inputs)), (*plain, *gradients(plain, inputs)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_without_gradients_they_give_the_same_bits(dtype: torch.dtype) -> None:
    """Evaluation runs the plain pieces, training the recomputing ones: a loss must not depend on which."""
    x, gain, weight = (normal(*shape, seed=i).detach().to(dtype) for i, shape in enumerate([(6, 16), (16,), (16, 16)]))
    trained = normed_projections(x, gain, EPS, [weight, weight])
    with torch.no_grad():
        evaluated = normed_projections(x, gain, EPS, [weight, weight])
        down = swiglu_down(x, x, weight)
    assert all(torch.equal(a, b) for a, b in zip(trained, evaluated, strict=True))
    assert torch.equal(swiglu_down(x, x, weight), down)


def kept_bytes(work: Callable[[], object], own: Sequence[Tensor]) -> int:
    """Bytes of what autograd keeps besides the tensors ``own``."""
    known, seen = {tensor.data_ptr() for tensor in own}, {}

    def pack(tensor: Tensor) -> Tensor:
        if tensor.data_ptr() not in known:
            seen[tensor.data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        work()
    return sum(tensor.nbytes for tensor in seen.values())


def test_neither_the_norm_nor_the_product_is_kept() -> None:
    x, gain, weight = normal(32, 16, seed=0), normal(16, seed=1), normal(16, 16, seed=2)
    inverse_rms = 32 * 4
    own = (x, gain, weight)
    assert kept_bytes(lambda: normed_projections(x, gain, EPS, [weight, weight]), own) == inverse_rms
    assert kept_bytes(lambda: swiglu_down(x, x, weight), own) == 0
    assert kept_bytes(lambda: ops.linear(ops.rms_norm(x, gain, EPS), weight), own) == inverse_rms + x.nbytes
