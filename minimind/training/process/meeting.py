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
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from minimind.base.launcher import rendezvous
from minimind.training.process.world import several_hosts

if TYPE_CHECKING:
    from torch._C._distributed_c10d import TCPStore

NAMED = 8  # ranks that a message names
PERIOD = 0.2  # seconds from look to look
SETTLE = 1.0  # seconds for the others to read what rank 0 has found, before it takes the store with it
VERDICT = "minimind/absent"  # the ranks that have not come
ADVICE = "start the same command on every host, or give them longer: --set heartbeat={start_limit: 600}"


class PeerLost(Exception):
    """Another host is not there; what to say of it. Exit code 1."""


def meet(limit: float) -> TCPStore | None:
    """Wait until all ranks are here, ``limit`` seconds at most; None on one host, where the launcher starts them all.

    Raises PeerLost if one does not come, and UserError where the port is another's.
    """
    if not several_hosts():
        return None
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    place = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    serves = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    if not serves:
        _find(place, limit)
    store = _open(place, ranks, serves, timedelta(seconds=2 * limit))
    store.set(_key(rank), socket.gethostname())
    if rank == 0:
        store.set(VERDICT, json.dumps(_wait_for_all(store, ranks, limit)))
    try:
        absent = json.loads(store.get(VERDICT))
    except RuntimeError as error:  # torch's: the connection has gone, or never a word
        raise PeerLost(f"rank 0 at {place[0]}:{place[1]} has ended before all had come") from error
    if absent:
        time.sleep(SETTLE if rank == 0 else 0.0)
        raise PeerLost(_absent(absent, limit))
    return store


def _find(place: tuple[str, int], limit: float) -> None:
    """Until somebody listens there; torch's own wait takes up to twice the limit and writes C++ stacks."""
    end, why = time.monotonic() + limit, ""
    while (left := end - time.monotonic()) > 0:
        try:
            socket.create_connection(place, timeout=left).close()
            return
        except OSError as error:
            why = error.strerror or str(error)
            time.sleep(min(PERIOD, max(0.0, end - time.monotonic())))
    host, port = place
    raise PeerLost(f"rank 0 did not answer at {host}:{port} within {limit:.0f} s ({why}): {ADVICE}")


def _open(place: tuple[str, int], ranks: int, serves: bool, timeout: timedelta) -> TCPStore:
    from torch._C._distributed_c10d import TCPStore

    with rendezvous():
        return TCPStore(*place, ranks, serves, timeout, wait_for_workers=False, multi_tenant=True)


def _wait_for_all(store: TCPStore, ranks: int, limit: float) -> list[int]:
    """The ranks that are not here when all are, or at the limit. Rank 0 only, and looking: waits that fail are loud."""
    absent, end = list(range(ranks)), time.monotonic() + limit
    while absent := [rank for rank in absent if not store.check([_key(rank)])]:
        if time.monotonic() > end:
            break
        time.sleep(PERIOD)
    return absent


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
    return f"{', '.join(named)}{more} did not start within {limit:.0f} s: {ADVICE}"
