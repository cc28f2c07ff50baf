"""The time that somebody who waits has seen pass; what it slept through is not held against anybody.

It sleeps ``period`` seconds at a time, and a sleep that took much longer (SIGSTOP and SIGCONT of the job, a debugger
that stops the process, a virtual machine that was paused) counts as two periods. A laptop's suspend is not even seen:
``time.monotonic`` is CLOCK_MONOTONIC, which stands still meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable


class Attention:
    """Looks at a clock about every ``period`` seconds; what is beyond two periods was not attended."""

    def __init__(self, period: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._clock, self._last = 2 * period, clock, clock()

    def passed(self) -> float:
        """Seconds since the last look."""
        last, self._last = self._last, self._clock()
        return min(self._last - last, self._most)
