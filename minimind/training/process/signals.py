"""Asked to stop: finish the step, write a checkpoint, end.

The first SIGINT, SIGTERM or SIGHUP only sets a flag, which the training step shares with the other ranks. Before the
first step there is nothing to finish: then it raises ``StoppedEarly``, after telling the other ranks of this machine,
which would otherwise wait in a collective for a rank that is gone. A second Ctrl-C ends the process at once. Only
SIGINT counts as a second one: on Ctrl-C the terminal signals every rank, and DeepSpeed's launcher (launcher/launch.py
``sigkill_handler``) then sends each of them a SIGTERM of its own.

Python runs a handler only between two bytecodes of the main thread, so not while that waits in a collective. `watch`
adds a thread that learns of a signal at once (``signal.set_wakeup_fd``).
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType

from minimind.base.display import complain
from minimind.training.process.orphans import siblings

HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
GRACE = 10.0  # seconds that a blocked main thread gets to come out before the first step


class StoppedEarly(BaseException):
    """Asked to stop before the first step; not an Exception, so that nothing on the way catches it."""


class StopRequest:
    """Set by the first signal. Install once, in the main thread."""

    def __init__(self) -> None:
        self.requested = False
        self.training = False  # from then on a stop waits for the end of the step
        self.hung = False  # a rank hangs: the watchdog ends this process, whatever its threads meet until then
        self.name = ""  # of the first signal
        self._interrupts = 0
        self._watching = False
        self._others: dict[int, Callable[[], None]] = {}

    def install(self) -> StopRequest:
        """Take over the three signals; returns itself."""
        take_over(self._on_signal)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)  # `minimind launch` blocks them until here
        return self

    def watch(self) -> StopRequest:
        """Act on signals even while the main thread is blocked; for a process that does nothing but train."""
        self._watching = True
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        threading.Thread(target=self._listen, args=(reader,), name="signals", daemon=True).start()
        return self

    def hear(self, number: int, act: Callable[[], None]) -> None:
        """Do ``act`` at a signal that is no stop, in the thread that `watch` has started; without one do nothing."""
        if self._watching:
            self._others[number] = act
            signal.signal(number, lambda *_: None)  # the default is death; the thread gets it from the pipe

    def begin(self, barrier: Callable[[], None]) -> None:
        """All ranks are about to train; raises StoppedEarly if one of them was asked to stop before this."""
        self.training = True
        try:
            barrier()
        except RuntimeError:  # gloo: another rank is gone
            if self.requested:
                raise StoppedEarly(self.name) from None
            raise

    def ended_early(self, error: Exception) -> bool:
        """Whether an error before the first step only says that another rank has stopped when asked to."""
        return self.requested and not self.training and isinstance(error, RuntimeError)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._interrupts += number == signal.SIGINT
        if self._interrupts > 1:
            os._exit(128 + signal.SIGINT)
        first, self.requested = not self.requested, True
        self.name = self.name or signal.Signals(number).name
        if first and not self.training:
            tell(siblings())
            raise StoppedEarly(self.name)

    def _listen(self, reader: int) -> None:
        interrupts = 0
        while received := os.read(reader, 64):
            interrupts += received.count(signal.SIGINT)
            if interrupts > 1:
                os._exit(128 + signal.SIGINT)
            for number in set(received) & set(self._others):
                self._others[number]()
            if not self.training and set(received) & set(HANDLED):
                threading.Thread(target=self._end_early, args=(received[0],), daemon=True).start()

    def _end_early(self, number: int) -> None:
        tell(siblings())
        time.sleep(GRACE)
        if not self.training:
            say_stopped(signal.Signals(number).name)
            os._exit(0)


def take_over(handler: Callable[[int, FrameType | None], None]) -> None:
    """Handle the three signals; not a SIGHUP that was ignored at the start, which is what nohup does."""
    for number in HANDLED:
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)


def ignore() -> None:
    """The process is ending: a late signal (a rank told it, too; launch.py does) may not change its exit code.

    Python puts the default action, which is death, back in its last moments, but leaves an ignored signal ignored.
    """
    for number in HANDLED:
        signal.signal(number, signal.SIG_IGN)


def tell(processes: list[int], number: int = signal.SIGTERM) -> None:
    """Ask these processes to stop, too."""
    for pid in processes:
        try:
            os.kill(pid, number)
        except ProcessLookupError:  # it has ended by itself
            continue


def say_stopped(name: str) -> None:
    """One line, from rank 0."""
    if os.environ.get("RANK", "0") == "0":
        complain(f"stopped by {name} before the first step: nothing was trained")
