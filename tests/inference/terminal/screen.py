"""A program on a real pseudo terminal: keys go in, what a person would see comes out."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from tests.waiting import PATIENCE, wait_for

UP, CTRL_A, CTRL_D, ENTER = "\x1b[A", "\x01", "\x04", "\r"
# so that Ctrl-C is a signal, and heard: a shell has its jobs in the background ignore it, and so do their children
_CONTROLLING = (
    "import fcntl, signal, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
    "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
)


class Screen:
    """``code`` in a Python of its own, with this terminal as its own."""

    def __init__(self, code: str, arguments: Sequence[str] = (), environment: Mapping[str, str] | None = None) -> None:
        self._master, slave = pty.openpty()
        modes = termios.tcgetattr(slave)
        modes[3] |= termios.NOFLSH  # else Ctrl-C throws away what the program writes at the same moment
        termios.tcsetattr(slave, termios.TCSANOW, modes)
        self.text, self._read = "", 0
        self.process = subprocess.Popen(
            [sys.executable, "-c", _CONTROLLING + code, *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            env={**os.environ, "TERM": "xterm", **(environment or {})},
        )
        os.close(slave)

    def __enter__(self) -> Screen:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def answer(self, keys: str) -> None:
        """Type at the next prompt: before it a terminal handles keys by itself, and Ctrl-D is lost."""
        self.until("> ")
        self.type(keys)

    def until(self, text: str) -> str:
        """Wait until ``text`` has come after what was waited for last; everything up to its end."""
        end = time.monotonic() + PATIENCE
        while text not in self.text[self._read :]:
            assert time.monotonic() < end and self._more(end), f"{text!r} never came; there is: {self.text!r}"
        start, self._read = self._read, self.text.index(text, self._read) + len(text)
        return self.text[start : self._read]

    def until_long(self, count: int) -> None:
        """Wait for ``count`` characters after what was waited for last."""
        end = time.monotonic() + PATIENCE
        while len(self.text) - self._read < count:
            assert time.monotonic() < end and self._more(end), f"no more came than {self.text!r}"

    def interrupt(self) -> None:
        """Ctrl-C, once the program waits for a key: CPython forgets one that comes between the prompt and its wait."""
        wait_for(lambda: self._state() == "S")
        self.type("\x03")

    def _state(self) -> str:
        return Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0]

    def ended(self) -> int:
        """Wait for the program's end; its exit code."""
        end = time.monotonic() + PATIENCE
        while self._more(end):
            pass
        return self.process.wait(PATIENCE)

    def _more(self, end: float) -> bool:
        """Read what comes next; False once the program has closed the terminal."""
        if not select.select([self._master], [], [], max(0.0, end - time.monotonic()))[0]:
            return False
        try:
            part = os.read(self._master, 1 << 16)
        except OSError:  # Linux: no program has it open any more
            return False
        self.text += part.decode("utf-8", "replace")
        return bool(part)
