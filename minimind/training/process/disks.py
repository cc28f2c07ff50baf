"""Which ranks see the same directory: found out by a file that one leaves there and the others look for.

Paths say nothing: ``/home/me/runs`` may be one disk for all hosts, or a disk of each. Known before the first step, it
decides where a checkpoint's files go (checkpoint/writer.py) and where they come from (checkpoint/nearby.py).
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from minimind.base.errors import UserError
from minimind.base.files import passing, read_inside
from minimind.base.findings import Finding


class Gathers(Protocol):
    """What is needed of ``ranks.Control``, or of the meeting before there is one."""

    rank: int
    world_size: int

    def gather(self, value: Any) -> list[Any]: ...


@dataclass(frozen=True)
class Disks:
    """``keepers``: for each rank the first one whose files it sees, and can add to: 0 for all where the disk is shared.
    ``hosts``: by rank, for messages."""

    keepers: Sequence[int]
    hosts: Sequence[str]

    @classmethod
    def one(cls, ranks: int) -> Disks:
        """All ranks see the same."""
        return cls([0] * ranks, [""] * ranks)

    @property
    def apart(self) -> list[int]:
        """The ranks that do not see the first rank's files."""
        return [rank for rank, keeper in enumerate(self.keepers) if keeper]


_Token = tuple[str, bytes]  # a file's name, and what it holds


def find_disks(control: Gathers, directory: Path) -> Disks:
    """Who sees ``directory`` as the first rank does, and who sees it as whom; all ranks call it.

    Raises UserError where the first rank can't write there.
    """
    if control.world_size == 1:
        return Disks.one(1)
    made = not directory.exists()
    with contextlib.ExitStack() as stack:
        # On NFS a host may remember for half a minute that there was no such directory; asked to make it, it learns.
        with contextlib.suppress(OSError):
            directory.mkdir(parents=True, exist_ok=True)
        (first, *_) = control.gather(_leave(stack, directory) if control.rank == 0 else None)
        if first is None:
            raise UserError(f"{directory}: the first rank can't write there; give another --output-dir")
        seen = _sees(directory, first)
        together = all(control.gather(seen))
        own = None if together or seen else _leave(stack, directory)
        tokens = [] if together else control.gather(own)
        others = (r for r, token in enumerate(tokens) if r == control.rank or (token and _sees(directory, token)))
        found = control.gather((0 if seen else next(others), socket.gethostname()))
    if made and not seen:
        with contextlib.suppress(OSError):  # holds something by now, or another rank was here first
            directory.rmdir()
    return Disks(*zip(*found, strict=True))


def _leave(stack: contextlib.ExitStack, directory: Path) -> _Token | None:
    """A file that stays there while ``stack`` is open; None if there can be none."""
    content = secrets.token_hex(16).encode()
    try:
        return stack.enter_context(passing(directory, content)), content
    except OSError:
        return None


def _sees(directory: Path, token: _Token) -> bool:
    """Whether that file is here, in a directory to which this process can write."""
    name, content = token
    with contextlib.suppress(OSError):
        return read_inside(directory, name) == content and os.access(directory, os.W_OK | os.X_OK)
    return False


def separate(disks: Disks, directory: Path) -> list[Finding]:
    """That some hosts do not share ``directory``, and what follows."""
    if not disks.apart:
        return []
    hosts = list(dict.fromkeys(disks.hosts[rank] for rank in disks.apart))
    names = ", ".join(hosts[:5]) + (f" and {len(hosts) - 5} more" if len(hosts) > 5 else "")
    return [
        Finding(
            code="disks-separate",
            message=f"{names} and {disks.hosts[0]} share no {directory}: at each save the files of "
            f"{len(disks.apart)} ranks are sent to {disks.hosts[0]}, where the checkpoints are complete",
            advice=f"to spare that, give an --output-dir on a disk that all hosts share; keep {disks.hosts[0]} first "
            "in the hostfile: --resume looks there",
            values={"ranks": float(len(disks.apart))},
        )
    ]
