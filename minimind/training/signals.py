"""Asked to stop: finish the step, write a checkpoint, end.

The first SIGINT, SIGTERM or SIGHUP only sets a flag, which the training step shares with the other ranks. A second
Ctrl-C ends the process at once. Only SIGINT counts as a second one: on Ctrl-C the terminal signals every rank,
and DeepSpeed's launcher (launcher/launch.py ``sigkill_handler``) then sends each of them a SIGTERM of its own.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopRequest:
    """Set by the first signal. Install once, in the main thread."""

    def __init__(self) -> None:
        self.requested = False
        self.name = ""
        self._interrupts = 0

    def install(self) -> StopRequest:
        """Take over the three signals; returns itself."""
        for number in HANDLED:
            signal.signal(number, self._on_signal)
        return self

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._interrupts += number == signal.SIGINT
        if self._interrupts > 1:
            os._exit(128 + signal.SIGINT)
        self.requested, self.name = True, signal.Signals(number).name
