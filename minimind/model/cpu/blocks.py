"""Attention over packed documents in bf16, for processors that multiply bf16: blocks of queries against their keys.

A row's tokens are taken in blocks of ``BLOCK`` queries, wherever documents begin and end in it; a block's keys run from
the start of its first query's document (or a little before) to its own end, and a mask added to the scores hides what a
query may not see.
So the number of products does not grow with the number of documents, and nothing of the size T x T ever exists.

Numerics, as FlashAttention's in bf16 (https://arxiv.org/abs/2205.14135): scores, softmax and their gradients in fp32;
probabilities and score gradients rounded to bf16 for the products that follow. q, k, v and the incoming gradient are
bf16 already, so oneDNN may multiply them as bf16 ("medium" precision) and still give the fp32 product: it adds up in
fp32 and does not round the result. Only q, k and v are kept for the backward pass, which computes the probabilities
again, and the output where a linear layer follows (``project``).

Measured on one core of an EPYC with AVX512-BF16, 8 query and 2 key heads of 64, forward and backward of some 4,000
tokens: 50 ms where one fused fp32 call a document takes 102 to 109 (documents of 100 to 512 tokens), 40 against 62 (112
to 200), 37 against 32 (39).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from minimind.model.ops import apply, input_gradient, product, weight_gradient
from minimind.model.torch_gradients import softmax_gradient

BLOCK = 128  # queries
KEYS = 32  # a block's keys are a multiple of it: oneDNN makes and keeps a kernel for each size


@dataclass(frozen=True)
class QueryBlock:
    """Queries ``start`` to ``end`` see keys from ``first_key`` to ``end`` where ``mask`` [queries, 1, keys] is 0, not
    -inf."""

    start: int
    end: int
    first_key: int
    mask: Tensor

    @property
    def keys(self) -> slice:
        return slice(self.first_key, self.end)

    def queries(self, group: int) -> slice:
        """Where they are if ``group`` query heads lie beside each other."""
        return slice(self.start * group, self.end * group)


def make_blocks(lengths: Sequence[int], size: int = BLOCK) -> list[QueryBlock]:
    """The blocks of documents of these ``lengths``, one after the other."""
    of = torch.tensor(lengths)
    starts = (of.cumsum(0) - of).repeat_interleave(of)  # [T], where each token's document starts
    return [_block(starts, start, min(start + size, len(starts))) for start in range(0, len(starts), size)]


def _block(starts: Tensor, start: int, end: int) -> QueryBlock:
    keys = -(-(end - int(starts[start])) // KEYS) * KEYS
    first_key = max(0, end - keys)
    query, key = torch.arange(start, end)[:, None], torch.arange(first_key, end)
    hidden = (key > query) | (key < starts[start:end, None])
    mask = torch.zeros(hidden.shape).masked_fill_(hidden, -torch.inf)
    return QueryBlock(start, end, first_key, mask[:, None])


@contextmanager
def _exact_products(dtype: torch.dtype) -> Iterator[None]:
    """fp32 products here are of operands that came from ``dtype``: if bf16 holds them, it may multiply them."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium" if dtype == torch.bfloat16 else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _by_key_head(x: Tensor, kv_heads: int) -> Tensor:
    """[T, heads, D] -> [kv_heads, T * group, D]: the query heads that share a key head lie beside each other."""
    return x.view(x.shape[0], kv_heads, -1, x.shape[2]).transpose(0, 1).reshape(kv_heads, -1, x.shape[2])


def _by_token(x: Tensor, length: int) -> Tensor:
    """The way back: [kv_heads, T * group, D] -> [T, heads, D]."""
    return x.view(x.shape[0], length, -1, x.shape[2]).transpose(0, 1).reshape(length, -1, x.shape[2])


def _probabilities(q: Tensor, k: Tensor, block: QueryBlock, scale: float) -> Tensor:
    """fp32 [kv_heads, queries * group, keys], of q [kv_heads, queries * group, D] and k [kv_heads, keys, D]."""
    with _exact_products(q.dtype):
        scores = torch.bmm(q.float(), k.float().transpose(1, 2))
    by_query = scores.view(len(scores), block.end - block.start, -1, scores.shape[2])
    torch.add(block.mask, by_query, alpha=scale, out=by_query)
    return scores.softmax(-1)


def _score_gradients(grad: Tensor, v: Tensor, probabilities: Tensor) -> Tensor:
    """Of a block's scores, rounded as ``grad`` [kv_heads, queries * group, D] is; v [kv_heads, keys, D]."""
    with _exact_products(grad.dtype):
        along = torch.bmm(grad.float(), v.float().transpose(1, 2))
    return softmax_gradient(along, probabilities).to(grad.dtype)


