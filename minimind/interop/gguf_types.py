"""How each weight of a GGUF file is stored: f32, f16, bf16, or in blocks of few bits (``q8_0``, ``q4_k_m``).

Contract: the types are those that llama.cpp's own `llama-quantize` gives (llama-quant.cpp, `llama_tensor_get_type`):
Q8_0 for every matrix; of Q4_K_M Q4_K, and Q6_K for the output (or the embedding that serves as it) and for attn_v and
ffn_down of the layers that matter more. Rows that are no multiple of 256 get Q5_0 instead of Q4_K and Q8_0 instead of
Q6_K, rows that are no multiple of 32 f16; vectors stay f32. The gguf package makes blocks of Q8_0 and Q5_0; it has none
of Q4_K and Q6_K, so those are made by ggml itself, the C function in the xllamacpp package.
"""

from __future__ import annotations

import ctypes
import importlib.util
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from minimind.base.defaults import GgufDtype
from minimind.base.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

FILE_TYPES: dict[GgufDtype, str] = {
    "f32": "ALL_F32",
    "f16": "MOSTLY_F16",
    "bf16": "MOSTLY_BF16",
    "q8_0": "MOSTLY_Q8_0",
    "q4_k_m": "MOSTLY_Q4_K_M",
}
PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_BLOCKS = {"Q8_0": 32, "Q5_0": 32, "Q4_K": 256, "Q6_K": 256}  # weights of a row that share a scale
_INSTEAD = {"Q4_K": "Q5_0", "Q6_K": "Q8_0"}
_OF_LAYER = re.compile(r"blk\.(\d+)\.(?:attn_v|ffn_down)\.weight")


def type_of(name: str, shape: tuple[int, ...], dtype: GgufDtype, layers: int, tied: bool) -> str:
    """The ggml type of the tensor ``name`` (GGUF's) in a file of ``dtype``."""
    if len(shape) < 2:
        return "F32"
    if dtype == "q8_0":
        wanted = "Q8_0"
    elif dtype == "q4_k_m":
        wanted = "Q6_K" if _matters(name, layers, tied) else "Q4_K"
    else:
        return dtype.upper()
    for kind in (wanted, _INSTEAD.get(wanted, wanted)):
        if shape[-1] % _BLOCKS[kind] == 0:
            return kind
    return "F16"


def _matters(name: str, layers: int, tied: bool) -> bool:
    """`use_more_bits` of llama-quant.cpp for layers: the first and last eighth, and every third between."""
    if name == ("token_embd.weight" if tied else "output.weight"):
        return True
    found = _OF_LAYER.fullmatch(name)
    layer = int(found[1]) if found else -1
    return found is not None and (layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2)


def cast(name: str, weight: Tensor, dtype: torch.dtype) -> Tensor:
    """The weight in ``dtype``. Raises UserError for one that becomes infinite in it."""
    wanted = weight.detach().to(dtype).contiguous()
    if not wanted.isfinite().all() and weight.isfinite().all():
        raise UserError(f"{name}: a weight is too large for f16: take --dtype bf16 or f32")
    return wanted


def stored(name: str, weight: Tensor, kind: str) -> npt.NDArray[np.generic]:
    """The weight as its ggml type ``kind`` stores it: an array of that type, or its rows as bytes.

    Raises UserError for a weight too large for f16, and where a type can't be made here.
    """
    import gguf

    if kind in PLAIN:
        wanted = cast(name, weight, PLAIN[kind])
        return wanted.view(torch.uint8).numpy() if kind == "BF16" else wanted.numpy()  # numpy has no bf16
    values = weight.detach().float().contiguous().numpy()
    if kind in ("Q4_K", "Q6_K"):
        return _by_ggml(values, kind)
    made: npt.NDArray[np.generic] = gguf.quants.quantize(values, gguf.GGMLQuantizationType[kind])
    return made


def _by_ggml(values: npt.NDArray[np.float32], kind: str) -> npt.NDArray[np.generic]:
    """``values`` [rows, columns] through ``ggml_quantize_chunk`` (ggml.h), which checks no sizes."""
    import gguf
    import numpy as np

    number = gguf.GGMLQuantizationType[kind]
    block, size = gguf.GGML_QUANT_SIZES[number]
    rows, columns = values.shape
    made = np.empty((rows, columns // block * size), dtype=np.uint8)
    source = values.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
    whole = (0, rows, columns)  # from the first row on
    written = _ggml()(int(number), source, made.ctypes.data, *whole, None)
    if written != made.nbytes:
        raise UserError(f"ggml wrote {written:,} bytes of {kind} instead of {made.nbytes:,}: take --dtype q8_0")
    return made


@cache
def _ggml() -> Any:
    """ggml's function in the library of xllamacpp, which is opened but not started. Raises UserError without it."""
    found = importlib.util.find_spec("xllamacpp")
    libraries = [file for place in (found and found.submodule_search_locations) or [] for file in _libraries(place)]
    if not libraries:
        raise UserError(
            "--dtype q4_k_m needs llama.cpp's own quantization, which the gguf package has not: "
            "pip install xllamacpp (Linux, x86-64), or take --dtype q8_0"
        )
    try:
        function = ctypes.CDLL(str(libraries[0])).ggml_quantize_chunk
    except (OSError, AttributeError) as error:
        raise UserError(
            f"--dtype q4_k_m: this xllamacpp gives no quantization to others ({error}): take --dtype q8_0"
        ) from error
    long, pointer = ctypes.c_int64, ctypes.POINTER(ctypes.c_float)
    function.argtypes = [ctypes.c_int, pointer, ctypes.c_void_p, long, long, long, pointer]
    function.restype = ctypes.c_size_t
    return function


def _libraries(place: str) -> list[Path]:
    return sorted(Path(place).glob("xllamacpp*.so"))
