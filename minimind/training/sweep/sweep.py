"""`launch/lr_sweep.py`: short runs at several learning rates, or one run whose rate rises, and a recommendation.

Every run starts from the same initialisation (the seed's) and trains on the same steps' data through the trainer's own
engine and step, so curves differ by the rate alone. A sweep warms up over a tenth of its steps and then holds the rate;
a `scheduler` section of the JSON is left out. For Muon the rate is its AdamW part's (``adam_lr``, else ``lr``), and
``muon_lr`` moves with it by the JSON's ratio.
Weakness: each step's loss is read from the device at once, which on a fast GPU costs some speed.
"""

from __future__ import annotations

import argparse
import gc
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from minimind.base.command_lines import OwnCommand
from minimind.base.display import console
from minimind.base.errors import UserError
from minimind.base.hardware import Hardware, detect
from minimind.config.deepspeed import Resolved, resolve
from minimind.config.deepspeed.source import JsonSource, chosen_source, read_source
from minimind.config.run import RunConfig, load_run_config
from minimind.data.store.batches import Batches, prefetch
from minimind.training.engine.engine import start_processes
from minimind.training.engine.schedule import Schedule
from minimind.training.engine.step import train_step
from minimind.training.health.lr_bands import usual_band
from minimind.training.process.ending import exit_with
from minimind.training.process.ranks import Control
from minimind.training.process.run_lock import RunLock
from minimind.training.process.signals import StopRequest
from minimind.training.record.recorder import Progress, Recorder
from minimind.training.run import builder, setup
from minimind.training.run.arguments import config_options, own_command
from minimind.training.run.directory import write_run_files
from minimind.training.run.requirements import require
from minimind.training.sweep.curves import Curve, judge, recommend, recommend_from_range
from minimind.training.sweep.options import SWEEP_ONLY, WHICH_RATES, choose_rates, parse, rates_at, with_rate
from minimind.training.sweep.report import Outcome, report
from minimind.training.values import StepMetrics

DEFAULT_OUTPUT = Path("runs/lr_sweep")  # the training run's own default would mix the two
SWEEP_STEPS, RANGE_STEPS = 50, 100
MAX_RISE = 1.5  # a range test ends when the loss is this many times the first one


def main(argv: list[str] | None = None, stop: StopRequest | None = None) -> None:
    """Run ``launch/lr_sweep.py`` and exit: 0 with a recommendation, 1 without one, 2 used wrongly."""
    arguments = parse(argv)
    stop = stop or StopRequest().install()
    exit_with(lambda: run(arguments, stop), arguments.debug, stop)


def run(arguments: argparse.Namespace, stop: StopRequest | None = None) -> int:
    """Configure, prepare, run, judge, report."""
    with RunLock() as lock:
        return _run(arguments, stop or StopRequest().install(), lock)


def _run(arguments: argparse.Namespace, stop: StopRequest, lock: RunLock) -> int:
    """``lock``: to be taken, and held until this returns."""
    rates = choose_rates(arguments)
    bench = make_bench(arguments, stop, lock)
    stop.training = True
    if arguments.range_test:
        curves, name = range_test(bench, rates[0], rates[-1]), "lr_range_test"
    else:
        curves, name = sweep(bench, rates), "lr_sweep"
    if not curves:
        bench.say("stopped before the first run was over: nothing to report")
        return 0
    outcome = conclude(bench, name, curves)
    if bench.first:
        report(outcome, bench.config.output_dir, bench.console)
    return 0 if outcome.recommendation.rate is not None else 1


