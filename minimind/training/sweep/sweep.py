"""`launch/lr_sweep.py`: short runs at several learning rates, or one run whose rate rises, and a recommendation.

Every run starts from the same weights (the seed's, or those of the YAML's ``model_name_or_path``) and trains on the
same steps' data through the trainer's own engine and step, so curves differ by the rate alone. A sweep warms up over a
tenth of its steps and then holds the rate; a `scheduler` section of the JSON is left out. For Muon the rate is its
AdamW part's (``adam_lr``, else ``lr``), and ``muon_lr`` moves with it by the JSON's ratio.
Weakness: each step's loss is read from the device at once, which on a fast GPU costs some speed.
"""

from __future__ import annotations

import argparse
import gc
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path

from minimind.base.command_lines import NextLines
from minimind.base.display import console
from minimind.base.errors import UserError
from minimind.base.findings import Finding
from minimind.data.store.batches import Batches, prefetch
from minimind.training.engine.schedule import Schedule
from minimind.training.engine.step import train_step
from minimind.training.process.ending import exit_with
from minimind.training.process.heart.heartbeat import Agreement, Heartbeat
from minimind.training.process.run_lock import RunLock
from minimind.training.process.signals import StopRequest
from minimind.training.run import setup
from minimind.training.run.builder import build_engine
from minimind.training.run.directory import write_run_files
from minimind.training.run.next_commands import in_words
from minimind.training.run.task import Task, join
from minimind.training.sweep.curves import Curve, judge, recommend, recommend_from_range
from minimind.training.sweep.options import choose_rates, parse, with_rate
from minimind.training.sweep.report import Outcome, report

DEFAULT_OUTPUT = Path("runs/lr_sweep")  # the training run's own default would mix the two
SWEEP_STEPS, RANGE_STEPS = 50, 100
MAX_RISE = 1.5  # a range test ends when the loss is this many times the first one


def main(argv: list[str] | None = None, stop: StopRequest | None = None) -> None:
    """Run ``launch/lr_sweep.py`` and exit: 0 with a recommendation, 1 without one, 2 used wrongly."""
    arguments = parse(argv)
    stop = stop or StopRequest().install()
    exit_with(lambda: run(arguments, stop), arguments.debug, stop)


def run(arguments: argparse.Namespace, stop: StopRequest | None = None) -> int:
    """Configure, prepare, train, judge, report; the exit code."""
    rates, stop = choose_rates(arguments), stop or StopRequest().install()
    with RunLock() as lock, Heartbeat() as heartbeat:
        bench = make_bench(arguments, stop, lock, heartbeat)
        stop.training = True
        curves = range_test(bench, *rates) if arguments.range_test else sweep(bench, rates)
        if not curves:
            bench.say("stopped before the first run was over: nothing to report")
            return 0
        verdicts = [] if arguments.range_test else judge(curves)
        chosen = recommend(verdicts) if verdicts else recommend_from_range(*curves)
        if bench.first:
            report(Outcome(bench.task, bench.steps, curves, verdicts, chosen=chosen))
        return 1 if chosen.rate is None else 0


@dataclass(frozen=True)
class Bench:
    """What all runs share. ``first``: this process is rank 0, the one that prints and writes."""

    task: Task
    batches: Batches
    steps: int
    stop: StopRequest
    first: bool

    def say(self, text: str) -> None:
        """Print on rank 0."""
        if self.first:
            console().print(text, soft_wrap=True)


