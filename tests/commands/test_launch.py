"""`minimind launch`, two real ranks: whoever gets a signal, one complete checkpoint, no orphan, a true exit code."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from minimind.base.launcher import free_port
from minimind.commands.launch import has_pending_stop
from minimind.training.checkpoint.directory import all_checkpoints, problem
from tests.test_launch import ROOT, arguments, rank_pid, steps, wait_for_steps
from tests.waiting import PATIENCE, wait_for

STOPS = {name: getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP")}
VICTIMS = ("supervisor", "runner", "launcher", "rank 0", "rank 1")
# One start costs ten seconds: the suite has every victim and every signal once, the soak all pairs.
IN_SUITE = {("runner", "SIGTERM"), ("launcher", "SIGHUP"), ("supervisor", "SIGINT"), ("rank 0", "SIGINT")}
LONG = ("--max-steps", "50000", "--set", "save_steps=50000")
KILLED_LAUNCHER = (1,)
KILLED_RANK = (1, 247)  # launch.py exits with -9, unless the heartbeat has ended the other rank before it looks


def start(words: list[str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "minimind.cli", "launch", "--quiet", "--master_port", str(free_port())]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "DS_ACCELERATOR": "cpu"}
    return subprocess.Popen(
        [*command, "--num_gpus", "2", "launch/pretrain.py", *words],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=_heed_hangups,
    )


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


def line_to_go_on(output: str) -> str:
    """What the end of a run shows to be typed; mpirun gives a rank a terminal, and so colours."""
    output = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", output)
    (line,) = [line for line in output.splitlines() if line.strip().startswith("go on ")]
    return line.strip().removeprefix("go on ").strip()


def pairs() -> list[Any]:
    every = [(victim, name) for victim in VICTIMS for name in STOPS]
    return [pytest.param(*pair, marks=pytest.mark.slow if pair in IN_SUITE else pytest.mark.soak) for pair in every]


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
    assert line_to_go_on(output) == shlex.join([*map(str, process.args), "--resume"])  # type: ignore[arg-type]


@pytest.mark.soak
def test_the_line_at_the_end_goes_on_when_it_is_typed(files: dict[str, Path], tmp_path: Path) -> None:
    run = tmp_path / "my run's"
    process = start(arguments("bf16.json", files, run, *LONG))
    for _ in range(2):
        before = len(steps(run)) if (run / "latest").exists() else 0
        wait_for_steps(process, run, before + 2)
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, output
        line, environment = line_to_go_on(output), {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        pipe, out = subprocess.PIPE, subprocess.STDOUT
        shell = ["bash", "-c", f"exec {line}"]
        process = subprocess.Popen(shell, cwd=ROOT, env=environment, stdout=pipe, stderr=out, text=True)
    wait_for_steps(process, run, len(steps(run)) + 2)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0 and line_to_go_on(output) == line
    assert steps(run) == list(range(1, len(steps(run)) + 1))


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
    victim: str, code: tuple[int, ...], files: dict[str, Path], tmp_path: Path
) -> None:
    process = start(arguments("fp32.json", files, tmp_path, *LONG))
    wait_for_steps(process, tmp_path, 2)
    family = family_of(process)
    os.kill(pid_of(victim, process), signal.SIGKILL)
    output = finish(process, family)
    assert process.returncode in code, output
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
    return any(target(link) == path for link in descriptors.glob("*"))


def target(link: Path) -> Path | None:
    """Where it leads; None if it is gone: the process goes on meanwhile."""
    with contextlib.suppress(OSError):
        return link.readlink()
    return None


LAUNCHER = """
import json, os, signal, subprocess, sys
if sys.argv[1] == "launch.py":
    ranks = [subprocess.Popen([sys.executable, "-c", sys.argv[2]], env={**os.environ, "RANK": str(rank)})
             for rank in range(2)]
    sys.exit(max(rank.wait() for rank in ranks))
