"""An NVIDIA card that is not here, for tracing and compiling: torch's CUDA build answers as if it were in the machine.

In a process of its own, before anything is traced: ``pretend(CARDS[86])``. From then on fake tensors may be on "cuda"
(https://pytorch.org/docs/stable/torch.compiler_fake_tensor.html), autograd runs on them, and Inductor hands its kernels
to Triton's compiler and to ptxas for that card, which need no driver. Nothing can be launched or allocated.

What it takes, all in Python: torch itself gives a CUDA build without a card a device guard that does nothing
(``_ensureCUDADeviceGuardSet``, which FakeTensorMode calls where it may not touch a device); one C++ method that
autograd asks is answered here (``_without_context``), and what dynamo and Inductor ask ``torch.cuda``; Triton is told
its target. Three things that only running needs are left out: loading a compiled kernel, the driver's count of its
registers, and folding constants on the device.
PyTorch's own cross-compilation (https://github.com/pytorch/pytorch/pull/171600) begins the same way, with fake tensors
of the target device, on a machine that has the card.

Weakness: scaled_dot_product_attention asks the driver in C++ which kernel fits. Here it is the memory-efficient one,
which is what a mask leads to on these cards.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Card:
    """What compilers ask of a card. ``shared``: bytes of shared memory that one block may have, at most; ``threads``:
    of one multiprocessor. From the compute capabilities in NVIDIA's CUDA C++ Programming Guide, and data sheets."""

    name: str
    capability: int  # 86 for 8.6
    processors: int
    threads: int
    shared: int
    memory: int

    @property
    def version(self) -> tuple[int, int]:
        return divmod(self.capability, 10)

    def properties(self) -> SimpleNamespace:
        """As ``torch.cuda.get_device_properties`` gives them."""
        major, minor = self.version
        return SimpleNamespace(
            name=self.name,
            major=major,
            minor=minor,
            multi_processor_count=self.processors,
            max_threads_per_multi_processor=self.threads,
            max_threads_per_block=1024,
            regs_per_multiprocessor=65536,
            warp_size=32,
            shared_memory_per_block=48 * 2**10,
            shared_memory_per_block_optin=self.shared,
            shared_memory_per_multiprocessor=self.shared + 2**10,
            total_memory=self.memory,
        )


CARDS = {
    card.capability: card
    for card in (
        Card("A100", 80, 108, 2048, 163 * 2**10, 80 * 2**30),
        Card("RTX 3090", 86, 82, 1536, 99 * 2**10, 24 * 2**30),
        Card("H200", 90, 132, 2048, 227 * 2**10, 141 * 10**9),
    )
}

_POINTER, _BEFORE, _ENTRIES = ctypes.sizeof(ctypes.c_void_p), 2, 128  # of a table: what precedes it, and enough of it


def pretend(card: Card) -> None:
    """Make this process's torch and Triton answer for ``card``. Raises RuntimeError without a CUDA build, or where a
    real card is."""
    if torch.version.cuda is None:
        raise RuntimeError(f"torch {torch.__version__} is no CUDA build")
    if torch.cuda.is_available():
        raise RuntimeError("there is a real card here: use it (benchmarks/gpu.py)")
    torch._C._ensureCUDADeviceGuardSet()
    _without_context()
    _answer_for(card)
    _compile_only(card)
    F.scaled_dot_product_attention = _efficient_attention


