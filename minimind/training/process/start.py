"""The first and the last moment of a launch script.

First: whoever stops it, while torch and DeepSpeed are imported, is heard, too. Nothing heavy is imported here; that
takes eight seconds, in which a signal would kill the rank by Python's default, and a launcher that dies would leave an
orphan. And which rank this is, of how many, is taken from the starter's variables (world.py) before anything is read.

Last: the process ends with its exit code at once. Python would take everything apart first, process groups with running
threads among it, and a rank whose work was done has died of that, once in some hundred ends ("terminate called without
an active exception", exit code 250).
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
from typing import NoReturn

from minimind.base.display import complain, show_tracebacks
from minimind.base.errors import UserError
from minimind.training.process.orphans import end_with_launcher
from minimind.training.process.signals import StoppedEarly, StopRequest, ignore, say_stopped
from minimind.training.process.world import enter, speaks


def start(module: str, *arguments: str) -> NoReturn:
    """Import ``module`` and exit through its ``main(*arguments, stop=...)``."""
    show_tracebacks()
    stop, code = StopRequest(), 0
    try:
        stop.install().watch()
        end_with_launcher()
        enter_world()
        importlib.import_module(module).main(*arguments, stop=stop)
    except StoppedEarly as stopped:
        say_stopped(str(stopped))
    except UserError as error:  # of the import: a DeepSpeed that this trainer can't run with
        if speaks():
            complain(f"error: {error}")
        code = 2
    except SystemExit as ended:  # argparse's, or main's
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    finally:
        ignore()
    leave(code)


def enter_world() -> None:
    """Take this rank's place, or end with exit code 2: every process says so, since none knows to be the first."""
    try:
        enter()
    except UserError as error:
        complain(f"error: {error}")
        sys.exit(2)


def leave(code: int) -> NoReturn:
    """End the process with everything written and nothing taken apart."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)
