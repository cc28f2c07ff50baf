"""A training command from its options to its exit code, one phase a function.

Exit codes: 0 finished or stopped as asked, 1 the run failed (post-mortem written), 2 used wrongly.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from minimind.base.command_lines import OwnCommand
from minimind.base.defaults import FINAL
from minimind.base.display import complain, say
from minimind.base.errors import UserError
from minimind.base.files import subdirectory
from minimind.base.findings import Finding
from minimind.base.hardware import Hardware, detect
from minimind.config.deepspeed import Resolved, resolve
from minimind.config.deepspeed.source import chosen_source
from minimind.config.run import RunConfig, load_run_config
from minimind.data.records.conversations import Kind
from minimind.model.transformer import Transformer
from minimind.training.checkpoint.writer import Saver
from minimind.training.engine.engine import Engine, start_processes
from minimind.training.health.lr_bands import usual_band
from minimind.training.health.monitor import before_run
from minimind.training.process.ranks import Control
from minimind.training.process.run_lock import RunLock
from minimind.training.process.signals import StoppedEarly, StopRequest, say_stopped
from minimind.training.process.watchdog import EXPORT, START, Watchdog
from minimind.training.record.metrics import Metrics
from minimind.training.record.recorder import Progress
from minimind.training.run import setup
from minimind.training.run.arguments import config_options, own_command, parse
from minimind.training.run.builder import Builder, new_model
from minimind.training.run.directory import open_directory
from minimind.training.run.held_out import held_out_findings
from minimind.training.run.loop import Run, train
from minimind.training.run.next_commands import sweep_command
from minimind.training.run.requirements import require
from minimind.training.run.rescue import give_up, rescue
from minimind.training.run.resume import Start, agree, find_start, run_settings
from minimind.training.run.summary import schedule_lines, summarize

WORD = 30.0  # seconds that another rank waits for the first to say what is wrong; it is ended long before


def main(kind: Kind, argv: list[str] | None = None, stop: StopRequest | None = None) -> None:
    """Run ``launch/pretrain.py`` (kind "pretrain") or ``launch/sft.py`` ("sft") and exit."""
    arguments = parse(kind, argv)
    stop = stop or StopRequest().install()
    exit_with(lambda: run(kind, arguments, stop), arguments.debug, stop)


def exit_with(work: Callable[[], int], debug: bool, stop: StopRequest) -> NoReturn:
    """Exit with ``work``'s code; a UserError is one line from rank 0 (``debug``: a traceback) and code 2.

    Asked to stop before the first step is code 0, also where a rank learns of it by losing another one.
    """
    try:
        code = work()
    except UserError as error:
        if debug:
            complain(traceback.format_exc().rstrip())
        elif os.environ.get("RANK", "0") == "0":
            complain(f"error: {error}")
        else:
            _let_the_first_rank_speak()
        code = 2
    except StoppedEarly as stopped:
        say_stopped(str(stopped))
        code = 0
    except Exception as error:
        if stop.hung:  # a lost rank is part of the hang that has been said
            threading.Event().wait()
        if not stop.ended_early(error):
            raise
        say_stopped(stop.name)
        code = 0
    sys.stdout.flush()
    sys.exit(code)


def _let_the_first_rank_speak() -> None:
    """launch.py ends every rank once one has ended; the first, which meets the same error, has the line to print."""
    with contextlib.suppress(StoppedEarly):
        time.sleep(WORD)


def run(kind: Kind, arguments: argparse.Namespace, stop: StopRequest | None = None) -> int:
    """Configure, prepare, build, train, export."""
    with RunLock() as lock, Watchdog() as watchdog:
        return _run(kind, arguments, stop or StopRequest().install(), lock, watchdog)


def _run(kind: Kind, arguments: argparse.Namespace, stop: StopRequest, lock: RunLock, watchdog: Watchdog) -> int:
    """``lock``: to be taken, and held until this returns. ``watchdog``: to be started once the data are ready."""
    config, new_model = configure(kind, arguments)
    hardware = detect()
    resolved = resolve_json(kind, arguments, config, hardware)
    remarks = require(resolved, config, hardware)

    start_processes(config.emulate_fp16)
    control = Control()
    notes = [] if arguments.dry_run else control.first_does(lambda: lock.take(config.output_dir))
    data = setup.prepare_data(control, kind, config)
    watchdog.start(config.watchdog, config.output_dir, control.rank, stop)
    batches = setup.make_batches(data, config, resolved)
    plan = setup.plan_steps(config, batches, data.held_out)
    resolved = resolved.with_total_steps(plan.total_steps, config)

    # Rank 0 looks for all: the hashes of a checkpoint are worth reading once, and the ranks must agree on it.
    start = control.first_does(lambda: find_start(arguments.resume, config.output_dir))
    builder = Builder(
        config,
        resolved,
        plan,
        new_model=new_model,
        settings=lambda treated: run_settings(config, treated, data, plan),
        command=own_command(kind, arguments, resolved.world_size, hardware),
    )
    about = builder.settings(builder.treated(start.rollbacks))
    notes += start.findings + control.first_does(lambda: agree(start.checkpoint, about))
    engine, progress = builder.build(start.checkpoint, start.rollbacks)
    resolved = engine.resolved

    if not arguments.dry_run:
        notes += control.first_does(
            lambda: open_directory(
                config, resolved, hardware, tokenizer=data.tokenizer, start=start, best_step=progress.best.step
            )
        )
    metrics = open_metrics(arguments, config, engine.rank, total_steps=plan.total_steps, progress=progress, start=start)
    metrics.header(
        summarize(
            kind,
            config,
            resolved,
            data=data,
            batches=batches,
            plan=plan,
            hardware=hardware,
            progress=progress,
            arguments=arguments,
            command=builder.command,
        )
    )
    rates = usual_rates(kind, config, resolved, builder.command)
    for finding in [*rates, *resolved.findings, *remarks, *held_out_findings(data, config), *notes]:
        metrics.finding(finding)
    if arguments.dry_run:
        return end_dry_run(metrics, engine, resolved, plan, progress)

    for rollback in start.rollbacks:  # a run that was killed right after one has no line of it
        metrics.rollback(rollback)
    stop.begin(engine.barrier)
    protected = {start.checkpoint.path} if start.checkpoint else set()
    saver = Saver(
        engine,
        Control("saving"),
        config.output_dir,
        keep=config.save_total_limit,
        protected=protected,
        watchdog=watchdog,
    )
    run = Run(
        config,
        data,
        batches,
        plan=plan,
        engine=engine,
        metrics=metrics,
        progress=progress,
        stop=stop,
        run_dir=config.output_dir,
        about=about,
        saver=saver,
        rollbacks=start.rollbacks,
        overfit_one_batch=arguments.overfit_one_batch,
        watchdog=watchdog,
    )
    run, reason, saved = train_and_save(run, builder)
    watchdog.beat(EXPORT)
    final = export(run.engine, config, data) if reason in ("finished", "early-stop") else None
    watchdog.stop()
    metrics.close(final, reason=reason)
    run.engine.close()
    return 1 if reason == "failed" or not saved else 0


def train_and_save(run: Run, builder: Builder) -> tuple[Run, str, bool]:
    """Train; the last run, why it ended, and whether its last checkpoint is complete.

    The save in flight is waited for however training ends. A stop whose checkpoint can't be written has failed.
    """
    try:
        run, reason = train_with_recovery(run, builder)
    finally:
        saved = run.saver.finish()
    for finding in run.saver.poll(last=True):
        run.metrics.finding(finding)
    return run, "failed" if reason == "stopped" and not saved else reason, saved


def train_with_recovery(run: Run, builder: Builder) -> tuple[Run, str]:
    """Train; after trouble go back, one rung of the recovery ladder at a time. The last run, and why it ended."""
    while (reason := train(run)) == "trouble":
        run.watchdog.beat(START)
        treated = rescue(run, builder)
        if treated is None:
            return run, give_up(run, builder)
        run = treated
    return run, reason


def resolve_json(kind: Kind, arguments: argparse.Namespace, config: RunConfig, hardware: Hardware) -> Resolved:
    """The DeepSpeed JSON, checked and filled for this run; the launcher says how many ranks there are."""
    return resolve(
        chosen_source(arguments.deepspeed_config, config),
        config,
        int(os.environ.get("WORLD_SIZE", "1")),
        hardware,
        emulate_fp16=config.emulate_fp16,
        num_parameters=config.model.num_parameters(),
        kind=kind,
        strict=arguments.strict,
    )


def open_metrics(
    arguments: argparse.Namespace, config: RunConfig, rank: int, total_steps: int, progress: Progress, start: Start
) -> Metrics:
    """The run's metrics, cut back to the resumed step; an old run's are kept under another name."""
    return Metrics(
        config.output_dir,
        rank,
        config,
        total_steps,
        resumed_step=progress.step if start.checkpoint else None,
        wandb_id=progress.wandb_id,
        best=progress.best,
        dry_run=arguments.dry_run,
    )


def usual_rates(kind: Kind, config: RunConfig, resolved: Resolved, command: OwnCommand | None = None) -> list[Finding]:
    """Whether the learning rate is out of the band that is usual for the model's size."""
    rates, size = resolved.optimizer.params, config.model.num_parameters()
    sweep = None
    if kind == "pretrain" and command is not None and not config.commanded("learning_rate"):
        band = usual_band(size, resolved.optimizer.type, kind, config.health)
        sweep = sweep_command(command, config, band.low, band.high)
    rate = rates.get("muon_lr", rates["lr"])
    return before_run(kind, resolved.optimizer.type, rate, num_parameters=size, thresholds=config.health, sweep=sweep)


