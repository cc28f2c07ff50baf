"""Counting what ranks send: every collective that goes through torch.distributed, with its bytes and when.

Bytes are the payload: the full tensor of a reduction or a gather on one rank. What a ring moves over each link follows
from it: all-reduce 2 (n - 1) / n times the payload, reduce-scatter, all-gather and reduce (n - 1) / n times, up to
rounding. Weakness: functions that a caller took out of torch.distributed before ``counting`` began are seen only where
DeepSpeed keeps them (``all_gather_function`` and ``reduce_scatter_function`` of its backend).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist

# Which argument is the full tensor
FULL = {
    "all_reduce": ("tensor", 0),
    "reduce": ("tensor", 0),
    "broadcast": ("tensor", 0),
    "all_gather": ("tensor_list", 0),
    "all_gather_into_tensor": ("output_tensor", 0),
    "reduce_scatter_tensor": ("input", 1),
    "all_gather_single": ("output_tensor", 0),
    "reduce_scatter_single": ("input", 1),
    "reduce_scatter": ("input_list", 1),
    "all_to_all_single": ("input", 1),
}
RING_FACTOR = {"all_reduce": 2.0}  # times (n - 1) / n; the others 1.0


@dataclass(frozen=True)
class Call:
    """One collective: its name, the payload's bytes and dtype, and the phase in which it was made."""

    name: str
    bytes: int
    dtype: torch.dtype
    phase: str


@dataclass
class Traffic:
    """All calls of this rank; set ``phase`` to label those that follow."""

    calls: list[Call] = field(default_factory=list)
    phase: str = ""

    def bytes_in(self, phase: str) -> int:
        """Payload bytes of a phase."""
        return sum(call.bytes for call in self.calls if call.phase == phase)

    def by_name(self) -> dict[str, tuple[int, int]]:
        """Calls and payload bytes by collective."""
        found: dict[str, tuple[int, int]] = {}
        for call in self.calls:
            count, size = found.get(call.name, (0, 0))
            found[call.name] = (count + 1, size + call.bytes)
        return found

    def link_bytes(self, ranks: int) -> float:
        """Bytes that each rank sends if every collective is a ring."""
        return sum(ring_bytes(call.name, call.bytes, ranks) for call in self.calls)


def ring_bytes(name: str, payload: float, ranks: int) -> float:
    """Bytes that each rank sends in one ring collective."""
    return RING_FACTOR.get(name, 1.0) * payload * (ranks - 1) / ranks


@contextmanager
def counting() -> Iterator[Traffic]:
    """Count this process's collectives while the block runs."""
    traffic = Traffic()
    originals = {name: getattr(dist, name) for name in FULL if hasattr(dist, name)}
    for name, original in originals.items():
        setattr(dist, name, _counted(traffic, name, original))
    backend = _deepspeed_backend()
    kept = {name: getattr(backend, name) for name in ("all_gather_function", "reduce_scatter_function") if backend}
    for name, original in kept.items():
        setattr(backend, name, _counted(traffic, original.__name__, original))
    try:
        yield traffic
    finally:
        for name, original in originals.items():
            setattr(dist, name, original)
        for name, original in kept.items():
            setattr(backend, name, original)


def _deepspeed_backend() -> Any:
    from deepspeed import comm

    return comm.comm.cdb


def _counted(traffic: Traffic, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    keyword, position = FULL[name]

    @wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        given = kwargs[keyword] if keyword in kwargs else args[position]
        tensors = [given] if isinstance(given, torch.Tensor) else list(given)
        size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        traffic.calls.append(Call(name, size, tensors[0].dtype, traffic.phase))
        return original(*args, **kwargs)

    return call
