"""Asked to stop: finish the step, write a checkpoint, end.

The first SIGINT, SIGTERM or SIGHUP only sets a flag, which the training step shares with the other ranks. Before the
first step there is nothing to finish: then it raises ``StoppedEarly``. A second Ctrl-C ends the process at once. Only
SIGINT counts as a second one: on Ctrl-C the terminal signals every rank, and DeepSpeed's launcher (launcher/launch.py
``sigkill_handler``) then sends each of them a SIGTERM of its own.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StoppedEarly(BaseException):
    """Asked to stop before the first step; not an Exception, so that nothing on the way catches it."""


class StopRequest:
    """Set by the first signal. Install once, in the main thread."""

    def __init__(self) -> None:
        self.requested = False
        self.training = False  # set by the loop: from then on a stop waits for the end of the step
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
        self.requested = True
        if not self.training:
            raise StoppedEarly(signal.Signals(number).name)
