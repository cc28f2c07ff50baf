"""How a run is: going on, quiet, ended and how, killed, or not to be told from a copy of its directory.

Contract. A run that ended says so in its metrics.jsonl. Otherwise its lock tells whether it lives, on the machine that
it runs on and with file systems that have locks. Where the lock tells nothing (a copied directory), only the age of the
last line does, and the state says that it is a guess.
"""

from __future__ import annotations

import statistics
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from minimind.base.defaults import HANG
from minimind.base.files import is_directory
from minimind.commands.page.records import RunRecords
from minimind.training.process.run_lock import is_held
from minimind.training.record.file import FILE_NAME

ENDS = ("finished", "stopped", "failed", "early-stop")
CLOSING_SECONDS = 30.0  # a run that has ended holds its lock for a moment
QUIET_SECONDS = 120.0  # without a line, at the least, before a run counts as quiet
QUIET_TIMES = 20  # times the usual time between two lines


def state_of(run: RunRecords, held: bool | None, now: float | None = None) -> dict[str, Any]:
    """``{"code": ..., "seconds": ..., "age": ...}``: `code` is one of `ENDS` or another reason, with the length of all
    its sessions, or else

    running   the lock is held, lines come (starting: none of this start has come yet)
    quiet     the lock is held, and no line has come for long
    killed    nobody holds the lock: it ended without a word (hung: its watchdog ended it)
    elsewhere no lock to ask, the last line is recent
    stale     no lock to ask, and no line for long
    empty     no line at all, and nobody holds the lock

    ``age``: seconds since the last line.
    """
    age = age_of(run, time.time() if now is None else now)
    if run.end is not None and (not held or age is None or age < CLOSING_SECONDS):
        return {"code": run.end["reason"], "seconds": max(run.end["seconds"], run.elapsed), "age": age}
    if run.number == 0:
        return {"code": "starting" if held else "empty", "age": None}
    quiet = age is not None and age > quiet_after(run)
    if held is None:
        return {"code": "stale" if quiet else "elsewhere", "age": age}
    if held:
        return {"code": "starting" if run.end else "quiet" if quiet else "running", "age": age}
    return {"code": "hung" if _hung(run.directory) else "killed", "age": age}


def ask(run: RunRecords) -> dict[str, Any]:
    """The state now, its lock asked."""
    return state_of(run, is_held(run.directory))


def age_of(run: RunRecords, now: float) -> float | None:
    """Seconds since the last line; in older runs since the file was written."""
    written = run.times[-1] if run.times else _written(run.directory / FILE_NAME)
    return None if written is None else max(now - written, 0.0)


def quiet_after(run: RunRecords) -> float:
    """Seconds without a line after which a run counts as quiet. Lines of one interval come together."""
    gaps = [later - earlier for earlier, later in pairwise(run.times) if later - earlier > 0.05]
    return max(QUIET_SECONDS, QUIET_TIMES * statistics.median(gaps)) if gaps else QUIET_SECONDS * 5


def _written(path: Path) -> float | None:
    try:
        return path.lstat().st_mtime
    except OSError:
        return None


def _hung(directory: Path) -> bool:
    """Whether the watchdog left stacks at the run's end, not at an earlier one's."""
    hang, lines = _written(directory / HANG), _written(directory / FILE_NAME)
    return is_directory(directory / HANG) and hang is not None and lines is not None and hang >= lines - 1
