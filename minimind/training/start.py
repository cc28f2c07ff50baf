"""The first moments of a launch script: whoever stops it, while torch and DeepSpeed are imported, is heard, too.

Nothing heavy is imported here; that takes eight seconds, in which a signal would kill the rank by Python's default, and
a launcher that dies would leave an orphan.
"""

from __future__ import annotations

import importlib
import sys
from typing import NoReturn

from minimind.training.parents import end_with_launcher
from minimind.training.signals import StoppedEarly, StopRequest, ignore, say_stopped


def start(module: str, *arguments: str) -> NoReturn:
    """Import ``module`` and exit through its ``main(*arguments, stop=...)``."""
    stop = StopRequest()
    try:
        stop.install().watch()
        end_with_launcher()
        importlib.import_module(module).main(*arguments, stop=stop)
    except StoppedEarly as stopped:
        say_stopped(str(stopped))
    finally:
        ignore()
    sys.exit(0)