@dataclass(frozen=True)
class Bench:
    """What all runs share. ``values``: the JSON as given; ``base``: the same, resolved."""

    config: RunConfig
    hardware: Hardware
    values: Mapping[str, Any]
    base: Resolved
    batches: Batches
    stop: StopRequest
    steps: int
    first: bool  # this process is rank 0, the one that prints and writes
    console: Console
    command: OwnCommand

    def resolved_at(self, rate: float) -> Resolved:
        """The configuration with the JSON's rate replaced (the YAML's, which must equal it, is left out)."""
        edited = with_rate(self.values, self.base.optimizer.params, rate)
        return _resolve(edited, self.config.model_copy(update={"learning_rate": None}), self.hardware)

    def say(self, text: str) -> None:
        """Print on rank 0."""
        if self.first:
            self.console.print(text, markup=False, highlight=False, soft_wrap=True)


def make_bench(arguments: argparse.Namespace, stop: StopRequest, lock: RunLock) -> Bench:
    """From the command line to data and batches, as for pretraining. Raises UserError."""
    config = load_run_config(arguments.config, arguments.set, config_options(arguments))
    if config.commanded("learning_rate"):
        raise UserError(f"{config.place('learning_rate')}: a sweep sets the rates itself: leave it out")
    output = config.output_dir if "output_dir" in config.explicit else DEFAULT_OUTPUT
    config = config.model_copy(update={"output_dir": output, "eval_file": []})  # nothing is evaluated here
    hardware = detect()
    source = chosen_source(arguments.deepspeed_config, config)
    base = _resolve(source, config, hardware, arguments.strict)  # the file itself: errors name its lines
    values = read_source(source).values
    remarks = require(base, config, hardware)
    start_processes(config.emulate_fp16)
    control = Control()
    notes = control.first_does(lambda: lock.take(config.output_dir))
    data = setup.prepare_data(control, "pretrain", config)
    control.first_does(lambda: write_run_files(config.output_dir, config, base.config, hardware, data.tokenizer))
    batches = setup.make_batches(data, config, base)
    steps = arguments.steps or (RANGE_STEPS if arguments.range_test else SWEEP_STEPS)
    bench = Bench(
        config,
        hardware,
        values,
        base=base,
        batches=batches,
        stop=stop,
        steps=steps,
        first=control.rank == 0,
        console=console(),
        command=own_command("lr_sweep", arguments, base.world_size, hardware),
    )
    for finding in [*base.findings, *remarks, *notes]:
        if finding.code != "scheduler-deepspeed":
            bench.say(f"! {finding.code}: {finding.message}")
    if base.scheduler is not None:
        bench.say(f"! scheduler-ignored: the JSON's {base.scheduler['type']} is left out of these runs")
    return bench


def _resolve(
    source: str | Path | Mapping[str, Any] | JsonSource, config: RunConfig, hardware: Hardware, strict: bool = False
) -> Resolved:
    return resolve(
        source,
        config,
        int(os.environ.get("WORLD_SIZE", "1")),
        hardware,
        emulate_fp16=config.emulate_fp16,
        num_parameters=config.model.num_parameters(),
        strict=strict,
    )


