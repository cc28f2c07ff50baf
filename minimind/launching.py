"""Finding and running the `deepspeed` launcher that belongs to this Python.

Known weakness: `free_port` returns a port that was free a moment ago; another process can take it before the
launcher does. The launcher then fails at once with EADDRINUSE, which is better than what happens with its
fixed default of 29500: two runs on one machine always collide there.
"""

from __future__ import annotations

import shlex
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from minimind.errors import UserError


def free_port() -> int:
    """A TCP port on the loopback address that nobody listens on now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def find_launcher() -> Path:
    """The `deepspeed` script beside this interpreter; the first on PATH may belong to another environment.

    Raises UserError when there is none.
    """
    launcher = Path(sys.executable).parent / "deepspeed"
    if not launcher.exists():
        raise UserError(f"no deepspeed launcher at {launcher}: run `make`, or pip install deepspeed there")
    return launcher


def deepspeed_command(
    script: Path, arguments: Sequence[str] = (), num_processes: int | None = None
) -> list[str]:
    """The command line that runs `script` under this environment's launcher on a free port.

    Launcher flags stand before the script: after it they would be the script's own.
    ``num_processes`` None leaves the choice to the launcher: all GPUs, or one process on a CPU.
    Raises UserError when the launcher or the script is missing.
    """
    launcher = find_launcher()
    if not script.is_file():
        raise UserError(f"no launch script at {script}: run this from a checkout of the repository")
    count = [] if num_processes is None else ["--num_gpus", str(num_processes)]
    # `python launcher`, because a venv that was moved leaves a dead interpreter in the launcher's first line.
    # --quiet: errors only, not the launcher's dozen lines about its own arguments.
    flags = ["--quiet", "--master_port", str(free_port()), *count]
    return [sys.executable, str(launcher), *flags, str(script), *arguments]


def printable(command: Sequence[str]) -> str:
    """The command as a person would type it: `deepspeed ...` instead of two absolute paths, quoted for a
    shell.
    """
    words = list(command)
    if len(words) > 1 and Path(words[1]).name == "deepspeed":
        words = ["deepspeed", *words[2:]]
    return shlex.join(words)