words = [word for word in sys.argv[1:] if word != "--master_port"]
below = subprocess.Popen([sys.executable, __file__, "launch.py", open(words[-1]).read()])
sys.exit(max(below.wait(), 0))  # as runner.py: a launch.py that was killed counts as success
"""
DAEMON = """
import os, signal, subprocess, sys
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
if os.environ["RANK"] == "0":
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"], start_new_session=SESSION,
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    print("daemon", child.pid, flush=True)
"""
SUPERVISE = """
import sys
from pathlib import Path
from minimind.commands import launch as supervisor
supervisor.find_launcher = lambda: Path(sys.argv[1])
look = supervisor.Supervisor._look
def tell_when_all_are_seen(self):
    look(self)
    if len(self.started) == 3:
        print("seen", flush=True)
        supervisor.Supervisor._look = look
supervisor.Supervisor._look = tell_when_all_are_seen
sys.exit(supervisor.launch(sys.argv[2:]))
"""


def supervised(tmp_path: Path, rank: str) -> subprocess.Popen[str]:
    """The supervisor over a launcher that starts processes as DeepSpeed's does: runner, launch.py, two ranks."""
    (tmp_path / "deepspeed").write_text(LAUNCHER)
    (tmp_path / "rank.py").write_text(rank)
    command = [sys.executable, "-c", SUPERVISE, str(tmp_path / "deepspeed"), str(tmp_path / "rank.py")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.fixture
def daemons() -> Iterator[list[int]]:
    """Processes to end after the test."""
    pids: list[int] = []
    yield pids
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def read_daemon(process: subprocess.Popen[str], daemons: list[int]) -> None:
    assert process.stdout is not None
    line = process.stdout.readline()
    if line == "seen\n":  # the supervisor may be first
        line = process.stdout.readline()
    assert line.startswith("daemon "), line
    daemons.append(int(line.split()[1]))


@pytest.mark.parametrize("session", [True, False])
@pytest.mark.parametrize(("end", "code"), [("", 0), ("sys.exit(3)", 3)])
def test_what_a_rank_leaves_behind_is_neither_counted_nor_waited_for(
    end: str, code: int, session: bool, tmp_path: Path, daemons: list[int]
) -> None:
    """As wandb's service, which outlives the rank and is adopted; the ranks' code is the code."""
    process = supervised(tmp_path, DAEMON.replace("SESSION", str(session)) + end)
    read_daemon(process, daemons)
    output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == code, output
    assert "was killed" not in output
    assert psutil.pid_exists(daemons[0])  # nobody waited for its end


def test_ranks_that_outlive_a_killed_launch_py_are_counted_and_waited_for_beside_a_daemon(
    tmp_path: Path, daemons: list[int]
) -> None:
    wait = "print('ready', flush=True)\nsignal.sigwait([signal.SIGUSR1])\nprint('over', flush=True)"
    process = supervised(
        tmp_path,
        f"{DAEMON.replace('SESSION', 'True')}\nsignal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])\n{wait}",
    )
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(4)]  # a daemon, two ranks ready, all seen by the supervisor
    daemons += [int(line.split()[1]) for line in lines if line.startswith("daemon")]
    launcher = psutil.Process(process.pid).children()[0].children()[0]
    ranks = [child for child in launcher.children() if child.environ().get("RANK")]
    assert len(ranks) == 2
    launcher.kill()
    for rank in ranks:
        rank.send_signal(signal.SIGUSR1)
    output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode in KILLED_LAUNCHER, output
    assert output.count("over") == 2 and "launch.py was killed" in output


def test_words_that_can_not_work_end_with_2_before_anything_is_started(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "minimind.cli", "launch", "--hostfile", str(tmp_path / "none"), __file__]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1 and result.stderr.startswith("error: ") and not result.stdout


@pytest.mark.soak
def test_a_run_that_logs_to_wandb_ends_with_0(files: dict[str, Path], tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    words = ["--max-steps", "2", "--set", "report_to=wandb", "--set", "wandb_mode=offline"]
    process = start(arguments("fp32.json", files, tmp_path, *words))
    output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, output
    assert list((tmp_path / "wandb").glob("offline-run-*"))
