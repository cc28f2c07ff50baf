"""How tests wait: for an event, an answer or a process's end, with one long limit.

``PATIENCE`` is against hangs only and never a bound on speed: the machine may be busy with twenty other things. It is
also the limit of a whole test (conftest.py). Imports nothing heavy: child processes and conftest.py use it.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable

PATIENCE = 1800.0  # seconds


def wait_for(condition: Callable[[], object], process: subprocess.Popen[str] | None = None) -> None:
    """Until it is true. Fails at once if ``process``, which is to make it true, has ended."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert process is None or process.poll() is None, f"ended with {process.returncode} before it happened"
        assert time.monotonic() < end, f"did not happen in {PATIENCE:.0f} s"
        time.sleep(0.02)
