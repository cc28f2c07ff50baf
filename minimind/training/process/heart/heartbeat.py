"""A rank's side of the heartbeat: starts its pulse, tells it what there is to know, and ends when it says so."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Protocol

from minimind.base.command_lines import NextLines
from minimind.base.findings import Finding
from minimind.config.heartbeat import HeartbeatConfig
from minimind.training.checkpoint.directory import Checkpoint
from minimind.training.process.disks import Gathers
from minimind.training.process.heart.living import END
from minimind.training.process.heart.loss import EARLY
from minimind.training.process.heart.pulse import Orders
from minimind.training.process.heart.roll import CLOSED, GRACE
from minimind.training.process.signals import StoppedEarly, StopRequest

VERDICT = CLOSED + GRACE + END  # seconds in which a pulse knows why a connection between ranks broke
TOLD = 1.0  # seconds in which a rank that was stopped hears what it was told meanwhile: of a hang, which ends it, too
BROKEN = ("DistError", "DistBackendError", "DistNetworkError", "DistStoreError")  # of torch.distributed


class Agreement(Gathers, Protocol):
    """What it takes of ranks.Control, or of the meeting before that."""

    def from_first(self, value: Any) -> Any: ...


class Heartbeat:
    """One rank's; a context manager, at whose end the others learn that this rank has ended by itself.

    Before ``start``, with one rank or disabled nothing is done.
    """

    def __init__(self) -> None:
        self._pulse: subprocess.Popen[bytes] | None = None
        self._stop: StopRequest | None = None
        self._writing = threading.Lock()  # checkpoints are saved in a thread of their own

    def __enter__(self) -> Heartbeat:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if self._pulse is None or self._stop is None:
            return
        if isinstance(error, RuntimeError) and _is_broken(error) and not self._stop.ended_early(error):
            threading.Event().wait(VERDICT)  # the pulse ends this process before, or it is another matter
        early = isinstance(error, StoppedEarly) or (isinstance(error, Exception) and self._stop.ended_early(error))
        self.end(EARLY if early else 0 if error is None else 2 if type(error).__name__ == "UserError" else 1)

    def start(
        self, config: HeartbeatConfig, agreement: Agreement, stop: StopRequest, run_dir: Path | None, lines: NextLines
    ) -> list[Finding]:
        """Begin to beat, if no rank has it disabled; all call it. A finding if one can't reach rank 0's pulse: then
        none beats.

        ``run_dir`` None: it keeps no checkpoints.
        """
        if agreement.world_size == 1 or not all(agreement.gather(config.enabled)):
            return []
        self._stop = stop
        hosts, key = agreement.gather(socket.gethostname()), agreement.from_first(secrets.token_hex(32))
        speaks = os.environ.get("LOCAL_RANK", "0") == "0"
        orders = Orders(
            rank=agreement.rank,
            hosts=hosts,
            address=own_address(),
            port=0,
            key=key,
            limit=config.limit,
            speaks=speaks,
            run_dir=str(run_dir or ""),
            go_on=lines.go_on,
            again=lines.again,
        )
        place = (orders.address, self._begin(orders)) if agreement.rank == 0 else None
        address, port = agreement.from_first(place)
        if agreement.rank != 0:
            self._begin(replace(orders, address=address, port=port))
        return self._agree(agreement, config.limit, f"{address} port {port}")

    def saved(self, checkpoint: Checkpoint | None) -> None:
        """This is the last complete checkpoint now; rank 0 is told first."""
        self._tell({"saved": None if checkpoint is None else [checkpoint.step, str(checkpoint.path)]})

    def end(self, code: int = 0) -> None:
        """This rank ends by itself; with 0 when its work is done."""
        self._tell({"ended": code})
        self._pulse = None

    def _begin(self, orders: Orders) -> int:
        """Start the pulse; the port that it listens on, or calls."""
        words = [sys.executable, "-m", "minimind.training.process.heart.pulse"]
        pipe = subprocess.PIPE
        self._pulse = subprocess.Popen(words, stdin=pipe, stdout=pipe)
        self._tell(asdict(orders))
        if orders.port:
            return orders.port
        assert self._pulse.stdout is not None
        line = self._pulse.stdout.readline()
        if not line:
            raise RuntimeError(f"the heartbeat's process has ended with code {self._pulse.wait()}")
        return int(json.loads(line)["port"])

    def _agree(self, agreement: Agreement, limit: float, where: str) -> list[Finding]:
        """Whether all have met: then listen; else beat no more."""
        assert self._pulse is not None
        met = threading.Event()
        if agreement.rank == 0:
            met.set()
        threading.Thread(target=self._listen, args=(self._pulse, met), name="heartbeat", daemon=True).start()
        met.wait(limit)
        absent = [rank for rank, there in enumerate(agreement.gather(met.is_set())) if not there]
        if not absent:
            return []
        self.end()
        return [_not_met(absent, where)]

    def _listen(self, pulse: subprocess.Popen[bytes], met: threading.Event) -> None:
        assert pulse.stdout is not None and self._stop is not None
        for line in pulse.stdout:
            message = json.loads(line)
            if "met" in message:
                met.set()
            elif self._pulse is not None:
                time.sleep(TOLD if message["woken"] else 0.0)
                if not self._stop.hung:
                    self._stop.hung = True  # whatever other threads meet from now on, it has been said
                    os._exit(message["lost"])
        pulse.wait()

    def _tell(self, message: dict[str, Any]) -> None:
        if self._pulse is not None and self._pulse.stdin is not None:
            with self._writing, contextlib.suppress(OSError):  # it was killed
                self._pulse.stdin.write((json.dumps(message) + "\n").encode())
                self._pulse.stdin.flush()


def own_address() -> str:
    """Rank 0's address: that at which the ranks have met, if it is this host's, else the one of the host's name."""
    for name in (os.environ.get("MASTER_ADDR", "127.0.0.1"), socket.gethostname()):
        with contextlib.suppress(OSError):
            address = str(socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0][4][0])
            socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET).close()
            return address
    return "127.0.0.1"


def _is_broken(error: RuntimeError) -> bool:
    """Whether it says that a connection between ranks has gone."""
    return type(error).__name__ in BROKEN or "gloo" in str(error) or "Connection " in str(error)


def _not_met(absent: list[int], where: str) -> Finding:
    return Finding(
        code="no-heartbeat",
        message=f"ranks {absent} don't reach rank 0 at {where}: a lost host is noticed late, when the network gives up",
        advice="let the hosts of a run reach each other on all ports, or say `heartbeat: off`",
    )
