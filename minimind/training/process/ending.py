"""How a training process ends: the exit code of its work, and one line where there is something to say.

Exit codes: 0 finished or stopped as asked, 1 the run failed, 2 used wrongly.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import NoReturn

from minimind.base.display import complain
from minimind.base.errors import UserError
from minimind.training.process.meeting import PeerLost
from minimind.training.process.signals import StoppedEarly, StopRequest, say_stopped
from minimind.training.process.world import speaks

WORD = 30.0  # seconds that another rank waits for the first to say what is wrong; it is ended long before


def exit_with(work: Callable[[], int], debug: bool, stop: StopRequest) -> NoReturn:
    """Exit with ``work``'s code; a UserError is one line from each host's first rank (``debug``: a traceback) and
    code 2.

    Asked to stop before the first step is code 0, also where a rank learns of it by losing another one.
    """
    try:
        code = work()
    except UserError as error:
        _complain_once(error, debug)
        code = 2
    except PeerLost as lost:
        _complain_once(lost, debug)
        code = 1
    except StoppedEarly as stopped:
        say_stopped(str(stopped))
        code = 0
    except Exception as error:
        if stop.hung:  # a lost rank is part of the hang that has been said
            threading.Event().wait()
        if not stop.ended_early(error):
            raise
        say_stopped(stop.name)
        code = 0
    sys.stdout.flush()
    sys.exit(code)


def _complain_once(error: UserError | PeerLost, debug: bool) -> None:
    """One line a host; with ``debug`` every rank's traceback. To be called where the error is being handled."""
    if debug:
        complain(traceback.format_exc().rstrip())
    elif speaks():
        complain(f"error: {error}")
    else:
        _let_the_first_rank_speak()


def _let_the_first_rank_speak() -> None:
    """launch.py ends every rank once one has ended; the first, which meets the same error, has the line to print."""
    with contextlib.suppress(StoppedEarly):
        time.sleep(WORD)
