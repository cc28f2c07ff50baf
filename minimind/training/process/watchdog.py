"""A watchdog: a rank that hangs ends the run, and leaves behind where each of its threads stood.

A collective that waits for a rank that is gone silent does not time out by itself: gloo's wait here is 24 hours, and
NCCL's watchdog is another process group's business. So each rank has a thread that looks at the beats of the others:
``beat(phase)`` says that the calling thread has got on and what it does now; ``rest()`` that it waits for nothing. A
thread without a beat for its limit is a hang: the stacks of all threads go to ``hang/rank-N.txt`` in the run directory,
the other ranks of this machine are told to do the same (SIGUSR1, by hand too: ``kill -USR1 PID``), one line says how
to go on, and the process ends with code 1, hard (``os._exit``): the main thread is in C and hears nothing.

The limit is ten times the longest that the phase has taken between two beats in this run, and never below ten minutes;
``limit`` in the YAML is taken as it is. What the run has not done before may compile, or meet a cold disk: an hour.
Only time that this very thread saw pass counts (attention.py). A lost host is the heartbeat's to notice (heart/).

Not watched: reading and tokenising the data, where a run may rightly wait hours for another one that prepares the same;
the end (wandb has a limit of its own). Known weakness: a thread that keeps Python's lock for ever can't be noticed by
its own process, only by the other ranks; nor do ranks on other machines write their stacks unless they notice by
themselves, which they do at about the same time.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from minimind.base.command_lines import NextLines
from minimind.base.defaults import HANG
from minimind.base.files import append_to, subdirectory
from minimind.config.watchdog import WatchdogConfig
from minimind.training.process.attention import Attention
from minimind.training.process.hang import advice, debugged, say, write_stacks
from minimind.training.process.orphans import siblings
from minimind.training.process.signals import StopRequest, tell

START = "starting"  # building, loading and going back: each time as if for the first time
STEP = "a step"
EVALUATION = "an evaluation"
SAVE = "a save"
WRITE = "writing a checkpoint"  # in the background
EXPORT = "the export"
COMPILES = frozenset({STEP, EVALUATION})  # with torch.compile the first one of each

LEAST = 600.0  # seconds: no limit of our own is below
FACTOR = 10.0  # of the longest so far
LONGEST_PERIOD = 5.0  # seconds from look to look
TELL = signal.SIGUSR1
WRITING = 10.0  # seconds for the stacks: the disk may be what hangs
SETTLE = 2.0  # seconds in which the other ranks write theirs, before a launcher ends them


@dataclass(frozen=True)
class Silence:
    """A thread that has not got on: in which phase, for how many seconds, and how many are allowed."""

    phase: str
    seconds: float
    limit: float


class Pace:
    """Beats by thread, and who is overdue. Pure: the only clock is ``passed``, which the watchdog moves.

    ``compiled``: the first step and the first evaluation compile the model.
    """

    def __init__(self, config: WatchdogConfig) -> None:
        self.compiled = False
        self._config, self._now = config, 0.0
        self._beats: dict[int, tuple[str, float]] = {}  # thread -> what it does, since when
        self._longest: dict[str, float] = {}

    def beat(self, thread: int, phase: str) -> None:
        """The thread has got on, and is at ``phase`` now."""
        self.rest(thread)
        if phase == START:
            self._longest.clear()  # another engine: it compiles again
        self._beats[thread] = (phase, self._now)

    def rest(self, thread: int) -> None:
        """The thread has ended what it did."""
        if (last := self._beats.pop(thread, None)) is not None:
            phase, since = last
            self._longest[phase] = max(self._longest.get(phase, 0.0), self._now - since)

    def passed(self, seconds: float) -> None:
        """So much time was seen to pass."""
        self._now += seconds

    def forgive(self) -> None:
        """Count the silence of all threads from now on."""
        for thread, (phase, _) in list(self._beats.items()):
            self._beats[thread] = (phase, self._now)

    def limit(self, phase: str) -> float:
        """Seconds that the phase may take from beat to beat."""
        first = phase not in self._longest
        given, start = self._config.limit, self._config.start_limit
        if given is not None:
            slow = phase == START or (first and self.compiled and phase in COMPILES)
            return max(given, start) if slow else given
        if phase == START or first:
            return max(LEAST, start)
        return max(LEAST, FACTOR * self._longest[phase])

    def overdue(self) -> Silence | None:
        """The thread that has been silent for the longest beyond its limit."""
        silences = [Silence(phase, self._now - since, self.limit(phase)) for phase, since in list(self._beats.values())]
        late = [silence for silence in silences if silence.seconds > silence.limit]
        return max(late, key=lambda silence: silence.seconds - silence.limit, default=None)


class Watchdog:
    """Watches this process from ``start`` to the end of the ``with`` block; before, or disabled, beats do nothing."""

    def __init__(self) -> None:
        self.step = 0  # the last one that was begun, for the message
        self._pace: Pace | None = None
        self._over = threading.Event()

    def __enter__(self) -> Watchdog:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, config: WatchdogConfig, run_dir: Path, rank: int, stop: StopRequest, lines: NextLines) -> None:
        """Begin to watch. ``stop`` hears what other ranks tell, and of a hang."""
        if not config.enabled:
            return
        self._run_dir, self._rank, self._stop, self._lines = run_dir, rank, stop, lines
        self._pace = Pace(config)
        self._period = min(LONGEST_PERIOD, min(config.limit or LEAST, config.start_limit) / 10)
        self.beat(START)
        stop.hear(TELL, self._told)
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def stop(self) -> None:
        """Watch no more."""
        self._over.set()
        self._pace = None

    def beat(self, phase: str, step: int | None = None) -> None:
        """The calling thread has got on, and is at ``phase`` now, in the run's step ``step``."""
        self.step = self.step if step is None else step
        if (pace := self._pace) is not None:
            pace.beat(threading.get_ident(), phase)

    def rest(self) -> None:
        """The calling thread waits for nothing."""
        if (pace := self._pace) is not None:
            pace.rest(threading.get_ident())

    def expect_compilation(self, compiled: bool) -> None:
        """Whether the first step and the first evaluation compile."""
        if (pace := self._pace) is not None:
            pace.compiled = compiled

    def _watch(self) -> None:
        for seconds in attended(self._period, self._over):
            if (pace := self._pace) is None:
                return
            pace.passed(seconds)
            if (silence := pace.overdue()) is None:
                continue
            if debugged():
                pace.forgive()
            else:
                self._end(silence)

    def _told(self) -> None:
        """Another rank has noticed a hang, and says so on its screen."""
        self._stop.hung = True
        _within(WRITING, lambda: self._write_stacks(f"rank {self._rank}: told of a hang in step {self.step}"))
        time.sleep(SETTLE)
        os._exit(1)

    def _end(self, silence: Silence) -> None:
        self._stop.hung = True
        _within(WRITING, lambda: self._report(silence))
        time.sleep(SETTLE)
        os._exit(1)

    def _report(self, silence: Silence) -> None:
        what = (
            f"rank {self._rank}: no progress in {silence.phase} for {silence.seconds:.0f} s "
            f"(limit {silence.limit:.0f} s), step {self.step:,}"
        )
        tell(siblings(), TELL)
        where = self._write_stacks(what)
        say(f"error: {what}; where each thread stands: {where}; {advice(self._run_dir, self._lines)}")

    def _write_stacks(self, head: str) -> str:
        """Add the stacks of all threads to this rank's file; where they are, in words."""
        path = self._run_dir / HANG / f"rank-{self._rank}.txt"
        try:
            with append_to(subdirectory(self._run_dir, HANG) / path.name) as file:
                write_stacks(file.fileno(), head)
        except OSError as error:
            write_stacks(2, head)
            return f"above ({path} can't be written: {error.strerror})"
        return str(path)


def attended(period: float, over: threading.Event, clock: Callable[[], float] = time.monotonic) -> Iterator[float]:
    """Seconds that passed from look to look, one about every ``period`` until ``over``; at most two periods each."""
    attention = Attention(period, clock)
    while not over.wait(period):
        yield attention.passed()


def _within(seconds: float, work: Callable[[], object]) -> None:
    """Do ``work``, but wait no longer than that for it."""
    thread = threading.Thread(target=work, name="stacks", daemon=True)
    thread.start()
    thread.join(seconds)
