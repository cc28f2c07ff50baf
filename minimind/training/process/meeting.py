"""The ranks of several hosts meet within a limit, before torch's own rendezvous, which waits ten minutes, names none.

They meet in the same store (MASTER_ADDR, MASTER_PORT): torch makes one a process for one port, so that what is opened
here is what ``init_process_group`` finds. Keep what `meet` returns until then.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
import socket
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from minimind.base.launcher import rendezvous
from minimind.training.process.world import several_hosts

if TYPE_CHECKING:
    from torch.distributed import TCPStore

NAMED = 8  # ranks that a message names


class PeerLost(Exception):
    """Another host is not there; what to say of it. Exit code 1."""


def meet(limit: float) -> TCPStore | None:
    """Wait until all ranks are here, ``limit`` seconds at most; None on one host, where the launcher starts them all.

    Raises PeerLost if one does not come, and UserError where the port is another's.
    """
    if not several_hosts():
        return None
    from torch.distributed import DistError, DistStoreError, TCPStore

    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    serves = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    timeout = timedelta(seconds=limit)
    try:
        with rendezvous():
            store = TCPStore(host, port, ranks, serves, timeout, wait_for_workers=False, multi_tenant=True)
    except Exception as error:
        if serves:
            raise
        raise PeerLost(_unanswered(host, port, limit)) from error
    try:
        store.set(_key(rank), socket.gethostname())
        store.wait([_key(number) for number in range(ranks)], timeout)
    except DistStoreError as error:
        absent = [number for number in range(ranks) if not store.check([_key(number)])]
        raise PeerLost(_absent(absent, limit)) from error
    except DistError as error:  # rank 0 has given up before
        raise PeerLost(f"rank 0 at {host}:{port} has ended before all had come: its host's screen says why") from error
    return store


def hosts_of_ranks(launcher: int) -> list[str]:
    """By rank, the hosts that DeepSpeed's launch.py, process ``launcher``, was told; empty below another starter."""
    try:
        words = Path(f"/proc/{launcher}/cmdline").read_text(errors="replace")
    except OSError:
        return []
    found = re.search(r"--world_info=([\w=-]+)", words)
    if found is None:
        return []
    try:
        slots = json.loads(base64.urlsafe_b64decode(found[1]))
        return [str(host) for host, numbers in slots.items() for _ in numbers]
    except (binascii.Error, ValueError, AttributeError, TypeError):
        return []


def _key(rank: int) -> str:
    return f"minimind/here/{rank}"


def _absent(ranks: Sequence[int], limit: float) -> str:
    hosts = hosts_of_ranks(os.getppid())
    named = [f"rank {rank}" + (f" on {hosts[rank]}" if rank < len(hosts) else "") for rank in ranks[:NAMED]]
    more = f" and {len(ranks) - NAMED} more" if len(ranks) > NAMED else ""
    return f"{', '.join(named)}{more} did not start within {limit:.0f} s: {_advice()}"


def _unanswered(host: str, port: int, limit: float) -> str:
    return f"rank 0 did not answer at {host}:{port} within {limit:.0f} s: {_advice()}"


def _advice() -> str:
    return "start the same command on every host, or give them longer: --set heartbeat={start_limit: 600}"
