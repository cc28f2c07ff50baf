"""Where a piece of work would make the host wait for a GPU: found on a CPU, by the operators that it calls.

A read of a value, an output whose size depends on values, and a copy to the host wait for all work that a GPU was
given; so does a copy to the device from memory that is not pinned. torch's own ``torch.cuda.set_sync_debug_mode`` tells
of them where there is a GPU (tests/gpu). Weakness: a CPU has one memory, so that what a value's copy is worth (a host's
number, or the device's) can't be told here: every read is listed, and whoever allows one says of what it is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

PACKAGES = ("minimind", "deepspeed", "bitsandbytes")  # whose code is a place; torch's own is called from one of them
VALUES = {"_local_scalar_dense", "equal"}  # what they return is on the host
SIZES = {"nonzero", "masked_select", "unique_consecutive", "unique_dim", "_unique", "_unique2", "bincount"}
INDEXED = {"index", "index_put", "index_put_", "_index_put_impl_"}  # by a boolean tensor: it is turned into numbers
TO_HOST = {"tolist", "numpy", "cpu", "__array__"}  # no operator, where the tensor is on the host already


@dataclass(frozen=True, order=True)
class Place:
    """``file`` from its package's name on."""

    file: str
    function: str
    operator: str


@dataclass(frozen=True)
class Read:
    """One wait, at ``line`` of its place."""

    place: Place
    line: int

    def __str__(self) -> str:
        return f"{self.place.file}:{self.line} {self.place.function}: {self.place.operator}"


class _Operators(TorchDispatchMode):
    """What a tensor's value decides, also where C++ or torch's Python asks for it."""

    def __init__(self, note: Callable[[str], None]) -> None:
        super().__init__()
        self._note = note

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        cut = name in INDEXED and _by_boolean(args[1])
        repeated = name == "repeat_interleave" and _sized_by_values(args, kwargs or {})
        if name in VALUES | SIZES or cut or repeated:
            self._note(name)
        return func(*args, **(kwargs or {}))


class _Calls(TorchFunctionMode):
    """Copies between host and device: on a CPU they are no operators."""

    def __init__(self, note: Callable[[str], None]) -> None:
        super().__init__()
        self._note = note

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in TO_HOST or (name == "to" and _waits(args, given)):
            self._note(name)
        elif func in (torch.tensor, torch.as_tensor) and given.get("device") is not None:
            self._note(name)  # from a list in memory that is not pinned
        return func(*args, **given)


def _by_boolean(indices: Any) -> bool:
    return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices)


def _sized_by_values(args: Any, kwargs: Mapping[str, Any]) -> bool:
    """``repeat_interleave`` with a tensor of repeats, unless it is told the size of its result."""
    return any(isinstance(x, torch.Tensor) for x in args[1:] or args) and kwargs.get("output_size") is None


def _waits(args: Any, kwargs: Mapping[str, Any]) -> bool:
    """Whether ``Tensor.to`` names a device, and does not say that it need not wait."""
    named = [*args[1:], kwargs.get("device")]
    device = any(isinstance(x, (str, torch.device)) for x in named)
    return device and not (kwargs.get("non_blocking") or any(x is True for x in args[1:2]))


def _place(frame: FrameType | None) -> tuple[str, str, int]:
    """File, function and line of the innermost call that one of ``PACKAGES`` makes."""
    while frame is not None:
        parts = frame.f_code.co_filename.split("/")
        for package in PACKAGES:
            if package in parts[:-1]:
                start = len(parts) - 1 - parts[::-1].index(package)
                return "/".join(parts[start:]), frame.f_code.co_qualname, frame.f_lineno
        frame = frame.f_back
    return "elsewhere", "", 0


@contextmanager
def host_reads() -> Iterator[list[Read]]:
    """The reads of the block, in order, of this thread."""
    found: list[Read] = []

    def note(operator: str) -> None:
        file, function, line = _place(sys._getframe(2))
        found.append(Read(Place(file, function, operator), line))

    with _Operators(note), _Calls(note):
        yield found