def sweep(bench: Bench, rates: Sequence[float]) -> list[Curve]:
    """One short run a rate; those that were over when a stop was asked for."""
    schedule = Schedule("constant", bench.steps, max(1, bench.steps // 10), 1.0)
    curves: list[Curve] = []
    for rate in rates:
        began = time.monotonic()
        records = train_at(bench, rate, schedule.factor, lambda records: not math.isfinite(records[-1].loss))
        if records is None:
            break
        losses = [record.loss for record in records]
        curves.append(Curve(rate, tuple(losses), tuple(record.applied for record in records)))
        seconds = time.monotonic() - began
        bench.say(f"rate {rate:.3g}: loss {losses[0]:.3f} -> {losses[-1]:.3f}, {len(losses)} steps, {seconds:.0f}s")
    return curves


def range_test(bench: Bench, low: float, high: float) -> list[Curve]:
    """One run from ``low`` to ``high``; none if a stop was asked for. It ends early when the loss has blown up."""
    factor = rising(low, high, bench.steps)

    def blown_up(records: Sequence[StepMetrics]) -> bool:
        return not records[-1].loss <= MAX_RISE * records[0].loss  # NaN too

    records = train_at(bench, high, factor, blown_up)
    if records is None:
        return []
    # The rate by applied steps, as the schedule counts; StepMetrics.lr is the first group's, for Muon not this one.
    applied_before = [record.step - 1 - (record.skipped - (not record.applied)) for record in records]
    return [
        Curve(
            high,
            tuple(record.loss for record in records),
            tuple(record.applied for record in records),
            tuple(high * factor(step) for step in applied_before),
        )
    ]


def rising(low: float, high: float, steps: int) -> Callable[[int], float]:
    """The share of ``high`` at an applied step: from ``low`` at step 0 by equal factors to ``high`` at the last."""
    return lambda step: (low / high) ** (1.0 - min(step / (steps - 1), 1.0))


def train_at(
    bench: Bench, rate: float, factor: Callable[[int], float], over: Callable[[Sequence[StepMetrics]], bool]
) -> list[StepMetrics] | None:
    """Train a fresh model at peak ``rate`` on the first steps' data; None if a stop was asked for.

    Ends early when ``over`` says so of the records so far, which are equal on all ranks, or when fp16 is exhausted.
    """
    resolved = bench.resolved_at(rate)
    model = builder.new_model(bench.config, resolved)
    engine = builder.build_engine(model, resolved, factor, bench.config, bench.steps)
    records: list[StepMetrics] = []
    recorder = Recorder(records.append, engine.sum_over_ranks, bench.batches.steps_per_epoch)
    progress = Progress()
    try:
        for micro_batches in prefetch(
            (bench.batches.micro_batches(step, engine.rank) for step in range(bench.steps)), depth=2
        ):
            result = train_step(engine, micro_batches, bench.stop.requested)
            progress.advance(result)
            recorder.add(result, progress)
            recorder.flush()
            if result.stop:
                return None
            if result.update.exhausted or over(records):
                break
    finally:
        engine.close()
        del engine, recorder
        gc.collect()  # the engine refers to itself; the next one needs its memory
    return records


def conclude(bench: Bench, name: str, curves: Sequence[Curve]) -> Outcome:
    """Verdicts, recommendation and everything that the report says."""
    verdicts = judge(curves) if name == "lr_sweep" else []
    chosen = recommend(verdicts) if verdicts else recommend_from_range(curves[0])
    optimizer, model = bench.base.optimizer, bench.config.model
    settings = rates_at(optimizer.params, chosen.rate) if chosen.rate is not None else {}
    about = {
        "deepspeed_config": bench.base.source,
        "optimizer": optimizer.type,
        "precision": bench.base.precision,
        "parameters": model.num_parameters(),
        "rows_per_step": bench.base.train_batch_size,
        "row_length": bench.config.max_seq_length,
        "steps": bench.steps,
        "seed": bench.config.seed,
    }
    band = usual_band(model.num_parameters(), optimizer.type)
    return Outcome(
        name,
        curves,
        verdicts,
        recommendation=chosen,
        settings=settings,
        band=band,
        about=about,
        again=lambda low, high: sweep_line(bench, low, high),
        train=lambda rate: train_line(bench, rate),
    )


def sweep_line(bench: Bench, low: float, high: float) -> str:
    """The command that sweeps from ``low`` to ``high`` as this one did."""
    return bench.command.line("--from", f"{low:.2g}", "--to", f"{high:.2g}", without=WHICH_RATES)


def train_line(bench: Bench, rate: float) -> str:
    """The command that trains on the same data at ``rate``, beside what the sweep has written."""
    output = bench.config.output_dir
    beside = output.with_name(f"{output.name}-run")
    options = ("--set", f"learning_rate={rate:.3g}", "--output-dir", beside)
    return bench.command.line(*options, without=(*SWEEP_ONLY, "--output-dir"), script="pretrain")
