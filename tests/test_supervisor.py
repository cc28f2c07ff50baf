"""`minimind launch`, two real ranks: whoever gets a signal, one complete checkpoint, no orphan, a true exit code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from minimind.launching import free_port
from minimind.supervisor import has_pending_stop
from minimind.training.checkpoints import all_checkpoints, problem
from tests.test_launch import ROOT, arguments, rank_pid, steps, wait_for_steps
from tests.waiting import PATIENCE, wait_for

STOPS = {name: getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP")}
VICTIMS = ("supervisor", "runner", "launcher", "rank 0", "rank 1")
# One start costs ten seconds: the suite has every victim and every signal once, the soak all pairs.
IN_SUITE = {("runner", "SIGTERM"), ("launcher", "SIGHUP"), ("supervisor", "SIGINT"), ("rank 0", "SIGINT")}
LONG = ("--max-steps", "50000", "--set", "save_steps=50000")
KILLED_LAUNCHER = 1
KILLED_RANK = 247  # launch.py exits with -9


def start(words: list[str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "minimind.cli", "launch", "--quiet", "--master_port", str(free_port())]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "DS_ACCELERATOR": "cpu"}
    return subprocess.Popen(
        [*command, "--num_gpus", "2", "launch/pretrain.py", *words], cwd=ROOT, env=environment,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, preexec_fn=_heed_hangups,
    )  # fmt: skip


def _heed_hangups() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests themselves may run under nohup


def pid_of(victim: str, process: subprocess.Popen[str]) -> int:
    if victim == "supervisor":
        return process.pid
    runner = psutil.Process(process.pid).children()[0]
    if victim == "runner":
        return int(runner.pid)
    if victim == "launcher":
        return int(runner.children()[0].pid)
    return rank_pid(process, int(victim[-1]))


def finish(process: subprocess.Popen[str], family: list[psutil.Process]) -> str:
    """The output; nothing of the family is left."""
    output, _ = process.communicate(timeout=PATIENCE)
    _, alive = psutil.wait_procs(family, timeout=PATIENCE)
    assert not alive, output
    return output


def family_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return list(psutil.Process(process.pid).children(recursive=True))


def assert_one_complete_checkpoint(out: Path) -> None:
    (checkpoint,) = all_checkpoints(out)
    assert problem(checkpoint.path) is None
    assert checkpoint.step == steps(out)[-1]


def pairs() -> list[Any]:
    every = [(victim, name) for victim in VICTIMS for name in STOPS]
    return [
        pytest.param(*pair, marks=pytest.mark.slow if pair in IN_SUITE else pytest.mark.soak)
        for pair in every
    ]


@pytest.mark.parametrize(("victim", "name"), pairs())
def test_a_stop_of_any_process_ends_all_with_a_checkpoint_and_0(
    victim: str, name: str, files: dict[str, Path], tmp_path: Path
) -> None:
    process = start(arguments("bf16.json", files, tmp_path, *LONG))
    wait_for_steps(process, tmp_path, 2)
    family = family_of(process)
    os.kill(pid_of(victim, process), STOPS[name])
    output = finish(process, family)
    assert process.returncode == 0, output
    assert "Traceback" not in output
    assert_one_complete_checkpoint(tmp_path)


@pytest.mark.slow
def test_a_second_ctrl_c_ends_at_once(files: dict[str, Path], tmp_path: Path) -> None:
    process = start(arguments("fp32.json", files, tmp_path, *LONG))
    wait_for_steps(process, tmp_path, 1)
    family = family_of(process)
    ranks = [rank_pid(process, rank) for rank in (0, 1)]
    for pid in ranks:  # so that the first Ctrl-C has no effect for now
        os.kill(pid, signal.SIGSTOP)
    process.send_signal(signal.SIGINT)
    wait_for(lambda: all(map(has_pending_stop, ranks)), process)  # the first one has been handed on
    process.send_signal(signal.SIGINT)
    output = finish(process, family)
    assert process.returncode == 130, output


@pytest.mark.slow
@pytest.mark.parametrize(("victim", "code"), [("launcher", KILLED_LAUNCHER), ("rank 1", KILLED_RANK)])
def test_kill_9_is_no_success_and_leaves_nobody(
    victim: str, code: int, files: dict[str, Path], tmp_path: Path
) -> None:
    process = start(arguments("fp32.json", files, tmp_path, *LONG))
    wait_for_steps(process, tmp_path, 2)
    family = family_of(process)
    os.kill(pid_of(victim, process), signal.SIGKILL)
    output = finish(process, family)
    assert process.returncode == code, output
    if victim == "launcher":
        assert_one_complete_checkpoint(tmp_path)


@pytest.mark.slow
def test_a_stop_while_data_are_prepared_ends_all_with_0(tmp_path: Path, files: dict[str, Path]) -> None:
    """Rank 0 waits for a pipe that nobody fills, rank 1 for rank 0 in a collective, where Python hears no signal."""
    pipe = tmp_path / "text.jsonl"
    os.mkfifo(pipe)
    held = os.open(pipe, os.O_RDWR)  # a writer that never writes
    words = arguments("fp32.json", {**files, "pretrain": pipe}, tmp_path / "run", "--max-steps", "5")
    process = start(words)
    wait_for(lambda: any(has_opened(child, pipe) for child in family_of(process)), process)
    family = family_of(process)
    os.kill(pid_of("rank 1", process), signal.SIGTERM)
    output = finish(process, family)
    os.close(held)
    assert process.returncode == 0, output
    assert output.count("before the first step: nothing was trained") == 1
    assert "Traceback" not in output


def has_opened(process: psutil.Process, path: Path) -> bool:
    descriptors = Path(f"/proc/{process.pid}/fd")
    return any(link.exists() and link.readlink() == path for link in descriptors.glob("*"))
