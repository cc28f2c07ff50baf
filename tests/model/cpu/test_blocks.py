"""Blocks of queries against plain attention in float64, wherever documents begin and end."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from minimind.model import attention
from minimind.model.cpu.blocks import QueryBlocks, make_blocks
from minimind.model.ops import linear

LENGTHS = {
    "one": [48],
    "many": [1] * 48,
    "across blocks": [5, 1, 30, 12],
    "at block ends": [16, 16, 16],
    "short last block": [40, 3],
}


def inputs(tokens: int) -> list[Tensor]:
    """bf16 q [1, T, 4, 8], k and v [1, T, 2, 8]."""
    generator = torch.Generator().manual_seed(0)
    values = [torch.randn(1, tokens, heads, 8, generator=generator) for heads in (4, 2, 2)]
    return [value.bfloat16().requires_grad_() for value in values]


def exact(q: Tensor, k: Tensor, v: Tensor, lengths: list[int]) -> Tensor:
    ids = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))[None]
    heads_first = (x.double().transpose(1, 2) for x in (q, k, v))
    mask = attention.document_mask(ids)
    return F.scaled_dot_product_attention(*heads_first, attn_mask=mask, enable_gqa=True).transpose(1, 2)


def distance(a: Tensor, b: Tensor) -> float:
    return float(((a.double() - b).norm() / b.norm()).detach())


@pytest.mark.parametrize("name", LENGTHS)
@pytest.mark.parametrize("size", [1, 16, 128])
def test_values_and_gradients(name: str, size: int) -> None:
    lengths = LENGTHS[name]
    ours, theirs = inputs(sum(lengths)), inputs(sum(lengths))
    found = QueryBlocks(make_blocks(lengths, size)).attend(*ours)
    wanted = exact(*theirs, lengths)
    assert found.dtype == torch.bfloat16 and found.shape == ours[0].shape
    assert distance(found, wanted) < 2**-8  # one rounding to bf16 of the probabilities and one of the output
    upstream = torch.randn(found.shape, generator=torch.Generator().manual_seed(1)).bfloat16()
    grads = torch.autograd.grad(found, ours, upstream)
    for grad, right in zip(grads, torch.autograd.grad(wanted, theirs, upstream.double()), strict=True):
        # with documents of one token q and k have no gradient at all: then ours must be nothing beside the others'
        assert distance(grad, right) < 2**-7 if right.norm() > 1e-6 else grad.norm() < 1e-3


def test_large_scores_keep_their_precision() -> None:
    """Scores of about 100 rounded to bf16 would be wrong by up to 0.25, probabilities by a quarter."""
    q, k, v = (10 * x.detach() if i < 2 else x.detach() for i, x in enumerate(inputs(32)))
    found = QueryBlocks(make_blocks([32], 16)).attend(q, k, v)
    assert distance(found, exact(q, k, v, [32])) < 2**-8


def test_fp32_is_not_rounded_to_bf16() -> None:
    """As a processor that only emulates bf16 calls it (attention.attend)."""
    q, k, v = (x.detach().float() * 1.001 for x in inputs(32))
    assert distance(QueryBlocks(make_blocks([32], 16)).attend(q, k, v), exact(q, k, v, [32])) < 1e-6


def test_precision_of_other_products_is_left_as_it_was() -> None:
    before = torch.get_float32_matmul_precision()
    q, k, v = inputs(8)
    QueryBlocks(make_blocks([8])).attend(q, k, v).float().sum().backward()
    assert torch.get_float32_matmul_precision() == before


def test_a_block_sees_from_its_first_document_on() -> None:
    first, second = make_blocks([5, 6, 3], size=8)
    assert (first.start, first.end, second.start, second.end) == (0, 8, 8, 14)
    visible = [[key + second.first_key for key in row.nonzero()[:, 0].tolist()] for row in second.mask[:, 0] == 0]
    assert visible[0] == [5, 6, 7, 8]  # token 8, of the second document (5 to 10)
    assert visible[-1] == [11, 12, 13]  # token 13, of the third


def test_few_sizes_for_any_documents() -> None:
    """Each new size costs oneDNN a kernel, which it keeps: documents of any length must not make new ones."""
    generator = torch.Generator().manual_seed(0)
    sizes = set()
    for _ in range(20):
        lengths = torch.randint(1, 300, (30,), generator=generator).tolist()
        sizes |= {block.mask.shape[2] for block in make_blocks(lengths)[3:-1]}
    assert sizes <= set(range(128, 480, 32))


def test_chosen_for_bf16_that_this_processor_multiplies(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = torch.zeros(1, 4, dtype=torch.long)
    monkeypatch.setattr(attention, "cpu_has_fast", lambda dtype: True)
    assert isinstance(attention.plan(ids, dtype=torch.bfloat16), QueryBlocks)
    assert isinstance(attention.plan(ids, dtype=torch.float32), attention.Runs)
    monkeypatch.setattr(attention, "cpu_has_fast", lambda dtype: False)
    assert isinstance(attention.plan(ids, dtype=torch.bfloat16), attention.Runs)


@pytest.mark.parametrize("lengths", LENGTHS.values())
def test_the_projection_after_it_is_the_same_to_the_bit(lengths: list[int]) -> None:
    """Its gradients too, though the layer's input is not kept but computed again."""
    plan = QueryBlocks(make_blocks(lengths, 16))
    weight = torch.randn(24, 32, generator=torch.Generator().manual_seed(2)).bfloat16().requires_grad_()
    found = []
    for apart in (True, False):
        q, k, v = inputs(sum(lengths))
        out = linear(plan.attend(q, k, v).flatten(2), weight) if apart else plan.project(q, k, v, weight)
        upstream = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).bfloat16()
        found.append([out, *torch.autograd.grad(out, (q, k, v, weight), upstream)])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_a_training_pass_keeps_no_output_of_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "through_fp32", lambda _: False)  # as on a processor that multiplies bf16
    kept: list[tuple[int, ...]] = []
    plan, (q, k, v) = QueryBlocks(make_blocks([48])), inputs(48)
    weight = torch.zeros(24, 32, dtype=torch.bfloat16, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(tuple(x.shape)) or x, lambda x: x):
        attention.project(plan, q, k, v, weight)
    assert sorted(kept) == sorted([(48, 4, 8), (48, 2, 8), (48, 2, 8), (24, 32)])
