"""How often a run evaluates and saves when nobody says so: each for at most 2% of its time.

Evaluations decide which checkpoint is the best one, and a resumed run must evaluate at the same steps; so they are
planned from sizes alone, which are the same on every machine. Saves change no number of training, so a clock may
decide: rank 0's, whose decision the other ranks learn in the exchange that every step has (step.py).

Known weakness: what can't be left out is not counted against the 2%: the checkpoint at the end, at a stop and of every
best evaluation. How long a save takes is known only after the first one. A rollback goes to the last checkpoint before
the trouble, and which one that is depends on the clock too, unless ``save_steps`` is given.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

USUAL = 10  # saves and evaluations a run ...
LONGEST_STEPS = 1000  # ... but no further apart than this
SHARE = 0.02  # of a run's time, for saves and for evaluations
FORWARD = 1 / 3  # what a position costs to evaluate, of what it costs to train on
LONGEST_SECONDS = 600.0  # of training that a machine may lose when it dies
FIRST_HOLD_UP = 1.0  # seconds that the first save is taken to hold training up; 26M on a CPU: 0.1


def usual_steps(total_steps: int) -> int:
    """Steps from one save or evaluation to the next, if they cost nothing."""
    return min(LONGEST_STEPS, math.ceil(total_steps / USUAL))


def evaluation_steps(total_steps: int, step_positions: int, held_out_positions: int) -> int:
    """Steps from one evaluation to the next: the usual number, or so many that all of them cost at most ``SHARE``.

    ``step_positions``: rows of an optimizer step on all ranks times their length. ``held_out_positions``: predictions
    of the held-out file. At least one evaluation, at the end, whatever it costs.
    """
    budget = SHARE * total_steps * step_positions
    affordable = math.floor(budget / (FORWARD * max(held_out_positions, 1)))
    return max(usual_steps(total_steps), math.ceil(total_steps / max(affordable, 1)))


def evaluation_cost(step_positions: int, held_out_positions: int) -> float:
    """What one evaluation takes, in optimizer steps of ``step_positions``."""
    return FORWARD * held_out_positions / step_positions


def evaluation_remark(total_steps: int, every: int) -> str | None:
    """How often a run evaluates and why; None if it is the usual ten times."""
    if every == math.ceil(total_steps / USUAL):
        return None
    count = math.ceil(total_steps / every)
    often = "once, at the end" if count == 1 else f"{count:,} times, every {every:,} steps"
    too_dear = f"more would cost over {SHARE:.0%} of the training"
    return f"evaluated {often}: {too_dear if every > usual_steps(total_steps) else 'never further apart'}"


class SaveClock:
    """When a periodic checkpoint is due. Used on every rank, asked on rank 0. ``clock``: seconds, never back."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._hold_up = clock, FIRST_HOLD_UP
        self.restart()

    def restart(self) -> None:
        """Training begins, begins again or goes on from a checkpoint: there is nothing to lose yet."""
        self._last = self._clock()

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Around a save of any kind: how long training waits for it, and when it was."""
        began = self._clock()
        yield
        self._last = self._clock()
        self._hold_up = self._last - began

    def due(self, planned: bool, writing: bool) -> bool:
        """Whether to save after the step that begins now. ``planned``: it is one of the outer plan's.

        Not before training has gone on for 1 / ``SHARE`` times as long as the last save held it up, and not while
        that one is still being written (the next would wait for it); else as planned, and after ten minutes anyway.
        """
        since = self._clock() - self._last
        if writing or since * SHARE < self._hold_up:
            return False
        return planned or since > LONGEST_SECONDS
