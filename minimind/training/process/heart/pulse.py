"""The pulse: the process beside a rank that beats for it, hears who is lost, and then ends the rank.

``python -m minimind.training.process.heart.pulse``, started by heartbeat.py, which writes lines of JSON to its stdin:
first the ``Orders``, then ``{"saved": [STEP, PATH]}`` and at last ``{"ended": CODE}``. On stdout it says ``{"port":
N}`` (rank 0's), ``{"met": true}`` once rank 0 has answered, and ``{"lost": {...}}``. It lives hardly longer than its
rank, and hears no request to stop: those are the rank's. Nothing heavy is imported here.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from minimind.base.display import complain
from minimind.training.checkpoint.directory import Checkpoint, directories
from minimind.training.process.attention import Attention
from minimind.training.process.heart.beats import Frame, Word
from minimind.training.process.heart.caller import Caller
from minimind.training.process.heart.listener import Listener
from minimind.training.process.heart.living import Inbox, Rank
from minimind.training.process.heart.loss import EARLY, sentence
from minimind.training.process.heart.roll import GRACE, Roll

TICK = 0.5  # seconds from look to look, if nothing happens before
LAST_WORDS = 5.0  # seconds for telling the others that the rank has ended


@dataclass(frozen=True)
class Orders:
    """What a pulse is told at its start."""

    rank: int
    hosts: list[str]  # by rank
    address: str  # of rank 0's pulse
    port: int  # 0: this is rank 0's, which takes a free one
    key: str  # the run's, in hexadecimal
    limit: float  # seconds
    speaks: bool  # says what is lost, for its host
    run_dir: str  # empty: it keeps no checkpoints
    go_on: str  # from a checkpoint: "with: ", and the command
    again: str  # without one


class Pulse:
    """What the pulses of all ranks have in common. ``over``: there is no more to watch."""

    def __init__(self, orders: Orders) -> None:
        self.orders = orders
        self.selector = selectors.DefaultSelector()
        self.rank, self.inbox = Rank(os.getppid()), Inbox(sys.stdin.fileno())
        self.saved: Checkpoint | None = None  # the last complete one that the rank knows
        self.kind, self.code = Word.ALIVE, 0  # of the rank
        self._attention, self._after = Attention(TICK), 0.0
        self.selector.register(sys.stdin, selectors.EVENT_READ, self._hear)

    def run(self) -> None:
        """Until it is over or somebody is lost."""
        while True:
            for key, _ in self.selector.select(TICK):
                key.data()
            seconds = self._attention.passed()
            self._look(seconds)
            over = self.turn(seconds)
            if (loss := self.lost()) is not None:
                self.spread(loss)
                self._end(loss)
                return
            if over or self._after > LAST_WORDS + GRACE:
                return

    def turn(self, seconds: float) -> bool:
        """Do what is due; whether it is over."""
        raise NotImplementedError

    def lost(self) -> Frame | None:
        """Who is lost, as far as this pulse knows."""
        raise NotImplementedError

    def spread(self, loss: Frame) -> None:
        """Tell the others."""

    def settle(self) -> None:
        """Wait for what must have happened before the rank is woken."""

    def _hear(self) -> None:
        for message in self.inbox.read():
            if "saved" in message:
                step, path = message["saved"] or (0, "")
                self.saved = Checkpoint(Path(path), step) if path else None
            if "ended" in message:
                self.kind, self.code = Word.ENDED, message["ended"]
        if self.inbox.closed:
            self.selector.unregister(sys.stdin)
            self._leave()

    def _look(self, seconds: float) -> None:
        if self.kind in (Word.ENDED, Word.GONE):
            self._after += seconds
        elif (state := self.rank.state()) is Word.GONE:
            self._leave()
        else:
            self.kind = state

    def _leave(self) -> None:
        """The rank is there no more."""
        self.kind = self.kind if self.kind is Word.ENDED else Word.GONE

    def _end(self, loss: Frame) -> None:
        if self.kind is Word.ENDED:
            return  # it has said why
        orders, early = self.orders, loss.kind is Word.ENDED and loss.detail == EARLY
        if orders.speaks:
            prefix = "" if early else "error: "
            complain(prefix + sentence(loss, orders.hosts) + ("" if early else f"; {self._advice()}"))
        answer({"lost": 0 if early else 1, "woken": self.kind is Word.STOPPED})
        self.settle()
        self.rank.end()

    def last(self) -> tuple[Checkpoint | None, bool]:
        """The run's last complete checkpoint, and whether there can be no later one."""
        return self.saved, True

    def _advice(self) -> str:
        orders = self.orders
        if not orders.run_dir:
            return f"start again {orders.again}"
        saved, certain = self.last()
        if saved is None:
            return f"no checkpoint of this start is complete yet: start again {orders.again}"
        return f"the last complete checkpoint{'' if certain else ' known here'} is {saved.path}; go on {orders.go_on}"


