"""What the CPU multiplies, asked of the operators that are about to be used.

A processor may have an instruction that its libraries don't use (``ONEDNN_MAX_CPU_ISA``, a build without oneDNN), and a
private operator of torch may be missing from another version. So each form is tried once on small matrices, and who
needs it takes the plain form where that fails. An operator that runs is not yet fast: bf16 on an AVX-512 processor
without AVX512-BF16 is emulated, which only the processor's flags and oneDNN's ceiling tell. Nothing is decided by a
clock: the form changes a result's last bits, and a resumed run must take the same.

Weakness: a ceiling that a program sets by oneDNN's own call is seen only where it makes the operator fail.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable

import torch
from torch import Tensor

from minimind.base.cpu import cpu_flags

# Values of ONEDNN_MAX_CPU_ISA below the first that multiplies bf16. oneDNN before 2.0 read the second name.
_CEILINGS_WITHOUT_BF16 = {"SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX2_VNNI_2", "AVX512_CORE", "AVX512_CORE_VNNI"}
_CEILING_VARIABLES = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
_FLAGS = {
    torch.bfloat16: {"avx512_bf16", "amx_bf16", "bf16"},  # "bf16": Arm's name for it
    torch.float16: {"amx_fp16"},  # AVX512-FP16 adds up in fp16
}
SIZE = 32  # of the matrices that an operator is tried on


def linear_pointwise(x: Tensor, weight: Tensor) -> Tensor:
    """oneDNN's product of ``x`` [..., I] and ``weight`` [O, I] transposed, plain or from ``reorder``."""
    output: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")
    return output


def reorder(weight: Tensor, rows: int) -> Tensor:
    """``weight`` [O, I] as oneDNN reads it fastest for ``rows`` rows; only for ``linear_pointwise``."""
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, rows)
    return packed


def _runs(operator: Callable[[Tensor], object], dtype: torch.dtype) -> bool:
    try:
        with torch.no_grad():
            operator(torch.ones(SIZE, SIZE, dtype=dtype, device="cpu"))
    except (AttributeError, RuntimeError):  # not in this torch, not in this build, not on this processor
        return False
    return True


def _asked_once(ask: Callable[[torch.dtype], bool]) -> Callable[[torch.dtype], bool]:
    """In a process; torch.compile takes the answer for a constant and does not look inside."""
    cached = functools.cache(ask)

    @functools.wraps(ask)
    def answer(dtype: torch.dtype) -> bool:
        return cached(dtype)

    torch.compiler.assume_constant_result(answer)
    return answer


@_asked_once
def onednn_multiplies(dtype: torch.dtype) -> bool:
    """Whether ``linear_pointwise`` runs in ``dtype``."""
    return _runs(lambda ones: linear_pointwise(ones, ones), dtype)


@_asked_once
def onednn_packs(dtype: torch.dtype) -> bool:
    """Whether ``linear_pointwise`` runs in ``dtype`` by a weight from ``reorder``."""
    return _runs(lambda ones: linear_pointwise(ones, reorder(ones, SIZE)), dtype)


@functools.cache
def fbgemm_holds_half() -> bool:
    """Whether FBGEMM multiplies fp32 rows by weights held in fp16."""
    if torch.backends.quantized.engine not in ("x86", "fbgemm"):
        return False
    quantized = torch.ops.quantized
    return _runs(
        lambda ones: quantized.linear_dynamic_fp16(ones, quantized.linear_prepack_fp16(ones, None)), torch.float32
    )


def _ceiling() -> str:
    """oneDNN's: the variable that it reads, upper case; "" where there is none."""
    return next((os.environ[name].upper() for name in _CEILING_VARIABLES if name in os.environ), "")


@_asked_once
def cpu_has_fast(dtype: torch.dtype) -> bool:
    """Whether matrices of ``dtype`` are multiplied natively here, sums in fp32 (fp32 always is)."""
    if dtype == torch.float32:
        return True
    has = not _FLAGS[dtype].isdisjoint(cpu_flags()) and _ceiling() not in _CEILINGS_WITHOUT_BF16
    return has and onednn_multiplies(dtype)


def cpu_runs_fp16() -> bool:
    """Whether DeepSpeed takes this CPU for one that computes in fp16, and it does so natively.

    DeepSpeed asks oneDNN, which also says yes to processors that only convert fp16 (AVX-NE-CONVERT).
    """
    try:
        supported = bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
    except (AttributeError, RuntimeError):
        return False
    return supported and not {"avx512_fp16", "amx_fp16", "fphp"}.isdisjoint(cpu_flags())
