"""This process: its memory and its waits for data, which health wants, and its garbage collector. No torch."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
STATUS = Path("/proc/self/status")


def anonymous_memory(status: Path = STATUS) -> int | None:
    """Bytes of anonymous resident memory; None outside Linux.

    Not all resident memory: pages of the memory-mapped store count there, and grow with the data that was read.
    """
    try:
        lines = status.read_text().splitlines()
    except OSError:
        return None
    sizes = [line.split()[1] for line in lines if line.startswith("RssAnon:")]
    return int(sizes[0]) * 1024 if sizes else None


def timed(
    items: Iterable[T], waits: dict[int, float], first: int, clock: Callable[[], float] = time.monotonic
) -> Iterator[T]:
    """``items``, writing into ``waits`` how many seconds each took to come; the keys count up from ``first``."""
    iterator = iter(items)
    while True:
        since = clock()
        try:
            item = next(iterator)
        except StopIteration:
            return
        waits[first] = clock() - since
        first += 1
        yield item


@contextmanager
def settled_garbage() -> Iterator[None]:
    """Keep the objects that exist now (torch's, DeepSpeed's, the model's) out of the collections to come.

    The collector goes on, so memory stays bounded; it only no longer walks through what lives as long as the run.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
