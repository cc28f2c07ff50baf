"""Signals before the first step: heard during imports, in a blocked main thread, once, and told to the other ranks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from minimind.training.process import signals
from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[3]
# The main thread's last line blocks it in C, where Python runs no handler; another thread says "ready" once it is
# there: nothing before the call on that line gives the other thread its turn.
BLOCKED = f"""
import ctypes, sys, threading, time
main, block = threading.get_ident(), ctypes.CDLL(None).sleep
def say():
    while True:
        frame = sys._current_frames()[main]
        if frame.f_code.co_name == "<module>" and frame.f_lineno == last: break
        time.sleep(0.01)
    print("ready", flush=True)
last = None
watcher = threading.Thread(target=say, daemon=True)
watcher.start()
last = sys._getframe().f_lineno + 1
block({int(PATIENCE)})
"""
BEFORE = "stopped by SIGTERM before the first step: nothing was trained"


def start(code: str, **environment: str) -> subprocess.Popen[str]:
    """A Python that prints "ready" when the signal may come."""
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout and process.stdout.readline() == "ready\n"
    return process


def test_a_signal_while_modules_are_imported_is_a_clean_stop(tmp_path: Path) -> None:
    (tmp_path / "heavy.py").write_text(f"import time\nprint('ready', flush=True)\ntime.sleep({PATIENCE})\n")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
    process = start(code + "from minimind.training.process.start import start; start('heavy')")
    process.terminate()
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0 and errors.strip() == BEFORE


def test_a_blocked_main_thread_does_not_delay_a_stop_for_ever() -> None:
    """A collective: the main thread is in C and sees neither the signal nor an interrupted call."""
    process = start(
        "import signal\n"
        "from minimind.training.process import signals\n"
        "signals.GRACE = 0.2\n"
        "signals.StopRequest().install().watch()\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, signals.HANDLED)\n"  # of this thread: the kernel takes the other
        + BLOCKED
    )
    process.terminate()
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0 and errors.strip() == BEFORE


def test_a_second_ctrl_c_ends_a_blocked_process_at_once() -> None:
    process = start(
        "import signal, sys\n"
        "from minimind.training.process import signals\n"
        "listen = signals.os.read\n"
        "def said(reader, size):\n"  # what the watching thread reads: the second time it comes, the first is dealt with
        "    said.times = getattr(said, 'times', 0) + 1\n"
        "    if said.times > 1: print('heard', flush=True)\n"
        "    return listen(reader, size)\n"
        "signals.os.read = said\n"
        "stop = signals.StopRequest().install().watch()\n"
        "stop.training = True\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, signals.HANDLED)\n" + BLOCKED
    )
    process.send_signal(signal.SIGINT)
    assert process.stdout and process.stdout.readline() == "heard\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=PATIENCE) == 128 + signal.SIGINT


@pytest.mark.parametrize(
    ("received", "ends"),
    [
        ([signal.SIGINT, signal.SIGTERM], False),  # Ctrl-C, and then DeepSpeed's launcher asks, too
        ([signal.SIGTERM, signal.SIGINT], False),
        ([signal.SIGTERM, signal.SIGTERM, signal.SIGHUP], False),
        ([signal.SIGINT, signal.SIGTERM, signal.SIGINT], True),
    ],
)
def test_only_a_second_ctrl_c_is_a_second_one(
    received: list[signal.Signals], ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes: list[int] = []
    monkeypatch.setattr(signals.os, "_exit", codes.append)
    stop = signals.StopRequest()
    stop.training = True
    for number in received:
        stop._on_signal(number, None)
    assert stop.requested and stop.name == received[0].name
    assert codes == [130] * ends
    codes.clear()
    # and as the thread that hears of them reads them from its pipe: at once, or one by one
    one_by_one = [bytes([number]) for number in received]
    for chunks in ([bytes(received), b""], [*one_by_one, b""]):
        read = iter(chunks)
        with monkeypatch.context() as patch:
            patch.setattr(signals.os, "read", lambda *_, read=read: next(read))
            stop._listen(0)
    assert codes == [130, 130] * ends


def test_nohup_is_respected() -> None:
    code = (
        "import signal, sys\n"
        "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"  # what nohup leaves its command with
        "from minimind.training.process.signals import StopRequest\n"
        "StopRequest().install()\n"
        "print('ready', flush=True)\n"
        "sys.stdin.read()\n"
    )
    process = start(code)
    process.send_signal(signal.SIGHUP)
    process.communicate(timeout=PATIENCE)  # closes its input
    assert process.returncode == 0


@pytest.mark.skipif(sys.platform != "linux", reason="finds the other ranks in /proc")
def test_the_other_ranks_of_the_launcher_are_told(tmp_path: Path) -> None:
    code = (
        "import time\n"
        "from minimind.training.process.signals import StopRequest\n"
        "StopRequest().install()\n"
        "print('ready', flush=True)\n"
        f"time.sleep({PATIENCE})\n"
    )
    mine = [start(code, RANK=str(rank), MASTER_PORT="1234") for rank in range(2)]
    other = start(code, RANK="0", MASTER_PORT="4321")  # another run's
    mine[0].terminate()
    for process in mine:
        _, errors = process.communicate(timeout=PATIENCE)
        assert "StoppedEarly: SIGTERM" in errors
    assert other.poll() is None
    other.kill()
    other.communicate()
