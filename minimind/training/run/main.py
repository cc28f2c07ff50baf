"""A training command from its options to its exit code, one phase a function.

Exit codes: 0 finished or stopped as asked, 1 the run failed (post-mortem written), 2 used wrongly.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minimind.base.command_lines import OwnCommand
from minimind.base.defaults import FINAL
from minimind.base.display import say
from minimind.base.errors import UserError
from minimind.base.files import subdirectory
from minimind.base.findings import Finding
from minimind.config.deepspeed import Resolved
from minimind.config.run import RunConfig
from minimind.data.records.conversations import Kind
from minimind.data.store.batches import Batches
from minimind.training.checkpoint.nearby import elsewhere
from minimind.training.checkpoint.writer import Saver
from minimind.training.engine.engine import Engine
from minimind.training.health.lr_bands import usual_band
from minimind.training.health.monitor import before_run
from minimind.training.process.disks import Disks, find_disks, separate
from minimind.training.process.ending import exit_with
from minimind.training.process.heart.heartbeat import Agreement, Heartbeat
from minimind.training.process.ranks import Control
from minimind.training.process.run_lock import RunLock
from minimind.training.process.signals import StopRequest
from minimind.training.process.watchdog import EXPORT, START, Watchdog
from minimind.training.record.metrics import Metrics
from minimind.training.record.recorder import Progress
from minimind.training.record.samples import Sampler
from minimind.training.run import setup
from minimind.training.run.arguments import parse
from minimind.training.run.builder import Builder
from minimind.training.run.directory import open_directory
from minimind.training.run.held_out import held_out_findings
from minimind.training.run.loop import Run, train
from minimind.training.run.next_commands import next_lines, sweep_command
from minimind.training.run.rescue import give_up, rescue
from minimind.training.run.resume import AUTO, Start, agree, find_start, require_one_run, run_settings
from minimind.training.run.summary import schedule_lines, summarize
from minimind.training.run.task import Task, join


def main(kind: Kind, argv: list[str] | None = None, stop: StopRequest | None = None) -> None:
    """Run ``launch/pretrain.py`` (kind "pretrain") or ``launch/sft.py`` ("sft") and exit."""
    arguments = parse(kind, argv)
    stop = stop or StopRequest().install()
    exit_with(lambda: run(kind, arguments, stop), arguments.debug, stop)


def run(kind: Kind, arguments: argparse.Namespace, stop: StopRequest | None = None) -> int:
    """Configure, prepare, build, train, export."""
    with RunLock() as lock, Watchdog() as watchdog, Heartbeat() as heartbeat:
        return _run(kind, arguments, stop or StopRequest().install(), Guards(lock, watchdog, heartbeat))


@dataclass(frozen=True)
class Guards:
    """What watches over a run. ``lock``: to be taken, and held until the end; the others are to be started."""

    lock: RunLock
    watchdog: Watchdog
    heartbeat: Heartbeat


def _run(kind: Kind, arguments: argparse.Namespace, stop: StopRequest, guards: Guards) -> int:
    task, control, notes = join(kind, arguments, lambda *ranks: start_heartbeat(guards.heartbeat, stop, *ranks))
    notes += [] if arguments.dry_run else control.first_does(lambda: guards.lock.take(task.config.output_dir))
    disks = look_at_disks(task, control)
    material = prepare(task, control, guards.watchdog, stop)
    built = build(task, material, control, disks)
    notes += restarted(arguments.restarted)
    notes += [*separate(disks, task.config.output_dir), *built.notes]
    if not arguments.dry_run:
        notes += control.first_does(lambda: make_directory(task, material, built))
    metrics = open_metrics(task, material, built)
    announce(metrics, task, material, built, notes)
    if arguments.dry_run:
        return end_dry_run(metrics, built.engine, material.plan, built.progress)
    begin(built, metrics, stop)
    run = make_run(task, material, built, metrics=metrics, stop=stop, guards=guards)
    return finish(*train_and_save(run, built.builder))


def start_heartbeat(heartbeat: Heartbeat, stop: StopRequest, ranks: Agreement, task: Task) -> list[Finding]:
    """Watch the other ranks, and be watched, from here to the end of the run."""
    lines = next_lines(task.command, task.arguments.resume)
    return heartbeat.start(task.config.heartbeat, ranks, stop, task.config.output_dir, lines)


def restarted(why: str | None) -> list[Finding]:
    """That `minimind launch` has started the run again."""
    if why is None:
        return []
    advice = "nothing is lost but the steps after the last checkpoint; look why the host was lost"
    return [Finding(code="restarted", message=f"started again: {why}", advice=advice)]


def look_at_disks(task: Task, control: Control) -> Disks:
    """Who sees the run directory. A dry run of a new run leaves nothing there to be seen."""
    if task.arguments.dry_run and task.arguments.resume is None:
        return Disks.one(control.world_size)
    return find_disks(control, task.config.output_dir)


@dataclass(frozen=True)
class Material:
    """What is trained on, in which order, and for how long."""

    data: setup.Data
    batches: Batches
    plan: setup.Plan
    sampler: Sampler | None


def prepare(task: Task, control: Control, watchdog: Watchdog, stop: StopRequest) -> Material:
    """Tokenised data, their order and the plan of the steps; watched from the moment when the data are there."""
    data = setup.prepare_data(control, task.kind, task.config)
    lines = next_lines(task.command, task.arguments.resume)
    watchdog.start(task.config.watchdog, task.config.output_dir, control.rank, stop, lines)
    batches = setup.make_batches(data, task.config, task.resolved)
    sampler = Sampler(task.config, data.tokenizer, task.kind) if task.config.samples.prompts else None
    return Material(data, batches, setup.plan_steps(task.config, batches, data.held_out), sampler)


@dataclass(frozen=True)
class Built:
    """The engine and the run's progress where it starts, and what a checkpoint will say of the run (``about``)."""

    builder: Builder
    disks: Disks
    start: Start
    about: dict[str, Any]
    engine: Engine
    progress: Progress
    notes: list[Finding]


