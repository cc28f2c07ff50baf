"""What a rank that ends because of a hang leaves behind: the stacks of its threads, and how to go on.

Made to work while other threads are stuck: past Python's buffers and their locks, and without reading source files.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import time
from pathlib import Path
from types import FrameType

from minimind.base.command_lines import NextLines
from minimind.base.defaults import LATEST
from minimind.training.checkpoint.directory import pointed

DEBUGGERS = ("bdb", "pdb", "pydevd", "_pydevd_bundle")


def debugged() -> bool:
    """Whether somebody looks at this process with a debugger: one from outside (ptrace), or Python's own."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        status = ""
    traced = any(line.split()[1] != "0" for line in status.splitlines() if line.startswith("TracerPid:"))
    return traced or any(map(_in_debugger, sys._current_frames().values()))


def _in_debugger(frame: FrameType | None) -> bool:
    while frame is not None:
        if str(frame.f_globals.get("__name__")).split(".")[0] in DEBUGGERS:
            return True
        frame = frame.f_back
    return False


def write_stacks(descriptor: int, head: str) -> None:
    """``head`` and the time, the threads' names, and where each stands. Reads no source file: the disk may hang."""
    names = ", ".join(f"{thread.ident or 0:#018x} {thread.name}" for thread in threading.enumerate())
    text = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {head}\nprocess {os.getpid()}, threads: {names}\n"
    os.write(descriptor, text.encode())
    faulthandler.dump_traceback(descriptor, all_threads=True)
    os.write(descriptor, b"\n")


def advice(run_dir: Path, lines: NextLines) -> str:
    """How to go on from the last checkpoint, if there is one."""
    if pointed(run_dir / LATEST) is None:
        return f"there is no checkpoint yet: start again {lines.again}"
    return f"go on {lines.go_on}"


def say(line: str) -> None:
    """Past Python's buffers, whose lock a hung thread may hold."""
    os.write(2, f"{line}\n".encode())
