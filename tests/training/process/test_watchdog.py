"""A silent thread is found, what is slow but alive is not, and a rank that is stopped ends the run of two."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from minimind.base.command_lines import NextLines
from minimind.base.errors import UserError
from minimind.base.launcher import free_port
from minimind.config.run import load_run_config
from minimind.config.watchdog import WatchdogConfig
from minimind.training.checkpoint.writer import Saver
from minimind.training.process.hang import debugged, write_stacks
from minimind.training.process.watchdog import EVALUATION, EXPORT, SAVE, START, STEP, WRITE, Pace, Watchdog, attended
from tests.support import DS_CONFIGS, FakeEngine, OneRank
from tests.training.run.test_main import SMALL, launch
from tests.training.run.test_main import _one_rank_with_its_signals as _signals  # noqa: F401 (an autouse fixture)

ROOT = Path(__file__).parents[3]
MAIN, SAVING = 1, 2  # two threads
PATIENCE = 240  # seconds that a process may take to end, on a busy machine


def at_work(phase: str, beats: int = 2, every: float = 1.0, **settings: Any) -> Pace:
    """A pace whose main thread has done ``phase`` some times."""
    pace = Pace(WatchdogConfig(**settings))
    for _ in range(beats):
        pace.beat(MAIN, phase)
        pace.passed(every)
    pace.beat(MAIN, phase)
    return pace


def overdue_after(pace: Pace, seconds: float) -> bool:
    pace.passed(seconds)
    return pace.overdue() is not None


def test_silence_beyond_the_limit_is_a_hang_and_a_beat_ends_it() -> None:
    pace = at_work(STEP, limit=30)
    assert not overdue_after(pace, 30)
    pace.beat(MAIN, STEP)
    assert not overdue_after(pace, 30)
    assert overdue_after(pace, 1)
    found = pace.overdue()
    assert found is not None and (found.phase, found.seconds, found.limit) == (STEP, 31, 30)


@pytest.mark.parametrize(("every", "limit"), [(0.1, 600), (59, 600), (61, 610), (500, 5000)])
def test_the_limit_follows_the_longest_of_the_phase_and_is_never_below_ten_minutes(every: float, limit: float) -> None:
    pace = at_work(STEP, every=every)
    pace.beat(MAIN, STEP)
    assert pace.limit(STEP) == pytest.approx(limit)
    assert not overdue_after(pace, limit) and overdue_after(pace, 1)


def test_what_was_not_done_before_may_take_an_hour() -> None:
    pace = at_work(STEP)
    pace.beat(MAIN, EVALUATION)
    assert not overdue_after(pace, 3600) and overdue_after(pace, 1)


def test_a_given_limit_holds_from_the_first_step_but_for_a_compilation() -> None:
    pace = Pace(WatchdogConfig(limit=20))
    pace.beat(MAIN, STEP)
    assert overdue_after(pace, 21)
    compiling = Pace(WatchdogConfig(limit=20))
    compiling.compiled = True
    for phase in (STEP, EVALUATION):
        compiling.beat(MAIN, phase)
        assert not overdue_after(compiling, 3000)
        compiling.beat(MAIN, phase)
        assert overdue_after(compiling, 21)
    compiling.beat(MAIN, SAVE)
    assert overdue_after(compiling, 21)


def test_building_again_after_a_rollback_is_a_first_time() -> None:
    pace = at_work(STEP, limit=20)
    pace.compiled = True
    pace.beat(MAIN, START)
    assert not overdue_after(pace, 3000)
    pace.beat(MAIN, STEP)
    assert not overdue_after(pace, 3000)


def test_each_thread_is_watched_and_one_at_rest_is_not() -> None:
    pace = at_work(STEP, limit=20)
    pace.beat(SAVING, WRITE)
    for _ in range(3):
        pace.beat(MAIN, STEP)
        pace.passed(10)
    found = pace.overdue()
    assert found is not None and found.phase == WRITE
    pace.rest(SAVING)
    assert pace.overdue() is None


class Looks:
    """In place of the event that a watchdog waits for: each wait takes as long as the machine lets it."""

    def __init__(self, *durations: float) -> None:
        self.now, self._durations = 0.0, list(durations)

    def wait(self, period: float) -> bool:
        if not self._durations:
            return True
        self.now += self._durations.pop(0)
        return False


def test_time_in_which_the_watchdog_did_not_run_either_does_not_count() -> None:
    """SIGSTOP of the whole job, a debugger, a virtual machine that was paused."""
    looks: Any = Looks(5.0, 5.1, 7 * 3600.0, 5.0)
    assert list(attended(5.0, looks, lambda: looks.now)) == pytest.approx([5.0, 5.1, 10.0, 5.0])


def test_a_debugger_is_seen() -> None:
    assert not debugged()
    inside, leave = threading.Event(), threading.Event()
    in_debugger: dict[str, Any] = {"__name__": "bdb", "inside": inside, "leave": leave}
    exec("def stopped():\n    inside.set()\n    leave.wait()", in_debugger)
    thread = threading.Thread(target=in_debugger["stopped"])
    thread.start()
    inside.wait()
    try:
        assert debugged()
    finally:
        leave.set()
        thread.join()
    assert not debugged()


def test_stacks_name_every_thread_and_where_it_stands(tmp_path: Path) -> None:
    leave = threading.Event()

    def waiting_here() -> None:
        leave.wait()

    thread = threading.Thread(target=waiting_here, name="a-thread")
    thread.start()
    with (tmp_path / "stacks.txt").open("w") as file:
        write_stacks(file.fileno(), "why")
    leave.set()
    thread.join()
    text = (tmp_path / "stacks.txt").read_text()
    assert "why" in text and "a-thread" in text and "in waiting_here" in text and "MainThread" in text


def test_the_section_of_the_yaml(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    for text, enabled, limit in [("off", False, None), ("{limit: 1800}", True, 1800), ("on", True, None)]:
        path.write_text(f"watchdog: {text}\n")
        config = load_run_config(path)
        assert (config.watchdog.enabled, config.watchdog.limit) == (enabled, limit)
        path.write_text(config.dump_yaml())
        assert load_run_config(path).watchdog == config.watchdog
    for text, message in [("{limt: 5}", '"limt".*limit'), ("{limit: 0}", "greater than 0"), ("{limit: x}", "limit")]:
        path.write_text(f"watchdog: {text}\n")
        with pytest.raises(UserError, match=f"run.yaml:1: .*{message}"):
            load_run_config(path)


class Listener(Watchdog):
    """Notes who beats."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[tuple[str, str]] = []

    def beat(self, phase: str, step: int | None = None) -> None:
        self.heard.append((threading.current_thread().name, phase))

    def rest(self) -> None:
        self.heard.append((threading.current_thread().name, "rest"))