def build(task: Task, material: Material, control: Control, disks: Disks) -> Built:
    """The engine, new or at the checkpoint that ``--resume`` means. UserError if that belongs to another run."""
    # Rank 0 looks for all: the hashes of a checkpoint are worth reading once, and the ranks must agree on it.
    start = start_point(task, control, disks)
    builder = make_builder(task, material, disks)
    about = builder.settings(builder.treated(start.rollbacks))
    first = control.from_first(about)
    control.all_do(lambda: require_one_run(first, about))
    notes = start.findings + control.first_does(lambda: agree(start.checkpoint, about))
    engine, progress = builder.build(start.checkpoint, start.rollbacks)
    return Built(builder, disks, start, about, engine=engine, progress=progress, notes=notes)


def start_point(task: Task, control: Control, disks: Disks) -> Start:
    """Where ``--resume`` begins. UserError, the same on all ranks, also if only another host has the checkpoints."""
    wanted, run_dir = task.arguments.resume, task.config.output_dir
    try:
        start: Start = control.first_does(lambda: find_start(wanted, run_dir))
    except UserError as error:
        raise UserError(f"{error}{elsewhere(control, run_dir, disks)}") from None
    if wanted == AUTO and start.checkpoint is None and (there := elsewhere(control, run_dir, disks)):
        raise UserError(f"{run_dir}: no checkpoint of the run here{there}")
    return start


def make_builder(task: Task, material: Material, disks: Disks) -> Builder:
    """What builds the engine now, and again after each rollback."""
    config, plan = task.config, material.plan
    return Builder(
        config,
        task.resolved.with_total_steps(plan.total_steps, config),
        plan,
        new_model=task.new_model,
        settings=lambda treated: run_settings(config, treated, material.data, plan),
        command=task.command,
        disks=disks,
    )


def make_directory(task: Task, material: Material, built: Built) -> list[Finding]:
    """The run directory with its files; findings about it. Rank 0 only."""
    return open_directory(
        task.config,
        built.engine.resolved,
        task.hardware,
        tokenizer=material.data.tokenizer,
        start=built.start,
        best_step=built.progress.best.step,
    )


def open_metrics(task: Task, material: Material, built: Built) -> Metrics:
    """The run's metrics, cut back to the resumed step; an old run's are kept under another name."""
    return Metrics(
        task.config.output_dir,
        built.engine.rank,
        task.config,
        material.plan.total_steps,
        resumed_step=built.progress.step if built.start.checkpoint else None,
        best=built.progress.best,
        dry_run=task.arguments.dry_run,
    )


