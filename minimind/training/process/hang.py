"""What a rank that ends because of a hang leaves behind: the stacks of its threads, and how to go on.

Made to work while other threads are stuck: past Python's buffers and their locks, and without reading source files.
"""

from __future__ import annotations

import faulthandler
import os
import shlex
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

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


def go_on(run_dir: Path) -> str:
    """The command that goes on from the last checkpoint."""
    if pointed(run_dir / LATEST) is None:
        return "there is no checkpoint yet: start the run again"
    return f"go on with: {line_to_resume(sys.argv, os.environ.get('WORLD_SIZE', '1'))}"


def line_to_resume(argv: Sequence[str], ranks: str) -> str:
    """What a person types to resume the run that a rank with this command line belongs to.

    ``ranks`` of one machine; over several the launcher's own options are the person's.
    """
    words = [word for word in argv if not word.startswith(("--local_rank", "--resume="))]
    if "--resume" in words:
        at = words.index("--resume")
        has_value = at + 1 < len(words) and not words[at + 1].startswith("-")
        del words[at : at + 1 + has_value]
    launcher = ["deepspeed", *(["--num_gpus", ranks] if ranks != "1" else [])]
    return shlex.join([*launcher, *words, "--resume"])


def say(line: str) -> None:
    """Past Python's buffers, whose lock a hung thread may hold."""
    os.write(2, f"{line}\n".encode())