def test_a_save_beats_at_each_piece_and_so_does_who_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow disk is no hang: the thread that writes gets on, and the loop waits for it only."""
    from minimind.training.checkpoint import snapshot
    from minimind.training.checkpoint import writer as module

    monkeypatch.setattr(module, "PATIENCE", 0.01)
    waited = threading.Event()

    class Impatient(Listener):
        def beat(self, phase: str, step: int | None = None) -> None:
            super().beat(phase, step)
            if phase == SAVE and self.heard.count(("MainThread", SAVE)) > 2:
                waited.set()

    open_file = snapshot.open_file
    monkeypatch.setattr(snapshot, "open_file", lambda path: waited.wait(PATIENCE) and open_file(path))
    listener = Impatient()
    saver = Saver(FakeEngine(), OneRank(), tmp_path, 3, set(), listener)
    saver.save(4, {}, {"world_size": 1})
    assert saver.finish()
    assert listener.heard.count(("MainThread", SAVE)) > 2
    writing = [phase for thread, phase in listener.heard if thread == "save-4"]
    assert len(writing) > 6 and set(writing[:-1]) == {WRITE} and writing[-1] == "rest"


def test_everything_that_a_run_does_beats(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beats: list[tuple[str, int | None]] = []
    original = Watchdog.beat

    def beat(self: Watchdog, phase: str, step: int | None = None) -> None:
        beats.append((phase, step))
        original(self, phase, step)

    monkeypatch.setattr(Watchdog, "beat", beat)
    options = ("--max-steps", "2", "--set", "eval_steps=1", "--set", "gradient_accumulation_steps=2")
    assert launch("pretrain", "fp32.json", files, tmp_path, *options) == 0
    assert [step for phase, step in beats if phase == STEP] == [1, 1, 1, 2, 2, 2]  # before each micro-batch, too
    phases = [phase for phase, _ in beats if phase != WRITE]
    order = list(dict.fromkeys(phases))
    assert order == [START, STEP, EVALUATION, SAVE, EXPORT]
    assert phases.count(EVALUATION) >= 2 * 2 and sum(phase == WRITE for phase, _ in beats) > 4
    assert threading.active_count() == 1 or "watchdog" not in [thread.name for thread in threading.enumerate()]


def rank(number: int, port: int, run: Path, files: dict[str, Path]) -> subprocess.Popen[str]:
    """One of two ranks of a long run that counts as hung after eight seconds."""
    joined = {"RANK": number, "LOCAL_RANK": number, "WORLD_SIZE": 2, "MASTER_PORT": port, "OMP_NUM_THREADS": 1}
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MASTER_ADDR": "127.0.0.1"}
    environment |= {name: str(value) for name, value in joined.items()}
    options = ["--deepspeed_config", str(DS_CONFIGS / "fp32.json"), "--output-dir", str(run)]
    options += ["--train-file", str(files["pretrain"]), "--tokenizer", str(files["tokenizer"])]
    options += ["--max-steps", "1000000", *SMALL]
    command = [sys.executable, "launch/pretrain.py", f"--local_rank={number}", *options]
    return subprocess.Popen(
        [*command, "--set", "watchdog={limit: 8}"],
        cwd=ROOT,
        env=environment,
        text=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def wait_for_steps(run: Path, count: int, ranks: list[subprocess.Popen[str]]) -> None:
    """Until metrics.jsonl has so many steps; a rank that ends before fails the test."""
    steps = 0
    while steps < count or not (run / "latest").exists():
        assert all(process.poll() is None for process in ranks), ranks[0].communicate()
        time.sleep(0.05)
        lines = (run / "metrics.jsonl").read_text().splitlines() if (run / "metrics.jsonl").exists() else []
        steps = sum('"train"' in line for line in lines)


@pytest.mark.slow
def test_a_rank_that_is_stopped_ends_the_run_with_the_stacks_and_how_to_go_on(
    files: dict[str, Path], tmp_path: Path
) -> None:
    """Rank 0 is the one that is stopped: it is also the one that prints what a run prints."""
    port, run = free_port(), tmp_path / "run"
    ranks = [rank(number, port, run, files) for number in range(2)]
    try:
        wait_for_steps(run, 3, ranks)
        ranks[0].send_signal(signal.SIGSTOP)
        _, errors = ranks[1].communicate(timeout=PATIENCE)
        assert ranks[1].returncode == 1
        (line,) = [line for line in errors.splitlines() if line.startswith("error: ")]
        stacks = run / "hang" / "rank-1.txt"
        assert re.search(r"rank 1: no progress in .* for \d+ s \(limit 8 s\), step \d+; ", line)
        assert str(stacks) in line and "Traceback" not in errors
        command = line.partition("go on (for this rank) with: ")[2]
        assert command.startswith("env RANK=1 LOCAL_RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 ")
        assert f"{sys.executable} launch/pretrain.py --deepspeed_config " in command
        assert command.endswith(" --resume") and f"--output-dir {run} " in command
        text = stacks.read_text()
        assert "in train" in text and "(most recent call first)" in text
        ranks[0].send_signal(signal.SIGCONT)  # what it was told lies in wait for it
        ranks[0].communicate(timeout=PATIENCE)
        assert ranks[0].returncode == 1  # by that, or because it has lost its peer: what comes first
        assert "told of a hang" in (run / "hang" / "rank-0.txt").read_text()
    finally:
        for process in ranks:
            process.kill()
            process.communicate()
    assert (run / "latest").read_text().startswith("checkpoints/step-")


def test_a_hang_in_one_process_ends_it_although_the_main_thread_hears_nothing(tmp_path: Path) -> None:
    code = (
        "import ctypes, sys\n"
        "from pathlib import Path\n"
        "from minimind.base.command_lines import NextLines\n"
        "from minimind.training.process.signals import StopRequest\n"
        "from minimind.training.process.watchdog import STEP, Watchdog\n"
        "from minimind.config.watchdog import WatchdogConfig\n"
        "dog = Watchdog()\n"
        f"dog.start(WatchdogConfig(limit=0.5), Path({str(tmp_path)!r}), 0, StopRequest(), NextLines('', 'with: it'))\n"
        "dog.beat(STEP, 7)\n"
        "ctypes.CDLL(None).sleep(600)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 1
    assert done.stderr.startswith("error: rank 0: no progress in a step for ") and done.stderr.count("\n") == 1
    assert "step 7" in done.stderr and "there is no checkpoint yet: start again with: it" in done.stderr
    assert (tmp_path / "hang" / "rank-0.txt").is_file()


def test_a_watchdog_that_is_off_or_not_started_does_nothing(tmp_path: Path) -> None:
    before = threading.active_count()
    with Watchdog() as watchdog:
        stop: Any = SimpleNamespace(hear=lambda *_: pytest.fail("nothing to hear"))
        watchdog.start(WatchdogConfig(enabled=False), tmp_path, 0, stop, NextLines("", ""))
        watchdog.beat(STEP, 3)
        watchdog.rest()
        assert threading.active_count() == before
