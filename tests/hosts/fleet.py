"""A server on each of two hosts that has imported the trainer, and forks a rank there in half a second.

The two share a disk. What a rank prints is in its log; how it ended is what `Rank.wait` gives.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from minimind.training.process.orphans import children
from tests.faults.fork_server import LATE
from tests.hosts.bed import Bed, Host
from tests.waiting import PATIENCE, wait_for


@dataclass
class Rank:
    """One rank of a run, on its host."""

    server: subprocess.Popen[str]
    log: Path

    @property
    def text(self) -> str:
        """What it has printed so far."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    @property
    def error(self) -> str:
        """The one line that says what went wrong."""
        (line,) = [line for line in self.text.splitlines() if line.startswith("error: ")]
        return line

    def signal(self, number: int = signal.SIGTERM) -> None:
        """Send it a signal."""
        (inside,) = children(self.server.pid)  # of nsenter
        for pid in children(inside):
            os.kill(pid, number)

    def wait_or_gone(self) -> int | None:
        """Its exit code, or None if its host has gone with it."""
        assert self.server.stdout
        line = self.server.stdout.readline()
        return int(line) if line else None

    def wait(self) -> int:
        """Its exit code; negative: a signal."""
        code = self.wait_or_gone()
        assert code is not None, f"the host's server is gone\n{self.text}"
        return code


class Fleet:
    """The servers of a bed's hosts; a context manager."""

    def __init__(self, bed: Bed) -> None:
        self.bed, self._stack, self._runs = bed, ExitStack(), 0
        self.servers: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Fleet:
        self.servers = [self._serve(host) for host in self.bed.hosts]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for server in self.servers:
            assert server.stdin
            server.stdin.close()
            server.kill()
            server.wait(PATIENCE)

    def _serve(self, host: Host) -> subprocess.Popen[str]:
        return subprocess.Popen(
            host.command([sys.executable, "-c", "from tests.hosts.fleet import serve; serve()"]),
            env=host.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(
        self,
        words: Sequence[str],
        hosts: Sequence[int] = (0, 1),
        only: Mapping[int, Mapping[str, str]] = {},
        script: str = "pretrain",
    ) -> list[Rank]:
        """One rank on each of ``hosts`` of a run over two. ``only``: variables of one of them."""
        self._runs += 1
        port = random.SystemRandom().randrange(20000, 32000)  # of hosts with no other run
        ranks = []
        for number in hosts:
            log = self.bed.directory / f"run-{self._runs}-rank-{number}.log"
            joined = {"RANK": number, "LOCAL_RANK": 0, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 1}
            joined |= {"MASTER_ADDR": self.bed.hosts[0].name, "MASTER_PORT": port}
            variables = {name: str(value) for name, value in joined.items()} | dict(only.get(number, {}))
            server = self.servers[number]
            assert server.stdin
            order = {"words": list(words), "log": str(log), "variables": variables, "script": script}
            server.stdin.write(json.dumps(order) + "\n")
            server.stdin.flush()
            ranks.append(Rank(server, log))
        return ranks

    def run(self, words: Sequence[str]) -> list[Rank]:
        """A run that ends well."""
        ranks = self.start(words)
        assert [rank.wait() for rank in ranks] == [0, 0], [rank.text for rank in ranks]
        return ranks


def wait_for_steps(run: Path, ranks: Sequence[Rank], steps: int = 1, saved: bool = True) -> None:
    """Until metrics.jsonl has a line of step ``steps``, and a checkpoint is complete if ``saved``."""

    def reached() -> bool:
        assert not any("Traceback" in rank.text or "error: " in rank.text for rank in ranks), [r.text for r in ranks]
        metrics = run / "metrics.jsonl"
        lines = metrics.read_text(errors="replace") if metrics.exists() else ""
        last = max(map(int, re.findall(r'"kind": ?"train", ?"step": ?(\d+)', lines)), default=0)
        return last >= steps and (not saved or (run / "latest").exists())

    wait_for(reached)


def serve() -> None:
    """The server's side: one rank a line on stdin, one exit code a line on stdout."""
    import importlib

    for name in ("minimind.training.run.main", "minimind.interop.huggingface", *LATE):
        importlib.import_module(name)
    for line in sys.stdin:
        pid = _fork(json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


def _fork(order: dict[str, Any]) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        _run(order)
    except BaseException:  # the child must not go on in the server's loop
        traceback.print_exc()
    finally:
        os._exit(70)


def _run(order: dict[str, Any]) -> None:
    """As the launch script would, with output to the log."""
    from minimind.training.process.start import start

    file = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.environ.update(order["variables"])
    spoil_disk(os.environ.get("MINIMIND_TEST_DISK", ""))
    if os.environ.get("MINIMIND_TEST_LOST"):
        lose_when_connecting()
    sys.argv = [f"launch/{order['script']}.py", *order["words"]]
    if order["script"] == "lr_sweep":
        start("minimind.training.sweep.sweep")
    start("minimind.training.run.main", order["script"])


def lose_when_connecting() -> None:
    """This rank is killed when the hosts have met and torch is about to connect them."""
    from minimind.training.run import task

    def killed(emulate_fp16: bool) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    task.start_processes = killed


def spoil_disk(how: str) -> None:
    """This process's disk is "slow", or "full" for the first two files of checkpoints."""
    fsync, calls = os.fsync, itertools.count()

    def spoiled(descriptor: int) -> None:
        if how == "slow":
            time.sleep(0.2)
        elif ".incomplete-" in str(Path(f"/proc/self/fd/{descriptor}").readlink()) and next(calls) < 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(descriptor)

    if how:
        os.fsync = spoiled