class FirstPulse(Pulse):
    """Rank 0's: hears the others."""

    def __init__(self, orders: Orders) -> None:
        super().__init__(orders)
        key, ranks = bytes.fromhex(orders.key), len(orders.hosts)
        self.roll = Roll(ranks, orders.limit)
        self.listener = Listener(self.selector, (orders.address, 0), key, ranks)
        self.listener.heard, self.listener.closed = self._heard, self.roll.closed
        answer({"port": self.listener.port})

    def turn(self, seconds: float) -> bool:
        self.listener.passed(seconds)
        self.roll.passed(seconds)
        self.roll.heard(Frame(self.kind, 0, detail=self.code))
        if self.kind is Word.ENDED and (not self.code or self.roll.over()):
            self.listener.tell(Frame(Word.OVER, 0, saved=self._step))
            return True
        return False

    def lost(self) -> Frame | None:
        return self.roll.lost()

    def spread(self, loss: Frame) -> None:
        self.listener.tell(replace(loss, saved=self._step))

    def _heard(self, beat: Frame) -> Frame:
        self.roll.heard(beat)
        return replace(self.roll.lost() or Frame(Word.FINE, beat.rank), saved=self._step)

    @property
    def _step(self) -> int:
        return self.saved.step if self.saved is not None else 0


class OtherPulse(Pulse):
    """Another rank's: calls rank 0's."""

    def __init__(self, orders: Orders) -> None:
        super().__init__(orders)
        address = (orders.address, orders.port)
        self.caller = Caller(self.selector, address, bytes.fromhex(orders.key), orders.rank, orders.limit)
        self._met = False

    def turn(self, seconds: float) -> bool:
        self.caller.beat(self.kind, self.code)
        self.caller.passed(seconds)
        if self.caller.met and not self._met:
            self._met = True
            answer({"met": True})
        return self.caller.over or self.caller.told in (Word.ENDED, Word.GONE)

    def lost(self) -> Frame | None:
        return self.caller.lost

    def settle(self) -> None:
        """A rank that was stopped is woken once rank 0 has ended: together they would complete another checkpoint than
        the one that has been named."""
        end = time.monotonic() + LAST_WORDS
        while self.kind is Word.STOPPED and self.caller.connected and time.monotonic() < end:
            for key, _ in self.selector.select(TICK):
                key.data()

    def last(self) -> tuple[Checkpoint | None, bool]:
        """A rank that was stopped, or cut off, may not have learned of one that is complete: rank 0's pulse has."""
        step, saved = self.caller.saved, self.saved
        if step > (saved.step if saved is not None else 0):
            saved = Checkpoint(directories(Path(self.orders.run_dir), step)[1], step)
        return saved, self.caller.certain


def answer(message: dict[str, Any]) -> None:
    """One line to the rank, which may be gone."""
    try:
        os.write(sys.stdout.fileno(), (json.dumps(message) + "\n").encode())
    except OSError:
        return


def main() -> None:
    """Beat until it is over."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with open(sys.stdin.fileno(), "rb", buffering=0, closefd=False) as lines:
        orders = Orders(**json.loads(lines.readline()))
    (OtherPulse if orders.port else FirstPulse)(orders).run()


if __name__ == "__main__":
    main()
