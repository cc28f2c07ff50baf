"""The rank beside a pulse: whether its process lives, what it writes to its pulse, and how it is ended."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
from pathlib import Path
from typing import Any

from minimind.training.process.heart.beats import Word

END = 10.0  # seconds for a rank that was told to end


class Rank:
    """The process that a pulse beats for, through /proc and a pidfd."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.descriptor: int | None = None  # readable once it has ended
        with contextlib.suppress(AttributeError, OSError):  # no Linux, an old one, or already gone
            self.descriptor = os.pidfd_open(pid)

    def state(self) -> Word:
        """ALIVE, STOPPED or GONE."""
        if os.getppid() != self.pid:
            return Word.GONE
        try:
            state = Path(f"/proc/{self.pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
        except OSError:
            return Word.ALIVE  # no /proc: its parent's number says that it lives
        return {"T": Word.STOPPED, "Z": Word.GONE, "X": Word.GONE}.get(state, Word.ALIVE)

    def end(self) -> None:
        """It has been told to end: wake it if it is stopped, and kill it if it does not hear."""
        if self.state() is Word.GONE:
            return
        os.kill(self.pid, signal.SIGCONT)
        with selectors.DefaultSelector() as selector:
            if self.descriptor is not None:
                selector.register(self.descriptor, selectors.EVENT_READ)
            selector.select(END)
        if self.state() is not Word.GONE:
            os.kill(self.pid, signal.SIGKILL)


class Inbox:
    """What the rank writes: lines of JSON on a descriptor that is never waited for."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._rest = descriptor, b""
        self.closed = False
        os.set_blocking(descriptor, False)

    def read(self) -> list[dict[str, Any]]:
        """The lines that have come."""
        try:
            data = os.read(self._descriptor, 1 << 16)
        except BlockingIOError:
            return []
        self.closed = not data
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [json.loads(line) for line in lines]
