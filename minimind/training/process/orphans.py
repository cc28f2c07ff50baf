"""No orphans: a rank ends when the launcher above it dies.

DeepSpeed's launcher is two processes above the ranks: runner (``deepspeed``) -> launch.py -> ranks. SIGTERM kills the
runner and leaves the rest running; SIGKILL on launch.py leaves the ranks running while the runner reports success.
Here a rank gets a SIGTERM of its own in both cases, which is the request to stop of signals.py: it finishes the step,
writes a checkpoint and ends. Linux only; elsewhere nothing is watched. Not watched either: ``python
launch/pretrain.py`` (nohup must work).
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from pathlib import Path

PR_SET_PDEATHSIG = 1  # <sys/prctl.h>
PERIOD = 1.0  # seconds between looks at the runner


def end_with_launcher() -> None:
    """Ask to be stopped when launch.py or the runner above it dies. Call once, in the main thread."""
    launcher = os.getppid()
    if sys.platform == "linux" and "CROSS_RANK" in os.environ and not _below_launcher(launcher):
        os.kill(os.getpid(), signal.SIGTERM)  # only the launcher sets CROSS_RANK, and it is gone already
    if sys.platform != "linux" or "deepspeed.launcher.launch" not in words_of(launcher):
        return
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    runner = parent_of(launcher)
    if os.getppid() != launcher:  # it died before the line above took effect
        os.kill(os.getpid(), signal.SIGTERM)
    elif "deepspeed" in " ".join(words_of(runner)):  # over ssh the launcher's parent is a shell, which may go
        threading.Thread(target=_watch, args=(launcher, runner), name="parents", daemon=True).start()


def prctl(option: int, value: int) -> None:
    """Set one of this process's options (prctl(2)). Linux only."""
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def siblings() -> list[int]:
    """The other ranks that this rank's launcher has started on this machine; empty outside Linux."""
    if "RANK" not in os.environ or sys.platform != "linux":
        return []
    launcher, port = os.getppid(), f"MASTER_PORT={os.environ.get('MASTER_PORT')}".encode()
    return [pid for pid in children(launcher) if pid != os.getpid() and port in started_with(pid)]


def children(pid: int) -> list[int]:
    """The processes whose parent is ``pid``."""
    numbers = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    return [number for number in numbers if parent_of(number) == pid]


def started_with(pid: int) -> list[bytes]:
    """The NAME=value pairs that a process was started with; empty when it is gone or another user's."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _below_launcher(pid: int) -> bool:
    """Whether launch.py is among the ancestors, of which a wrapper script may be one."""
    while pid > 1:
        if "deepspeed.launcher.launch" in " ".join(words_of(pid)):
            return True
        pid = parent_of(pid)
    return False


def _watch(launcher: int, runner: int) -> None:
    while parent_of(launcher) == runner:
        time.sleep(PERIOD)
    os.kill(os.getpid(), signal.SIGTERM)


def words_of(pid: int) -> list[str]:
    """A process's command line; empty when it is gone, or the kernel's."""
    try:
        text = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="surrogateescape")
    except OSError:
        return []
    return text.removesuffix("\0").split("\0") if text else []


def parent_of(pid: int) -> int:
    """The parent's pid; 0 when the process is gone."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return 0
    return int(status.rpartition(")")[2].split()[1])
