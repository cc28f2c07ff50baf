"""Hand-written gradients and through-fp32 products against the plain formulas."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from minimind.model import ops


def compare(ours: Callable[..., Tensor], plain: Callable[..., Tensor], *inputs: Tensor) -> None:
    """Same value and same gradients in fp32."""
    inputs = tuple(x.requires_grad_() if x.is_floating_point() else x for x in inputs)
    a, b = ours(*inputs), plain(*inputs)
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    upstream = torch.randn(a.shape, generator=torch.Generator().manual_seed(1))
    grads = [torch.autograd.grad(out, inputs, upstream) for out in (a, b)]
    for x, y in zip(*grads, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_rms_norm() -> None:
    compare(
        lambda x, w: ops.rms_norm(x, w, 1e-5),
        lambda x, w: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * w,
        normal(3, 5, 16),
        normal(16, seed=2),
    )


def test_rms_norm_in_half_computes_in_fp32() -> None:
    """Squares of 300 overflow fp16 (65504); the result must not notice."""
    x = torch.full((1, 8), 300.0, dtype=torch.float16)
    out = ops.rms_norm(x, torch.ones(8, dtype=torch.float16), 1e-5)
    torch.testing.assert_close(out, torch.ones(1, 8, dtype=torch.float16))


def test_swiglu() -> None:
    compare(ops.swiglu, lambda a, b: F.silu(a) * b, normal(4, 6), normal(4, 6, seed=2))


def test_rotate() -> None:
    tables = ops.rope_tables(torch.arange(7)[None], 8, 1e6)

    angles = torch.arange(7)[:, None] / 1e6 ** (torch.arange(0, 8, 2) / 8)  # [T, D / 2]
    cos, sin = (torch.cat((t, t), -1)[:, None] for t in (angles.cos(), angles.sin()))

    def half_rotation(x: Tensor) -> Tensor:
        turned = torch.cat((-x[..., 4:], x[..., :4]), -1)
        return x * cos + turned * sin

    compare(lambda x: ops.rotate(x, tables), half_rotation, normal(2, 7, 3, 8))


def test_rope_tables_are_fp32_whatever_the_position() -> None:
    """bf16 tables would confuse position 30000 with its neighbours."""
    cos, sin = ops.rope_tables(torch.tensor([[30000]]), 64, 1e6)
    assert cos.dtype == sin.dtype == torch.float32
    exact = torch.tensor(30000.0, dtype=torch.float64).cos()
    assert abs(cos[0, 0, 0, 0] - exact) < 1e-4


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_linear_through_fp32(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """One rounding of the exact product, forward and both gradients; whether or not this CPU would need it."""
    monkeypatch.setattr(ops, "cpu_has_fast", lambda dtype: False)
    x, weight = (t.to(dtype).requires_grad_() for t in (normal(2, 9, 32), normal(5, 32, seed=2)))
    out = ops.linear(x, weight)
    assert torch.equal(out, F.linear(x.float(), weight.float()).to(dtype))
    upstream = normal(2, 9, 5, seed=3).to(dtype)
    grad_x, grad_weight = torch.autograd.grad(out, (x, weight), upstream)
    up32 = upstream.float()
    assert torch.equal(grad_x, (up32 @ weight.float()).to(dtype))
    expected = torch.einsum("bto,bti->oi", up32, x.float())
    torch.testing.assert_close(grad_weight.float(), expected, rtol=1e-2, atol=1e-2)


def test_linear_without_gradients_agrees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "cpu_has_fast", lambda dtype: False)
    x, weight = normal(4, 32).bfloat16(), normal(5, 32, seed=2).bfloat16()
    with torch.no_grad():
        assert torch.equal(ops.linear(x, weight), F.linear(x.float(), weight.float()).bfloat16())
        one = ops.linear(x[:1], weight)
    torch.testing.assert_close(one, ops.linear(x, weight)[:1], rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("rows", [1, 3, 70])
def test_fp32_linear_without_gradients_is_the_same_product(rows: int) -> None:
    """By another library: only the order of the sums may differ. Also of a slice of a weight."""
    x, weight = normal(2, rows, 96), normal(40, 96, seed=2)
    exact = x.double() @ weight[:33].double().t()
    with torch.no_grad():
        out = ops.linear(x, weight[:33])
    assert out.shape == (2, rows, 33)
    assert ((out.double() - exact).abs() <= 16 * 2.0**-24 * (x.abs() @ weight[:33].abs().t())).all()


def test_fp32_is_left_alone() -> None:
    assert not ops.through_fp32(normal(2, 2))
    assert ops.cpu_has_fast(torch.float32)
