"""`minimind launch`: the `deepspeed` command, with stops and exit codes that can be relied upon. Linux, one machine.

What DeepSpeed 0.19.8's own launcher does (launcher/runner.py -> launcher/launch.py -> ranks): SIGTERM or SIGHUP kill
the runner; Ctrl-C ends it with a traceback while the ranks still write their checkpoint, and launch.py
exits with 1 after every SIGTERM or SIGINT, whatever its ranks say; SIGKILL on launch.py makes the runner exit with 0.

Here the launcher runs in a session of its own with SIGINT, SIGTERM and SIGHUP blocked. The mask is inherited, so these
signals stay pending in runner and launch.py, where they are seen from outside (/proc/PID/status) and handed on to the
ranks; a rank unblocks them when it can handle them (signals.py). Everything then ends by itself, from the ranks up,
with the ranks' exit code. As a subreaper (prctl(2)) this process adopts what loses its parent, so it ends last: after
launch.py and the ranks, which it has seen below the runner. What a rank leaves behind (wandb's service) is neither
waited for nor counted.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

from minimind.base.display import complain
from minimind.base.errors import UserError
from minimind.base.launcher import find_launcher
from minimind.commands.launcher.restarts import may_restart, taken_from
from minimind.commands.launcher.words import prepared
from minimind.training.process.orphans import PR_SET_PDEATHSIG, children, prctl, started_with
from minimind.training.process.signals import HANDLED, take_over, tell
from minimind.training.process.starter.typed_line import hand_on

PR_SET_CHILD_SUBREAPER = 36  # <sys/prctl.h>
ALIVE = "-oServerAliveInterval=15 -oServerAliveCountMax=3"  # ssh's own options
SSH_LOST = 255  # ssh's own exit code, which pdsh hands on: a host is gone, and what its ranks said with it
PERIOD = 0.5  # seconds between looks at the launcher's pending signals


def launch(words: Sequence[str]) -> int:
    """Run ``deepspeed WORDS``, again up to ``--restarts`` times (commands/launcher/restarts.py); the exit code.

    0: finished, or stopped as asked. 130: ended at once by a second Ctrl-C. 128 + n: the runner was killed by signal n.
    1: launch.py was killed, or the ssh to a host has ended with it. Otherwise the code of the first rank that failed
    (247: it was killed). Raises UserError outside Linux, without a launcher, and for words that can't work here
    (commands/launcher/words.py).
    """
    if sys.platform != "linux":
        raise UserError("`minimind launch` needs Linux; start with `deepspeed` itself")
    restarts, first = taken_from(words)
    hand_on(words, os.environ)
    if not restarts:
        return launch_once(first.words)[0]
    run_dir, next_one = first.run_dir, first
    for number in range(1, restarts + 1):
        began = time.time()
        code, asked = launch_once(next_one.words)
        if asked or not may_restart(code, run_dir, began):
            return code
        next_one = first.again(run_dir, f"start {number + 1} of at most {restarts + 1}, after exit code {code}")
        complain(f"starting again: {next_one.words[-1]}")
    return launch_once(next_one.words)[0]


def launch_once(words: Sequence[str]) -> tuple[int, bool]:
    """Run ``deepspeed WORDS``; the exit code, and whether somebody asked for the stop."""
    launcher, words = find_launcher(), prepared(words)
    keep_ssh_alive()
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    command = [sys.executable, "-m", "minimind.commands.launcher.runner", str(launcher), *words]
    runner = subprocess.Popen(command, start_new_session=True, preexec_fn=_before_runner)
    supervisor = Supervisor(runner)
    return supervisor.wait(), supervisor.asked


def keep_ssh_alive() -> None:
    """pdsh waits for each host's ssh, and that one for ever for a host that has gone without a word."""
    given = os.environ.get("PDSH_SSH_ARGS_APPEND", "")
    if "ServerAlive" not in given:
        os.environ["PDSH_SSH_ARGS_APPEND"] = f"{given} {ALIVE}".strip()


def _before_runner() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # the ranks notice, and stop as asked


class Supervisor:
    """Hands stops on to the ranks and waits for everything below it to end."""

    def __init__(self, runner: subprocess.Popen[bytes]) -> None:
        self.runner = runner
        self.told: set[int] = set()  # ranks that were asked to stop
        self.started: set[int] = set()  # launch.py and the ranks, once seen
        self.asked = self.killed = False
        self._interrupts = 0
        take_over(self._on_signal)

    def wait(self) -> int:
        """The exit code, once nothing below is left."""
        while (code := self._poll()) is None:
            self._look()
            if self.asked or any(map(has_pending_stop, self._launchers())):
                self.stop()
        orphans = self._outlived()
        if self.killed:
            return 0 if self._interrupts < 2 else 128 + signal.SIGINT
        if code == 0 and orphans:
            complain("error: launch.py was killed; the ranks have stopped")
            return 1
        if code == SSH_LOST:
            return 1
        return 128 - code if code < 0 else code

    def stop(self) -> None:
        """Ask every rank once. With no rank yet there is nothing to save."""
        self.asked = True
        ranks = set(self._ranks())
        if not ranks and not self.told:
            complain("stopped before any rank was started")
            self.kill()
        tell(sorted(ranks - self.told))
        self.told |= ranks

    def kill(self) -> None:
        """End the whole session at once."""
        self.killed = True
        try:
            os.killpg(self.runner.pid, signal.SIGKILL)
        except ProcessLookupError:
            return

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._interrupts += number == signal.SIGINT
        if self._interrupts > 1:
            self.kill()
        self.asked = True  # `wait` looks at it: a handler does as little as it can

    def _poll(self) -> int | None:
        try:
            return self.runner.wait(PERIOD)
        except subprocess.TimeoutExpired:
            return None

    def _look(self) -> None:
        """Remember who is below the runner now. launch.py is there for seconds before its ranks, so none is missed
        unless launch.py is killed within ``PERIOD`` of starting it."""
        self.started |= {*children(self.runner.pid), *self._ranks()}

    def _outlived(self) -> int:
        """Wait for what the launcher has started and that has lost its parent; how many there were."""
        count = 0
        while mine := self.started & set(children(os.getpid())):
            for pid in mine:
                self.started |= set(_ranks_below(pid))  # launch.py goes on for a moment when the runner is killed
                if os.waitpid(pid, os.WNOHANG)[0]:
                    count += 1
                    self.started.discard(pid)
            time.sleep(PERIOD / 5)
        return count

    def _launchers(self) -> Iterator[int]:
        yield self.runner.pid
        yield from children(self.runner.pid)

    def _ranks(self) -> Iterator[int]:
        for launcher in children(self.runner.pid):
            yield from _ranks_below(launcher)


def _ranks_below(launcher: int) -> Iterator[int]:
    for pid in children(launcher):
        if any(pair.startswith(b"RANK=") for pair in started_with(pid)):
            yield pid


def has_pending_stop(pid: int) -> bool:
    """Whether a blocked SIGINT, SIGTERM or SIGHUP waits for the process (proc(5): ShdPnd is a mask in hexadecimal)."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return False
    masks = [int(line.split()[1], 16) for line in lines if line.startswith(("SigPnd:", "ShdPnd:"))]
    return any(mask >> (number - 1) & 1 for mask in masks for number in HANDLED)
