"""A file on a hub as something to read records from, without a copy on the disk.

Contract: it is opened like a path and read like a file, from its start; as often as it is opened it is asked for again
(its first mebibyte tells the format, the second time all of it is read). The hub's index knows its SHA-256: that
is the name under which a store is cached, and what the bytes must come to at their end, or the reader raises. Memory:
a mebibyte.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Generator
from dataclasses import dataclass

from minimind.base.errors import UserError
from minimind.data.http import BLOCK, read_blocks


@dataclass(frozen=True)
class Remote:
    """``name``: what messages call it, with its suffix; ``size`` in bytes."""

    name: str
    url: str
    size: int
    sha256: str

    def open(self, mode: str = "rb") -> io.BufferedReader:
        """A reader of its bytes. It raises UserError at their end if they are not the index's."""
        assert mode == "rb"
        return io.BufferedReader(_Reader(self), BLOCK)


class _Reader(io.RawIOBase):
    def __init__(self, file: Remote) -> None:
        self._file, self._digest = file, hashlib.sha256()
        self._blocks: Generator[bytes, None, None] = read_blocks(file.url, 0, file.size)
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        if not self._ready:
            self._ready = memoryview(self._next())
        size = min(len(buffer), len(self._ready))
        buffer[:size], self._ready = self._ready[:size], self._ready[size:]
        return size

    def _next(self) -> bytes:
        block = next(self._blocks, b"")
        self._digest.update(block)
        if not block and (found := self._digest.hexdigest()) != self._file.sha256:
            expected = self._file.sha256
            raise UserError(
                f"{self._file.name}: what the hub sent is damaged (SHA-256 {found[:12]}, not {expected[:12]}); "
                "run it again"
            )
        return block

    def close(self) -> None:
        self._blocks.close()  # ends the connection
        super().close()