def end_dry_run(metrics: Metrics, engine: Engine, resolved: Resolved, plan: setup.Plan, progress: Progress) -> int:
    """Show the learning rate over the run, and train nothing."""
    if engine.rank == 0 and resolved.scheduler is None:
        say("\n".join(schedule_lines(plan, engine.lr / plan.schedule.factor(progress.step))))
    metrics.close(None, reason="dry run")
    return 0


def configure(kind: Kind, arguments: argparse.Namespace) -> tuple[RunConfig, Callable[[Resolved], Transformer]]:
    """The run's configuration, and what makes the model to start from: a new one, for fine-tuning the given one."""
    config = load_run_config(arguments.config, arguments.set, config_options(arguments))
    if kind == "pretrain":
        if config.model_name_or_path is not None:
            place = config.place("model_name_or_path")
            raise UserError(f"{place}: model_name_or_path: pretraining starts from new weights; use launch/sft.py")
        return config, lambda resolved: new_model(config, resolved)
    from minimind.inference.generation import load_model

    start = first_weights(arguments.model, config)
    if start.resolve() == config.output_dir.resolve():
        raise UserError(f"{config.output_dir}: is the model to start from; give another --output-dir")
    model, tokenizer = load_model(start, "cpu")
    if "model" in config.explicit and config.model != model.config:
        raise UserError(f"the model settings differ from those of {start}; leave `model` out for SFT")
    path = config.tokenizer or tokenizer.path
    config = config.model_copy(update={"model": model.config, "tokenizer": path})
    return config, lambda _: load_model(start, "cpu")[0]


def first_weights(option: Path | None, config: RunConfig) -> Path:
    """What fine-tuning starts from: ``--model``, else the YAML's ``model_name_or_path``, a local directory."""
    if option is not None:
        return option
    path = config.model_name_or_path
    if path is None:
        raise UserError("no model to start from: pass --model, or set model_name_or_path in the YAML")
    if not path.exists():
        place = config.place("model_name_or_path")
        raise UserError(f"{place}: model_name_or_path {path}: no such directory; download the model, and name its path")
    return path


def export(engine: Engine, config: RunConfig, data: setup.Data) -> Path:
    """Write ``final/`` in Hugging Face layout; all ranks call it."""
    from minimind.interop.huggingface import save_pretrained

    final = config.output_dir / FINAL
    weights = engine.weights()
    if engine.rank == 0:
        subdirectory(config.output_dir, final.name)
        save_pretrained(weights, config.model, data.tokenizer, final)
    engine.barrier()
    return final
