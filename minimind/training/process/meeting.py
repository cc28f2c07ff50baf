"""The ranks of several hosts meet within a limit, before torch's own rendezvous, which waits ten minutes, names none.

They meet in the same store (MASTER_ADDR, MASTER_PORT): torch makes one a process for one port, so that what is opened
here is what ``init_process_group`` finds. Keep what `meet` returns until then. What they must agree on before there are
process groups, they agree on in that store: the heartbeat begins there, and sees who is lost while torch and gloo
connect, which would wait for half an hour.
"""

from __future__ import annotations

import base64
import binascii
import itertools
import json
import os
import re
import socket
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minimind.base.errors import UserError
from minimind.base.launcher import rendezvous
from minimind.training.process.interfaces import choose_interfaces
from minimind.training.process.world import several_hosts

if TYPE_CHECKING:
    from torch._C._distributed_c10d import TCPStore

NAMED = 8  # ranks that a message names
PERIOD = 0.2  # seconds from look to look
SETTLE = 1.0  # seconds for the others to read what rank 0 has found, before it takes the store with it
REACH = 5.0  # seconds beyond the limit in which rank 0's answer comes, if it lives and can be reached
VERDICT = "absent"  # the ranks that have not come
MEETINGS = itertools.count()  # of this process, which may train several times: its store keeps what was agreed before
ADVICE = "start the same command on every host, or give them longer: --set heartbeat={start_limit: 600}"


class PeerLost(Exception):
    """Another host is not there; what to say of it. Exit code 1."""


class Meeting:
    """The ranks of several hosts in one store: small agreements, each a call of all ranks, of values that JSON has."""

    def __init__(self, store: TCPStore, rank: int, world_size: int, limit: float) -> None:
        """``limit``: seconds that one waits for the others."""
        self.rank, self.world_size = rank, world_size
        self._store, self._limit, self._count = store, limit, 0
        self._number = next(MEETINGS)  # the same on every rank

    def gather(self, value: Any) -> list[Any]:
        """Every rank's ``value``, by rank, on every rank: rank 0 puts them together. Raises PeerLost."""
        self._count += 1
        names = [f"{self._count}/{rank}" for rank in range(self.world_size)]
        self._set(names[self.rank], value)
        if self.rank == 0:
            keys = [self._key(name) for name in names]
            absent = _wait_for_all(self._store, keys, self._limit)
            self._set(f"{self._count}/all", None if absent else [json.loads(self._store.get(key)) for key in keys])
            if absent:
                time.sleep(SETTLE)
                raise PeerLost(f"{_named(absent)} has come and ended again, or can't be reached any more")
        values = self._from_rank_0(f"{self._count}/all")
        if values is None:
            raise PeerLost("another rank has ended before all had begun")
        return list(values)

    def from_first(self, value: Any) -> Any:
        """Rank 0's ``value``, on every rank. Raises PeerLost."""
        self._count += 1
        if self.rank == 0:
            self._set(str(self._count), value)
        return self._from_rank_0(str(self._count))

    def all_raise(self, error: str | None) -> None:
        """Raises UserError on all ranks with the first ``error`` that one of them has."""
        for said in self.gather(error):
            if said is not None:
                time.sleep(SETTLE if self.rank == 0 else 0.0)
                raise UserError(said)

    def absent(self) -> list[int]:
        """The ranks that have not come to rank 0 within the limit. Raises PeerLost."""
        self._set(f"here/{self.rank}", socket.gethostname())
        if self.rank == 0:
            here = [self._key(f"here/{rank}") for rank in range(self.world_size)]
            self._set(VERDICT, _wait_for_all(self._store, here, self._limit))
        return list(self._from_rank_0(VERDICT))

    def _key(self, name: str) -> str:
        """As torch does: an agent of torchrun keeps its store when it starts the ranks again."""
        return f"minimind/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{self._number}/{name}"

    def _set(self, name: str, value: Any) -> None:
        self._store.set(self._key(name), json.dumps(value))

    def _from_rank_0(self, name: str) -> Any:
        try:
            return json.loads(self._store.get(self._key(name)))
        except RuntimeError as error:  # torch's: the connection has gone, or never a word
            host, port = _place()
            raise PeerLost(f"rank 0 at {host}:{port} has ended, or can't be reached, before all had begun") from error


def meet(limit: float) -> Meeting | None:
    """Wait until all ranks are here, ``limit`` seconds at most; None on one host, where the launcher starts them all.

    Raises PeerLost if one does not come, and UserError where the port is another's or the master's name means loopback.
    """
    if not several_hosts():
        return None
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    serves = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    if not serves:
        _find(_place(), limit)
    meeting = Meeting(_open(_place(), ranks, serves, timedelta(seconds=limit + REACH)), rank, ranks, limit)
    absent = meeting.absent()
    if absent:
        time.sleep(SETTLE if rank == 0 else 0.0)
        raise PeerLost(_absent(absent, limit))
    _require_a_way(meeting)
    return meeting


def _require_a_way(meeting: Meeting) -> None:
    """Ranks that somebody has numbered by hand learn here that others are elsewhere. Raises UserError on all of them if
    the master's name leads one of them back to itself."""
    if len(set(meeting.gather(socket.gethostname()))) == 1:
        return
    error = None
    try:
        first = os.environ["RANK"] == os.environ.get("LOCAL_RANK", "0")
        choose_interfaces(os.environ, _place()[0], several_hosts=True, first=first)
    except UserError as refused:
        error = str(refused)
    meeting.all_raise(error)


def _place() -> tuple[str, int]:
    return os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])


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


def _wait_for_all(store: TCPStore, keys: Sequence[str], limit: float) -> list[int]:
    """The numbers of the keys that are not there when all are, or at the limit. It looks: waits that fail are loud."""
    absent, end = list(range(len(keys))), time.monotonic() + limit
    while absent := [number for number in absent if not store.check([keys[number]])]:
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


def _named(ranks: Sequence[int]) -> str:
    hosts = hosts_of_ranks(os.getppid())
    named = [f"rank {rank}" + (f" on {hosts[rank]}" if rank < len(hosts) else "") for rank in ranks[:NAMED]]
    return ", ".join(named) + (f" and {len(ranks) - NAMED} more" if len(ranks) > NAMED else "")


def _absent(ranks: Sequence[int], limit: float) -> str:
    return f"{_named(ranks)} did not start within {limit:.0f} s: {ADVICE}"