def _attended(q: Tensor, k: Tensor, v: Tensor, blocks: Sequence[QueryBlock]) -> Tensor:
    """q [T, heads, D], k, v [T, kv_heads, D] -> [T, heads, D]."""
    (length, heads, size), kv_heads = q.shape, k.shape[1]
    q, k, v = (_by_key_head(x, kv_heads) for x in (q, k, v))
    out = torch.empty_like(q)
    for block in blocks:
        queries, keys = block.queries(heads // kv_heads), block.keys
        probabilities = _probabilities(q[:, queries], k[:, keys], block, size**-0.5)
        out[:, queries] = torch.bmm(probabilities.to(q.dtype), v[:, keys])
    return _by_token(out, length)


def _gradients(
    grad: Tensor, saved: Sequence[Tensor], blocks: Sequence[QueryBlock], out: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of ``_attended``'s q, k and v, which are ``saved``. ``out`` (as ``grad``) gets its result once more."""
    (length, heads, size), kv_heads = grad.shape, saved[1].shape[1]
    q, k, v, grad = (_by_key_head(x, kv_heads) for x in (*saved, grad))
    grad_q, again = torch.empty_like(q), None if out is None else torch.empty_like(q)
    grad_k, grad_v = (torch.zeros_like(x, dtype=torch.float32) for x in (k, v))
    for block in blocks:
        queries, keys = block.queries(heads // kv_heads), block.keys
        probabilities = _probabilities(q[:, queries], k[:, keys], block, size**-0.5)
        rounded = probabilities.to(q.dtype)
        if again is not None:
            again[:, queries] = torch.bmm(rounded, v[:, keys])
        grad_v[:, keys] += torch.bmm(rounded.transpose(1, 2), grad[:, queries])
        scores = _score_gradients(grad[:, queries], v[:, keys], probabilities)
        grad_q[:, queries] = torch.bmm(scores, k[:, keys])
        grad_k[:, keys] += torch.bmm(scores.transpose(1, 2), q[:, queries])
    if out is not None and again is not None:
        out.copy_(_by_token(again, length))
    scaled = grad_q.mul_(size**-0.5), grad_k.mul_(size**-0.5), grad_v
    grad_q, grad_k, grad_v = (_by_token(x.to(q.dtype), length) for x in scaled)
    return grad_q, grad_k, grad_v


class _BlockAttention(torch.autograd.Function):
    """``_attended``, which keeps its inputs."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, blocks: Sequence[QueryBlock]) -> Tensor:
        ctx.save_for_backward(q, k, v)
        ctx.blocks = blocks
        return _attended(q, k, v, blocks)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        # saved_tensors once: under activation checkpointing each look would compute them again
        return *_gradients(grad, ctx.saved_tensors, ctx.blocks), None


class _ProjectedAttention(torch.autograd.Function):
    """``_attended`` and the linear layer after it, ``weight`` [H, heads * D] -> [T, H]; keeps q, k, v and the weight.
    The layer's input is computed again with the probabilities: a tenth of what a layer of the 26M model would keep."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, weight: Tensor, blocks: Sequence[QueryBlock]) -> Tensor:
        ctx.save_for_backward(q, k, v, weight)
        ctx.blocks = blocks
        return product(_attended(q, k, v, blocks).flatten(1), weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, None]:
        *saved, weight = ctx.saved_tensors
        grad_out = input_gradient(grad, weight).view(saved[0].shape)
        out = torch.empty_like(grad_out)
        grads = _gradients(grad_out, saved, ctx.blocks, out)
        return *grads, weight_gradient(grad, out.flatten(1)), None


@dataclass(frozen=True)
class QueryBlocks:
    """A plan (attention.py): the ``blocks`` of all rows' documents, one after the other."""

    blocks: Sequence[QueryBlock]

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """[B, T, heads, D] and [B, T, kv_heads, D] -> [B, T, heads, D]; made for bf16, exact in fp32 as well."""
        # All rows as one long row: documents never cross a row's end, so masking by document is enough.
        return apply(_BlockAttention, *(x.flatten(0, 1) for x in (q, k, v)), self.blocks).view(q.shape)

    def project(self, q: Tensor, k: Tensor, v: Tensor, weight: Tensor) -> Tensor:
        """``attend`` and the linear layer ``weight`` [H, heads * D] after it: [B, T, H]. Keeps less than the two do."""
        inputs = (x.flatten(0, 1) for x in (q, k, v))
        return apply(_ProjectedAttention, *inputs, weight, self.blocks).view(*q.shape[:2], -1)
