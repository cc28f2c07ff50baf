"""Which token may look at which: causal attention inside packed documents, and the key/value cache.

Contract: a token attends to itself and to earlier tokens of its own document. A document is a run of equal
``document_ids`` in a row (ids are contiguous, as packing makes them; padding is a run like any other). What
to compute is planned once a forward and shared by the layers. Exact forms, chosen by ``plan``:

- ``Runs`` (CPU): one fused call per document, in fp32: the CPU's half-precision kernel has a slow backward. Measured
  on an EPYC core with AVX512-BF16, 8 rows of 512, heads as in the 26M model, forward and backward of bf16 tensors,
  against a dense mask: 0.23 of its time with 13 documents a row (0.59 without the detour through fp32), 0.39 with 3
  (0.71), the same with one.
- ``QueryBlocks`` (bf16 on a CPU that multiplies it; model/cpu/blocks.py): half the time of ``Runs`` for long documents.
- ``DenseMask``: a boolean mask built once. Works everywhere, and the only form whose shapes are static
  under torch.compile on a CPU.
- ``Varlen`` and ``Flex`` (model/cuda.py): on a GPU, eager and compiled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from minimind.base.defaults import AttentionBackend
from minimind.base.errors import UserError
from minimind.base.processor import cpu_has_fast
from minimind.model.cpu.blocks import QueryBlocks, make_blocks
from minimind.model.cuda import SMALLEST_FLEX_HEAD, flex_plan, flex_runs, varlen_plan, varlen_runs
from minimind.model.ops import hand_written, linear, through_fp32

Backend = Literal[AttentionBackend, "runs", "blocks"]  # and the forms that are chosen here


class AttentionPlan(Protocol):
    """How one forward attends: ``q`` [B, T, heads, D], ``k``, ``v`` [B, S, kv_heads, D] -> as ``q``."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor: ...


def _sdpa(q: Tensor, k: Tensor, v: Tensor, **how: Any) -> Tensor:
    """Fused attention over [B, heads, T, D]; key/value heads are shared by groups of query heads, not copied."""
    group = q.shape[1] // k.shape[1]
    if group > 1 and q.device.type != "cpu" and (q.dtype == torch.float32 or how.get("attn_mask") is not None):
        # But here: a GPU's one fused kernel for fp32 or a mask wants as many key heads (model/cuda.py).
        k, v, group = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1), 1
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=group > 1, **how)


