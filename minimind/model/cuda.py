"""Attention over packed documents on a GPU, without a mask of the size T x T.

- ``Varlen``: FlashAttention-2 over documents one after the other (https://arxiv.org/abs/2307.08691; torch 2.12's
  ``torch.nn.attention.varlen``), for eager half precision from Ampere on. It computes nothing across documents. Finding
  where they begin waits once a forward for the device.
- ``Flex``: FlexAttention with a block mask (https://arxiv.org/abs/2412.05496), inside a compiled model. Blocks of 128
  that no document crosses are skipped, all shapes are static, and nothing waits.

Why not the dense mask: with a mask the flash kernel refuses, the memory-efficient one refuses fewer key heads than
query heads, and torch then silently takes the form that holds all scores
(https://github.com/Comfy-Org/ComfyUI/pull/15135, measured on torch 2.9).

Known weakness: no GPU was at hand. The logic is tested on a CPU with the kernels' own shape rules
(tests/model/test_cuda.py), the kernels by tests/gpu and benchmarks/gpu.py where there is one.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

AMPERE = (8, 0)  # compute capability that FlashAttention-2 needs
VARLEN_HEADS = range(8, 257, 8)  # sizes of a head that FlashAttention-2 takes
SMALLEST_FLEX_HEAD = 16  # FlexAttention's Triton kernel multiplies tiles of at least 16


@dataclass(frozen=True)
class Varlen:
    """Documents of all rows, one after the other: the i-th is [offsets[i], offsets[i + 1]) of B * T tokens.

    ``offsets`` int32 [documents + 1], on the device. ``longest``: no document is longer.
    """

    offsets: Tensor
    longest: int
    kernel: Callable[..., Any]

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """[B, T, heads, D] and [B, T, kv_heads, D] -> [B, T, heads, D]."""
        # All rows as one long row: documents never cross a row's end, so cutting it by document is enough.
        flat = (x.flatten(0, 1) for x in (q, k, v))
        ends = (self.offsets, self.offsets, self.longest, self.longest)
        out: Tensor = self.kernel(*flat, *ends, window_size=(-1, 0), enable_gqa=True)  # (-1, 0): causal
        return out.view(q.shape)


@dataclass(frozen=True)
class Flex:
    """FlexAttention with a block mask: skips whole blocks between documents."""

    block_mask: Any
    kernel: Callable[..., Any]

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        heads_first = (x.transpose(1, 2) for x in (q, k, v))
        grouped = q.shape[2] != k.shape[2]
        out: Tensor = self.kernel(*heads_first, block_mask=self.block_mask, enable_gqa=grouped)
        return out.transpose(1, 2)


@functools.cache
def varlen_kernel() -> Callable[..., Any] | None:
    """torch's ``varlen_attn``; None before torch 2.12: what 2.10 has knows no fewer key heads."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    known = inspect.signature(varlen_attn).parameters
    return varlen_attn if {"window_size", "enable_gqa"} <= known.keys() else None


def varlen_runs(device: torch.device, dtype: torch.dtype, head_dim: int) -> bool:
    """Whether ``Varlen`` can run there."""
    if device.type != "cuda" or torch.version.hip or dtype not in (torch.float16, torch.bfloat16):
        return False
    fits = head_dim in VARLEN_HEADS and varlen_kernel() is not None
    return fits and torch.cuda.get_device_capability(device) >= AMPERE


def varlen_plan(offsets: Tensor, longest: int) -> Varlen:
    """``offsets`` int64 [documents + 1], as ``attention.run_offsets`` finds them."""
    kernel = varlen_kernel()
    assert kernel is not None  # varlen_runs
    return Varlen(offsets.int(), longest, kernel)


def document_mask_mod(document_ids: Tensor) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """``attention.document_mask``'s rule in FlexAttention's form."""

    def visible(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query >= key) & (document_ids[row, query] == document_ids[row, key])

    return visible


def flex_runs(device: torch.device, head_dim: int) -> bool:
    """Whether ``Flex`` can train there: torch has no backward pass of it for a CPU."""
    return device.type == "cuda" and head_dim >= SMALLEST_FLEX_HEAD


@functools.cache
def _compiled_flex() -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention)


def flex_plan(document_ids: Tensor) -> Flex:
    """FlexAttention; compiled on CUDA (uncompiled it would hold all scores), plain elsewhere."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    batch, length = document_ids.shape
    device = document_ids.device
    mask = create_block_mask(document_mask_mod(document_ids), batch, None, length, length, device=str(device))
    by_itself = device.type == "cuda" and not torch.compiler.is_compiling()
    kernel: Any = _compiled_flex() if by_itself else flex_attention
    return Flex(mask, kernel)
