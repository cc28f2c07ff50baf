"""Attention over packed documents in half precision, and of one token on a CPU (the other forms: test_model.py)."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from minimind.model import attention

LENGTHS = [5, 1, 10, 16]  # two rows of 16


def inputs(dtype: torch.dtype) -> list[Tensor]:
    """q, k, v [2, 16, heads, 8] with 4 query and 2 key heads; the same values for every dtype that can hold them."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, 16, heads, 8) for heads in (4, 2, 2)]
    values = [torch.randn(shape, generator=generator).bfloat16() for shape in shapes]
    return [value.to(dtype).requires_grad_() for value in values]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_runs_in_half_precision_round_the_fp32_result_once(dtype: torch.dtype) -> None:
    half, wide = inputs(dtype), inputs(torch.float32)
    plan = attention.Runs(LENGTHS)
    ours, exact = attention.attend(plan, *half), attention.attend(plan, *wide)
    assert ours.dtype == dtype and torch.equal(ours, exact.to(dtype))
    upstream = torch.randn(ours.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    grads = torch.autograd.grad(ours, half, upstream)
    for grad, exact_grad in zip(grads, torch.autograd.grad(exact, wide, upstream.float()), strict=True):
        assert torch.equal(grad, exact_grad.to(dtype))


def test_one_token_on_a_cpu_is_a_row_of_full_attention() -> None:
    """With left padding and without, over a cache whose length is no multiple of anything."""
    q, k, v = (x.detach() for x in inputs(torch.float32))
    for starts in (None, torch.tensor([0, 5])):
        cache = attention.KVCache((2, 37, 2, 8), 1, torch.float32, k.device, starts)
        first = [0, 0] if starts is None else starts.tolist()
        cache.append(0, k[:, :15], v[:, :15])
        cache.advance(15)
        plan = cache.plan(1)
        assert isinstance(plan, attention.OneTokenOnCpu)
        one = plan.attend(q[:, 15:], *cache.append(0, k[:, 15:], v[:, 15:]))
        for row, start in enumerate(first):
            visible = [x[row : row + 1, start:] for x in (q, k, v)]
            expected = attention.Causal().attend(*visible)[:, -1:]
            torch.testing.assert_close(one[row : row + 1], expected)


def test_a_cache_on_a_cpu_is_in_fp32() -> None:
    """The token's query and its attention are then widened, and the answer is in the query's dtype."""
    q, k, v = (x.detach() for x in inputs(torch.bfloat16))
    cache = attention.KVCache((2, 20, 2, 8), 1, torch.bfloat16, k.device)
    assert all(x is y for x, y in zip((k, v), cache.append(0, k, v), strict=True))  # the prompt's own, as they came
    cache.advance(15)
    keys, values = cache.append(0, k[:, 15:], v[:, 15:])
    assert keys.dtype == values.dtype == torch.float32 and torch.equal(keys, k.float())
    out = attention.attend(cache.plan(1), q[:, 15:], keys, values)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out, attention.Causal().attend(q, k, v)[:, -1:], rtol=2e-2, atol=2e-2)


def test_one_token_on_a_gpu_agrees_with_the_form_on_a_cpu() -> None:
    """The fused kernel with a boolean mask, here run on a CPU."""
    q, k, v = (x.detach() for x in inputs(torch.float32))
    padding = torch.arange(16) < torch.tensor([[0], [5]])  # [B, S]
    hidden = torch.zeros(2, 16).masked_fill(padding, -torch.inf).repeat_interleave(2, 0)[:, None]
    last = q[:, -1:].contiguous()
    for mask, added in ((None, None), (~padding[:, None, None], hidden)):
        fused = attention.OneToken(mask).attend(last, k, v)
        torch.testing.assert_close(fused, attention.OneTokenOnCpu(added).attend(last, k, v))


def test_a_cache_elsewhere_keeps_the_models_dtype_and_the_fused_kernel() -> None:
    starts = torch.zeros(2, dtype=torch.long, device="meta")
    cache = attention.KVCache((2, 20, 2, 8), 1, torch.bfloat16, starts.device, starts)
    assert cache.keys[0].dtype == torch.bfloat16 and cache.keys[0].is_contiguous() and cache.hidden is None
    cache.advance(15)
    plan = cache.plan(1)
    assert isinstance(plan, attention.OneToken) and plan.mask is not None and plan.mask.shape == (2, 1, 1, 16)
