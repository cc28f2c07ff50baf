"""Finding and running the `deepspeed` launcher that belongs to this Python.

Known weakness: `free_port` returns a port that was free a moment ago; another process can take it before the
launcher does. The run then ends at once with the line of `rendezvous`, which is better than what happens with the
launcher's fixed default of 29500: two runs on one machine always collide there.
"""

from __future__ import annotations

import contextlib
import os
import random
import shlex
import socket
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from minimind.base.errors import UserError


def free_port() -> int:
    """A TCP port on the loopback address that nobody has now, below those that systems give to outgoing connections
    (Linux: from 32768), of which one could take it before it is used. The choice is no function of a run's seed."""
    for port in random.SystemRandom().sample(range(20000, 32000), 1000):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise UserError("no free TCP port between 20000 and 32000 on this machine")


def port_problem(port: int) -> str | None:
    """Why rank 0 could not listen on ``port`` for the others; None if it can."""
    if not 0 < port < 1 << 16:
        return f"port {port} is none: they go from 1 to 65535"
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as torch does: a port just left is free
        try:
            probe.bind(("", port))
            probe.listen()
        except PermissionError:
            return f"port {port} needs privileges: take one above 1023"
        except OSError:
            return taken(port)
    return None


def taken(port: int | str) -> str:
    """What to say of a port that another process listens on."""
    return f"port {port} is in use by another process (another run?): give another --master_port before the script"


@contextlib.contextmanager
def rendezvous() -> Iterator[None]:
    """The ranks' first meeting, at MASTER_PORT; raises UserError if that port was taken meanwhile.

    The other ranks may then have met a stranger: their error is rank 0's, which says it.
    """
    try:
        yield
    except RuntimeError as error:
        address, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
        if "EADDRINUSE" in str(error):
            raise UserError(taken(port)) from error
        if type(error).__name__ == "DistNetworkError":
            first = str(error).partition("\n")[0]
            raise UserError(f"the ranks could not meet at {address}:{port}: {first}") from error
        raise


def find_launcher() -> Path:
    """The `deepspeed` script beside this interpreter; the first on PATH may belong to another environment.

    Raises UserError when there is none.
    """
    launcher = Path(sys.executable).parent / "deepspeed"
    if not launcher.exists():
        raise UserError(f"no deepspeed launcher at {launcher}: run `make`, or pip install deepspeed there")
    return launcher


def deepspeed_command(script: Path, arguments: Sequence[str] = (), num_processes: int | None = None) -> list[str]:
    """The command line that runs `script` under this environment's launcher on a free port.

    Launcher flags stand before the script: after it they would be the script's own.
    ``num_processes`` None leaves the choice to the launcher: all GPUs, or one process on a CPU.
    Raises UserError when the launcher or the script is missing.
    """
    launcher = find_launcher()
    if not script.is_file():
        raise UserError(f"no launch script at {script}: this installation is incomplete, install it again")
    count = [] if num_processes is None else ["--num_gpus", str(num_processes)]
    # `python launcher`, because a venv that was moved leaves a dead interpreter in the launcher's first line.
    # --quiet: errors only, not the launcher's dozen lines about its own arguments.
    flags = ["--quiet", "--master_port", str(free_port()), *count]
    return [sys.executable, str(launcher), *flags, str(script), *arguments]


def printable(command: Sequence[str]) -> str:
    """The command as a person would type it: `deepspeed ...` instead of two absolute paths, quoted for a shell."""
    words = list(command)
    if len(words) > 1 and Path(words[1]).name == "deepspeed":
        words = ["deepspeed", *words[2:]]
    return shlex.join(words)