@dataclass(frozen=True)
class Causal:
    """One document a row, no cache."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return _sdpa(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True).transpose(1, 2)


@dataclass(frozen=True)
class DenseMask:
    """``mask`` [B, 1, T, S] boolean, True where a token may look."""

    mask: Tensor

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        heads_first = (x.transpose(1, 2) for x in (q, k, v))  # [B, heads or kv_heads, T or S, D]
        return _sdpa(*heads_first, attn_mask=self.mask).transpose(1, 2)


@dataclass(frozen=True)
class OneToken:
    """One new token a row: the query heads that share a key head become rows of one product (1.3 to 2 times faster).

    ``mask`` [B, 1, 1, S] boolean, or None: everywhere. For a GPU; ``OneTokenOnCpu`` is its form on a CPU.
    """

    mask: Tensor | None

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        batch, _, _, size = q.shape
        grouped = q.view(batch, k.shape[2], -1, size)  # [B, kv_heads, group, D]
        return _sdpa(grouped, k.transpose(1, 2), v.transpose(1, 2), attn_mask=self.mask).reshape(q.shape)


@dataclass(frozen=True)
class OneTokenOnCpu:
    """One new token a row by two batched products, over keys whose channels lie apart (see ``KVCache``).

    ``hidden`` fp32 [B * kv_heads, 1, S], the lowest number where a row may not look, or None: everywhere. Measured
    on an EPYC core, 16 rows of 130 columns that come from memory, a layer: 187 us; the fused kernel over [B, T, heads,
    D] 241, in bf16 386; reading these keys and values alone 77.
    """

    hidden: Tensor | None

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        grouped = q.reshape(q.shape[0] * k.shape[2], -1, q.shape[3])  # [B * kv_heads, group, D]
        keys = k.permute(0, 2, 3, 1).flatten(0, 1)  # [B * kv_heads, D, S]
        values = v.transpose(1, 2).flatten(0, 1)  # [B * kv_heads, S, D]
        start, beta = (keys.new_empty(()), 0) if self.hidden is None else (self.hidden, 1)
        scores = torch.baddbmm(start, grouped, keys, beta=beta, alpha=q.shape[3] ** -0.5)  # [B * kv_heads, group, S]
        return torch.bmm(scores.softmax(-1), values).view(q.shape)


@dataclass(frozen=True)
class Runs:
    """``lengths`` of the documents of all rows, one after the other; they add up to B * T."""

    lengths: list[int]

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        # All rows as one long row: documents never cross a row's end, so cutting it by document is enough.
        flat = (x.float().reshape(1, -1, *x.shape[2:]).transpose(1, 2) for x in (q, k, v))  # [1, heads, B * T, D]
        pieces = zip(*(torch.split(x, self.lengths, dim=2) for x in flat), strict=True)
        outputs = [_sdpa(*piece, is_causal=True) for piece in pieces]
        return torch.cat(outputs, dim=2).transpose(1, 2).reshape(q.shape).to(q.dtype)


def document_mask(document_ids: Tensor) -> Tensor:
    """``document_ids`` [B, T] -> boolean [B, 1, T, T]: causal and within one document."""
    same = document_ids[:, None, :, None] == document_ids[:, None, None, :]  # [B, 1, T, T]
    return same.tril_()


def run_offsets(document_ids: Tensor) -> Tensor:
    """Where the runs of equal ids begin, row after row, and the end: int64 [runs + 1]. Runs end with their row."""
    starts = torch.ones(document_ids.shape, dtype=torch.bool, device=document_ids.device)
    starts[:, 1:] = document_ids[:, 1:] != document_ids[:, :-1]
    return F.pad(starts.flatten().nonzero().flatten(), (0, 1), value=document_ids.numel())


def run_lengths(document_ids: Tensor) -> list[int]:
    """Lengths of the runs of equal ids, row by row."""
    lengths: list[int] = run_offsets(document_ids).diff().tolist()
    return lengths


def plan(
    document_ids: Tensor | None, backend: Backend = "auto", dtype: torch.dtype = torch.float32, head_dim: int = 64
) -> AttentionPlan:
    """The form of attention for a forward without cache of a model in ``dtype``."""
    if document_ids is None:
        return Causal()
    if backend == "auto":
        backend = fastest(document_ids.device, dtype, head_dim)
    if backend == "runs":
        return Runs(run_lengths(document_ids))
    if backend == "blocks":
        return QueryBlocks(make_blocks(run_lengths(document_ids)))
    if backend == "varlen":
        return varlen_plan(run_offsets(document_ids), document_ids.shape[1])
    return flex_plan(document_ids) if backend == "flex" else DenseMask(document_mask(document_ids))


def check_backend(backend: Backend, device: torch.device, dtype: torch.dtype, head_dim: int) -> None:
    """Raises UserError if a form that somebody asked for can't run there."""
    if backend == "varlen" and not varlen_runs(device, dtype, head_dim):
        needs = "an NVIDIA GPU from Ampere on, fp16 or bf16, heads of 8 to 256 in steps of 8, and torch 2.12"
        raise UserError(f"attention_backend: varlen needs {needs}: leave it at auto")
    if backend == "flex" and not flex_runs(device, head_dim):
        needs = f"a GPU, for it has no backward pass on a CPU, and heads of {SMALLEST_FLEX_HEAD} or more"
        raise UserError(f"attention_backend: flex needs {needs}: leave it at auto")


def fastest(device: torch.device, dtype: torch.dtype, head_dim: int) -> Backend:
    """What ``auto`` means for a model there."""
    compiling = torch.compiler.is_compiling()
    if device.type == "cpu" and not compiling:
        return "blocks" if dtype == torch.bfloat16 and cpu_has_fast(dtype) else "runs"
    if compiling and flex_runs(device, head_dim):
        return "flex"
    return "varlen" if not compiling and varlen_runs(device, dtype, head_dim) else "mask"


