"""Our trainer, as it is: ``minimind.training.run.loop.train`` with engine, prefetching, recorder and metrics file.

One ``train`` call serves all rounds: between them it waits for the parent, before a step. Only one thing differs from a
run: no checkpoint is saved. What checkpoints cost is cadence.py's subject.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

from benchmarks.memory_use import Peak
from benchmarks.traffic import Traffic, counting
from benchmarks.workers import Commands, Job
from minimind.base.hardware import detect
from minimind.config.deepspeed import resolve
from minimind.config.run import load_run_config
from minimind.data.store.batches import SequentialBatches
from minimind.data.store.store import TokenStore
from minimind.text.tokenizer import Tokenizer
from minimind.training.checkpoint.writer import Saver
from minimind.training.engine.engine import start_processes
from minimind.training.process.ranks import Control
from minimind.training.process.signals import StopRequest
from minimind.training.record.metrics import Metrics
from minimind.training.record.recorder import Progress
from minimind.training.run import builder, loop, setup
from minimind.training.run.evaluation import evaluate


class Finished(Exception):
    """The parent wants no more steps."""


def serve(job: Job, commands: Commands) -> None:
    """Answer the parent until it says quit."""
    start_processes(emulate_fp16=bool(job.settings.get("emulate_fp16")))
    peak = Peak()
    with tempfile.TemporaryDirectory() as directory, counting() as traffic:
        run = make_run(job, Path(directory))
        run.plan = replace(run.plan, total_steps=2**40)  # the parent says when it is enough
        commands.evaluate = lambda: held_out(run)
        commands.extra = lambda: {"peak": peak.bytes(), "traffic": traffic.by_name()}
        loop.train_step = paced(loop.train_step, run, commands, traffic)
        with suppress(Finished):
            loop.train(run)


def paced(work: Callable[..., Any], run: loop.Run, commands: Commands, traffic: Traffic) -> Callable[..., Any]:
    """The loop's ``train_step``, which before the first step of a round waits for the parent.

    So what follows a step (reports, health, fetching the next rows) counts, and what a run does once does not.
    """
    left: int | None = 0
    before: int | None = None  # trained tokens when the round began

    @wraps(work)
    def step(*arguments: Any, **options: Any) -> Any:
        nonlocal left, before
        if left == 0:
            if before is not None:
                commands.done(run.progress.tokens - before)
            before = run.progress.tokens
            traffic.calls.clear()
            left = commands.next()
        if left is None:
            raise Finished
        left -= 1
        return work(*arguments, **options)

    return step


def make_run(job: Job, directory: Path) -> loop.Run:
    """What main.run builds, from a job instead of a command line. Our checkpoints are switched off."""
    preset = {"preset": job.preset, "vocab_size": job.vocab_size}
    values: dict[str, Any] = {
        "model": preset,
        "max_seq_length": job.row_length,
        "per_device_train_batch_size": job.micro_batch,
        "max_steps": job.total_steps,
        "output_dir": str(directory),
        "seed": job.seed,
        **job.settings,
    }
    config = load_run_config(None, [], values)
    world = int(os.environ.get("WORLD_SIZE", "1"))
    resolved = resolve(Path(job.deepspeed_config), config, world, detect(), config.emulate_fp16)
    data = setup.Data(Tokenizer.load(job.tokenizer), TokenStore.open(job.train), TokenStore.open(job.held_out))
    batches = setup.make_batches(data, config, resolved)
    plan = setup.plan_steps(config, batches, held_out=None)
    resolved = resolved.with_total_steps(plan.total_steps, config)
    engine = builder.build_engine(
        builder.new_model(config, resolved), resolved, plan.schedule.factor, config, plan.total_steps
    )
    metrics = Metrics(directory, engine.rank, config, plan.total_steps)
    loop.save = lambda run, best=False: None
    plan = replace(plan, save_steps=2**62, save_by_time=False)
    saver = Saver(engine, Control("saving"), directory, keep=1, protected=set())
    return loop.Run(config, data, batches, plan, engine, metrics, Progress(), StopRequest(), directory, {}, saver)


def held_out(run: loop.Run) -> dict[str, Any]:
    """Loss and bits per byte of the held-out store."""
    store, engine = run.data.held_out, run.engine
    assert store is not None
    batches = SequentialBatches(store, run.config.max_seq_length, run.batches.micro_batch_size)
    result = evaluate(engine.module, batches, engine.device, run.progress.step, store.num_bytes)
    return {"loss": result.loss, "bits_per_byte": result.bits_per_byte}
