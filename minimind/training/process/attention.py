"""The time that somebody who waits has seen pass: what a stopped process, a debugger or a paused machine slept is not
held against anybody.

``time.monotonic`` is CLOCK_MONOTONIC, which stands still while a laptop sleeps; a virtual machine's pause it may see.
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