def attend(plan: AttentionPlan, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Run the plan; half precision that this CPU only emulates is widened to fp32 first, which is faster."""
    if through_fp32(v) or k.dtype != q.dtype:  # a cache on a CPU is in fp32
        return plan.attend(q.float(), k.float(), v.float()).to(q.dtype)
    return plan.attend(q, k, v)


def project(plan: AttentionPlan, q: Tensor, k: Tensor, v: Tensor, weight: Tensor) -> Tensor:
    """``attend``, and the linear layer ``weight`` [H, heads * D] of all heads side by side: [B, T, H]."""
    if isinstance(plan, QueryBlocks) and hand_written(q) and not through_fp32(q):
        return plan.project(q, k, v, weight)
    return linear(attend(plan, q, k, v).flatten(2), weight)


def _for_products(shape: tuple[int, int, int, int]) -> tuple[Tensor, Tensor]:
    """Empty keys and values [B, capacity, kv_heads, D] in fp32, in memory as ``OneTokenOnCpu`` reads them."""
    batch, capacity, kv_heads, size = shape
    # An odd number of cache lines from channel to channel: a power of two would put all into the same few sets of the
    # processor's cache (at 1,024 columns 344 us instead of 263 a layer for 16 rows).
    lines = (capacity + 15) // 16 | 1
    keys = torch.zeros(batch, kv_heads, size, lines * 16)[..., :capacity]
    return keys.permute(0, 3, 1, 2), torch.zeros(batch, kv_heads, capacity, size).transpose(1, 2)


def _hidden(starts: Tensor, capacity: int, kv_heads: int) -> Tensor:
    """What to add to the scores of all columns [B * kv_heads, 1, capacity] to hide those before ``starts`` [B]."""
    padding = torch.arange(capacity) < starts[:, None]
    # Not minus infinity: a padding column sees padding only, and its softmax would be 0/0.
    added = torch.zeros(padding.shape).masked_fill_(padding, torch.finfo(torch.float32).min)
    return added.repeat_interleave(kv_heads, 0)[:, None]


class KVCache:
    """Keys and values of the tokens seen so far, in memory taken once.

    ``keys[layer]`` and ``values[layer]`` are [B, capacity, kv_heads, D]. All rows are filled to the same
    ``length``; rows with shorter prompts are padded on the left, ``starts[b]`` (int64 [B], or None for all
    zero) naming row b's first real column.

    On a CPU they are in fp32, whatever the model is in (what is read at each token is then read by fp32 products, and
    half precision costs as much in conversions as it saves in memory), and they lie as ``OneTokenOnCpu`` reads them:
    [B, kv_heads, D, capacity] and [B, kv_heads, capacity, D].
    """

    def __init__(
        self,
        shape: tuple[int, int, int, int],
        num_layers: int,
        dtype: torch.dtype,
        device: torch.device,
        starts: Tensor | None = None,
    ) -> None:
        self.starts, self.length, self.capacity = starts, 0, shape[1]
        self.hidden: Tensor | None = None  # on a CPU: what OneTokenOnCpu adds to the scores of all columns
        if device.type == "cpu":
            self.hidden = None if starts is None else _hidden(starts, self.capacity, kv_heads=shape[2])
            layers = [_for_products(shape) for _ in range(num_layers)]
            self.keys, self.values = [keys for keys, _ in layers], [values for _, values in layers]
        else:
            self.keys = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(num_layers)]
            self.values = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(num_layers)]

    def positions(self, count: int) -> Tensor:
        """Position ids [B or 1, count] of the next ``count`` columns; padding counts as position 0."""
        columns = torch.arange(self.length, self.length + count, device=self.keys[0].device)[None]
        return columns if self.starts is None else (columns - self.starts[:, None]).clamp_(min=0)

    def plan(self, count: int) -> AttentionPlan:
        """How the next ``count`` tokens attend to everything before them and to themselves."""
        if self.length + count > self.capacity:
            raise ValueError(f"the cache holds {self.capacity} tokens, {self.length + count} are needed")
        if self.starts is None and self.length == 0:
            return Causal()
        if count == 1 and self.keys[0].device.type == "cpu":
            return OneTokenOnCpu(None if self.hidden is None else self.hidden[..., : self.length + 1])
        if count == 1 and self.starts is None:
            return OneToken(None)
        queries = torch.arange(self.length, self.length + count, device=self.keys[0].device)  # [T]
        keys = torch.arange(self.length + count, device=self.keys[0].device)  # [S]
        mask = (keys <= queries[:, None])[None]  # [1, T, S]
        if self.starts is not None:
            # A padding column must see something (itself), or its softmax is 0/0.
            mask = mask & ((keys >= self.starts[:, None, None]) | (keys == queries[:, None]))  # [B, T, S]
        return OneToken(mask[:, None]) if count == 1 else DenseMask(mask[:, None])

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store [B, T, kv_heads, D] after column ``length``; returns all columns. ``advance`` moves ``length``."""
        end = self.length + k.shape[1]
        self.keys[layer][:, self.length : end] = k
        self.values[layer][:, self.length : end] = v
        if self.length == 0:
            return k, v
        return self.keys[layer][:, :end], self.values[layer][:, :end]

    def advance(self, count: int) -> None:
        """All layers have stored ``count`` more columns."""
        self.length += count

    def keep(self, rows: list[int]) -> None:
        """Only these rows (ascending) go on, in this order; the memory stays taken."""
        for stored in (*self.keys, *self.values):
            stored[: len(rows)] = stored[rows]
        self.keys = [keys[: len(rows)] for keys in self.keys]
        self.values = [values[: len(rows)] for values in self.values]
        if self.starts is not None:
            self.starts = self.starts[rows]
        if self.hidden is not None:
            by_row = self.hidden.unflatten(0, (-1, self.keys[0].shape[2]))  # [B, kv_heads, 1, capacity]
            self.hidden = by_row[rows].flatten(0, 1)
