"""What a pulse knows of its rank, and a rank's side of it; over two hosts: tests/hosts/test_faults.py."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from minimind.base.command_lines import NextLines
from minimind.config.heartbeat import HeartbeatConfig
from minimind.training.checkpoint.directory import Checkpoint
from minimind.training.process.heart.heartbeat import Heartbeat
from minimind.training.process.heart.living import Inbox
from minimind.training.process.signals import StopRequest
from tests.support import OneRank
from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[4]
# A rank that holds Python's lock for good, and beside it a process that is asked for the rank's state, line by line
LOOK = (
    "import os, sys; from minimind.training.process.heart.living import Rank; rank = Rank(os.getppid())\n"
    "for _ in sys.stdin: print(rank.state().name, flush=True)"
)
HOLD = (
    "import ctypes, subprocess, sys; subprocess.Popen([sys.executable, '-c', sys.argv[1]])\n"
    f"ctypes.PyDLL(None).sleep({int(PATIENCE)})"
)


def test_a_pulse_sees_its_rank_live_stop_and_die_also_if_that_holds_pythons_lock() -> None:
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", HOLD, LOOK]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True) as rank:
        assert rank.stdin and rank.stdout

        def state() -> str:
            assert rank.stdin and rank.stdout
            rank.stdin.write("?\n")
            rank.stdin.flush()
            return rank.stdout.readline().strip()

        assert state() == "ALIVE"
        rank.send_signal(signal.SIGSTOP)
        os.waitpid(rank.pid, os.WUNTRACED)
        assert state() == "STOPPED"
        rank.send_signal(signal.SIGCONT)
        os.waitpid(rank.pid, os.WCONTINUED)
        assert state() == "ALIVE"
        rank.kill()
        os.waitid(os.P_PID, rank.pid, os.WEXITED | os.WNOWAIT)  # nobody has taken note of its death yet
        assert state() == "GONE"


def test_a_pulse_reads_whole_lines_and_never_waits() -> None:
    reader, writer = os.pipe()
    inbox = Inbox(reader)
    assert inbox.read() == [] and not inbox.closed
    os.write(writer, b'{"saved": "a"}\n{"ended"')
    assert inbox.read() == [{"saved": "a"}]
    os.write(writer, b": 0}\n")
    os.close(writer)
    assert inbox.read() == [{"ended": 0}] and not inbox.closed
    assert inbox.read() == [] and inbox.closed
    os.close(reader)


def test_one_rank_and_a_heartbeat_that_is_off_start_nothing(tmp_path: Path) -> None:
    before = threading.active_count()
    for ranks, config in ((1, HeartbeatConfig()), (2, HeartbeatConfig(enabled=False))):
        agreement: Any = OneRank()
        agreement.world_size = ranks
        with Heartbeat() as heartbeat:
            assert heartbeat.start(config, agreement, StopRequest(), tmp_path, NextLines("", "")) == []
            heartbeat.saved(Checkpoint(tmp_path, 1))
            assert threading.active_count() == before


def test_a_rank_that_has_it_off_has_it_off_for_all(tmp_path: Path) -> None:
    class Two(OneRank):
        world_size = 2

        def gather(self, value: Any) -> list[Any]:
            return [value, False]

    agreement: Any = Two()
    with Heartbeat() as heartbeat:
        assert heartbeat.start(HeartbeatConfig(), agreement, StopRequest(), tmp_path, NextLines("", "")) == []