def announce(metrics: Metrics, task: Task, material: Material, built: Built, notes: list[Finding]) -> None:
    """The header, and after it everything worth knowing before the first step."""
    resolved, command = built.engine.resolved, built.builder.command
    summary = summarize(
        task.kind,
        task.config,
        resolved,
        data=material.data,
        batches=material.batches,
        plan=material.plan,
        hardware=task.hardware,
        progress=built.progress,
        arguments=task.arguments,
        command=command,
    )
    metrics.header(summary)
    rates = usual_rates(task.kind, task.config, resolved, command)
    held_out = held_out_findings(material.data, task.config)
    for finding in [*rates, *resolved.findings, *task.remarks, *held_out, *notes]:
        metrics.finding(finding)


def usual_rates(kind: Kind, config: RunConfig, resolved: Resolved, command: OwnCommand | None = None) -> list[Finding]:
    """Whether the learning rate is out of the band that is usual for the model's size."""
    rates, size = resolved.optimizer.params, config.model.num_parameters()
    sweep = None
    if kind == "pretrain" and command is not None and not config.commanded("learning_rate"):
        band = usual_band(size, resolved.optimizer.type, kind, config.health)
        sweep = sweep_command(command, config, band.low, band.high)
    rate = rates.get("muon_lr", rates["lr"])
    return before_run(kind, resolved.optimizer.type, rate, num_parameters=size, thresholds=config.health, sweep=sweep)


def end_dry_run(metrics: Metrics, engine: Engine, plan: setup.Plan, progress: Progress) -> int:
    """Show the learning rate over the run, and train nothing."""
    if engine.rank == 0 and engine.resolved.scheduler is None:
        say("\n".join(schedule_lines(plan, engine.lr / plan.schedule.factor(progress.step))))
    metrics.close(None, reason="dry run")
    return 0


def begin(built: Built, metrics: Metrics, stop: StopRequest) -> None:
    """Wait until all ranks are about to train; raises StoppedEarly if one of them was asked to stop before this."""
    for rollback in built.start.rollbacks:  # a run that was killed right after one has no line of it
        metrics.rollback(rollback)
    stop.begin(built.engine.barrier)


def make_run(task: Task, material: Material, built: Built, metrics: Metrics, stop: StopRequest, guards: Guards) -> Run:
    """What the loop works with."""
    return Run(
        task.config,
        material.data,
        material.batches,
        plan=material.plan,
        engine=built.engine,
        metrics=metrics,
        progress=built.progress,
        stop=stop,
        run_dir=task.config.output_dir,
        about=built.about,
        saver=make_saver(built, task.config, guards),
        sampler=material.sampler,
        rollbacks=built.start.rollbacks,
        overfit_one_batch=task.arguments.overfit_one_batch,
        watchdog=guards.watchdog,
    )


def make_saver(built: Built, config: RunConfig, guards: Guards) -> Saver:
    """The writer of checkpoints, which never deletes the one that the run starts from. All ranks call it."""
    checkpoint = built.start.checkpoint
    if checkpoint is not None:
        guards.heartbeat.saved(checkpoint)
    return Saver(
        built.engine,
        Control("saving"),
        config.output_dir,
        keep=config.save_total_limit,
        protected={checkpoint.path} if checkpoint else set(),
        watchdog=guards.watchdog,
        apart=built.disks.apart,
        complete=guards.heartbeat.saved,
    )


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


def finish(run: Run, reason: str, saved: bool) -> int:
    """Export what was trained, close everything; the exit code. ``saved``: whether the last checkpoint is complete."""
    run.watchdog.beat(EXPORT)
    final = export(run.engine, run.config, run.data) if reason in ("finished", "early-stop") else None
    run.watchdog.stop()
    run.metrics.close(final, reason=reason)
    run.engine.close()
    return 1 if reason == "failed" or not saved else 0


def export(engine: Engine, config: RunConfig, data: setup.Data) -> Path:
    """Write ``final/`` in Hugging Face layout; all ranks call it."""
    from minimind.interop.huggingface import save_pretrained
    from minimind.interop.model_card import Card

    final = config.output_dir / FINAL
    weights = engine.weights()
    if engine.rank == 0:
        subdirectory(config.output_dir, final.name)
        card = Card.of_run(config, config.output_dir.name, trained_on_texts=data.train.kind == "pretrain")
        save_pretrained(weights, config.model, data.tokenizer, final, card)
    engine.barrier()
    return final