def make_bench(arguments: argparse.Namespace, stop: StopRequest, lock: RunLock, heartbeat: Heartbeat) -> Bench:
    """From the command line to data and batches, as for pretraining; takes the lock. Raises UserError."""
    task, control, beating = join("pretrain", arguments, lambda *ranks: start_heartbeat(heartbeat, stop, *ranks))
    if task.config.commanded("learning_rate"):
        raise UserError(f"{task.config.place('learning_rate')}: a sweep sets the rates itself: leave it out")
    output = task.config.output_dir if "output_dir" in task.config.explicit else DEFAULT_OUTPUT
    config = task.config.model_copy(update={"output_dir": output, "eval_file": []})  # nothing is evaluated here
    notes = beating + control.first_does(lambda: lock.take(output))
    data = setup.prepare_data(control, "pretrain", config)
    control.first_does(lambda: write_run_files(output, config, task.resolved.config, task.hardware, data.tokenizer))
    batches = setup.make_batches(data, config, task.resolved)
    steps = arguments.steps or (RANGE_STEPS if arguments.range_test else SWEEP_STEPS)
    bench = Bench(replace(task, config=config), batches, steps, stop, first=control.rank == 0)
    for finding in [*task.resolved.findings, *task.remarks, *notes]:
        if finding.code != "scheduler-deepspeed":
            bench.say(f"! {finding.code}: {finding.message}")
    if scheduler := task.resolved.scheduler:
        bench.say(f"! scheduler-ignored: the JSON's {scheduler['type']} is left out of these runs")
    return bench


def start_heartbeat(heartbeat: Heartbeat, stop: StopRequest, ranks: Agreement, task: Task) -> list[Finding]:
    """Watch the other ranks, and be watched. Nothing of a sweep is kept to go on from."""
    again = in_words(task.command, task.command.line(script="lr_sweep"))
    return heartbeat.start(task.config.heartbeat, ranks, stop, None, NextLines(again, again))


def sweep(bench: Bench, rates: Sequence[float]) -> list[Curve]:
    """One short run a rate; those that were over when a stop was asked for."""
    warmup = Schedule("constant", bench.steps, max(1, bench.steps // 10), 1.0)
    curves: list[Curve] = []
    for rate in rates:
        began = time.monotonic()
        curve = train_at(bench, rate, warmup.factor, lambda losses: not math.isfinite(losses[-1]))
        if curve is None:
            break
        curves.append(curve)
        trained = f"{len(curve.losses)} steps, {time.monotonic() - began:.0f}s"
        bench.say(f"rate {rate:.3g}: loss {curve.losses[0]:.3f} -> {curve.losses[-1]:.3f}, {trained}")
    return curves


def range_test(bench: Bench, low: float, high: float) -> list[Curve]:
    """One run from ``low`` to ``high``; none if a stop was asked for. It ends early when the loss has blown up."""
    factor = rising(low, high, bench.steps)
    curve = train_at(bench, high, factor, lambda losses: not losses[-1] <= MAX_RISE * losses[0])  # NaN too
    if curve is None:
        return []
    applied_before = accumulate(curve.applied[:-1], initial=0)  # as the schedule counts
    return [replace(curve, rates=tuple(high * factor(step) for step in applied_before))]


def rising(low: float, high: float, steps: int) -> Callable[[int], float]:
    """The share of ``high`` at an applied step: from ``low`` at step 0 by equal factors to ``high`` at the last."""
    return lambda step: (low / high) ** (1.0 - min(step / (steps - 1), 1.0))


def train_at(
    bench: Bench, rate: float, factor: Callable[[int], float], over: Callable[[Sequence[float]], bool]
) -> Curve | None:
    """Train a fresh model at peak ``rate`` on the first steps' data; None if a stop was asked for.

    Ends early when ``over`` says so of the losses so far, which are equal on all ranks, or when fp16 is exhausted.
    """
    resolved = with_rate(bench.task.resolved, rate)
    engine = build_engine(bench.task.new_model(resolved), resolved, factor, bench.task.config, bench.steps)
    steps = (bench.batches.micro_batches(step, engine.rank) for step in range(bench.steps))
    losses: list[float] = []
    applied: list[bool] = []
    try:
        for micro_batches in prefetch(steps, depth=2):
            result = train_step(engine, micro_batches, bench.stop.requested)
            losses.append(engine.sum_over_ranks([float(result.loss_sum)])[0] / max(result.tokens, 1))
            applied.append(result.update.applied)
            if result.stop:
                return None
            if result.update.exhausted or over(losses):
                break
    finally:
        engine.close()
        del engine, steps
        gc.collect()  # the engine refers to itself; the next one needs its memory
    return Curve(rate, tuple(losses), tuple(applied))
