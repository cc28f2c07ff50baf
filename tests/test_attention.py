"""Attention over packed documents in half precision: fp32 inside, rounded once (the forms agree: test_model.py)."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from minimind import attention

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