def _without_context() -> None:
    """Let torch's CUDA hooks say that no device has a context: autograd then asks no driver for its streams.

    ``CUDAHooks::hasPrimaryContext`` (aten/src/ATen/cuda/detail/CUDAHooks.cpp) raises without a card, and nothing in
    Python leads there. So the hooks get a copy of their table of virtual functions with another fifth entry: before it
    are two destructors, isBuilt and isAvailable (ATen/detail/AcceleratorHooksInterface.h), which are asked first.
    """
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    hooks_of = library._ZN2at6detail12getCUDAHooksEv
    hooks_of.restype = ctypes.c_void_p
    hooks = hooks_of()
    table = ctypes.c_void_p.from_address(hooks)
    assert table.value is not None
    entry = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p)
    functions = (ctypes.c_void_p * (_BEFORE + _ENTRIES)).from_buffer_copy(
        (ctypes.c_char * (_POINTER * (_BEFORE + _ENTRIES))).from_address(table.value - _BEFORE * _POINTER)
    )
    built, available = (entry(functions[_BEFORE + index])(hooks) for index in (2, 3))
    if (built, available) != (True, False):
        raise RuntimeError(f"torch {torch.__version__} has another table of CUDA hooks than 2.13")
    answer = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_int8)(lambda hooks, device: False)
    functions[_BEFORE + 4] = ctypes.cast(answer, ctypes.c_void_p).value
    for kept in (functions, answer):  # beyond Python's own end: torch points to them
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
    table.value = ctypes.addressof(functions) + _BEFORE * _POINTER


def _answer_for(card: Card) -> None:
    """torch.cuda's answers, and those of dynamo, which takes torch.cuda's functions when it is imported."""
    answers: dict[str, Callable[..., Any]] = {
        "is_available": lambda: True,
        "_lazy_init": lambda: None,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "_exchange_device": lambda device: 0,
        "_maybe_exchange_device": lambda device: 0,
        "exchange_device": lambda device: 0,
        "maybe_exchange_device": lambda device: 0,
        "get_device_properties": lambda device=None: card.properties(),
        "get_device_capability": lambda device=None: card.version,
        "get_device_name": lambda device=None: card.name,
        "is_bf16_supported": lambda including_emulation=True: True,
        "get_rng_state": lambda device="cuda": torch.zeros(16, dtype=torch.uint8),
        "set_rng_state": lambda state, device="cuda": None,
        "synchronize": lambda device=None: None,
    }
    from torch._dynamo.device_interface import CudaInterface
    from torch._subclasses.fake_tensor import FakeTensorMode

    for name, answer in answers.items():
        setattr(torch.cuda, name, answer)
        if hasattr(CudaInterface, name):
            setattr(CudaInterface, name, staticmethod(answer))
    FakeTensorMode.avoid_device_init = property(lambda _: True)  # there is none, whatever is_available says


def _compile_only(card: Card) -> None:
    """Kernels are compiled, and neither loaded nor tried out."""
    import torch._inductor.config as config
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner, triton_helpers
    from triton.runtime import driver

    config.compile_threads = 1
    config.force_disable_caches = True
    config.joint_graph_constant_folding = False  # it computes on the device
    driver.set_active(_Driver(card))
    triton_helpers.set_driver_to_gpu = lambda: None
    CachingAutotuner.precompile = lambda self, *_, **__: self._precompile_worker()  # and not _make_launchers


class _Driver:
    """Triton's, as far as compiling asks."""

    def __init__(self, card: Card) -> None:
        shared = {"max_shared_mem": card.shared, "multiprocessor_count": card.processors, "warpSize": 32}
        self.utils = SimpleNamespace(get_device_properties=lambda device: shared)
        self._card = card

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self._card.capability, 32)

    def get_current_device(self) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cuda", 0)


def _efficient_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """F.scaled_dot_product_attention where its memory-efficient kernel is chosen; a boolean mask becomes one that is
    added, as there."""
    assert not enable_gqa and not dropout_p, "the memory-efficient kernel has neither"
    bias = None
    if attn_mask is not None:
        bias = torch.zeros_like(attn_mask, dtype=q.dtype).masked_fill_(~attn_mask, -torch.inf)
        bias = bias.expand(*q.shape[:2], q.shape[2], k.shape[2])
    kernel = torch.ops.aten._scaled_dot_product_efficient_attention
    out: Tensor = kernel(q, k, v, bias, torch.is_grad_enabled(), dropout_p, is_causal, scale=scale)[0]
    return out
