"""Our trainer, as it is: ``minimind.training.loop.train`` with engine, prefetching, recorder and metrics file.

Only one thing differs from a run: the checkpoint that ends every run is left out, because here each round ends a
``train`` call. What checkpoints cost is cadence.py's subject.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.memory_use import Peak
from benchmarks.traffic import counting
from benchmarks.workers import Commands, Job
from minimind.config import load_run_config
from minimind.data.batches import SequentialBatches
from minimind.data.store import TokenStore
from minimind.hardware import detect
from minimind.tokenizer import Tokenizer
from minimind.training import loop, setup
from minimind.training.control import Control
from minimind.training.deepspeed_config import resolve
from minimind.training.engine import start_processes
from minimind.training.evaluation import evaluate
from minimind.training.metrics import Metrics
from minimind.training.recorder import Progress
from minimind.training.saver import Saver
from minimind.training.signals import StopRequest


def serve(job: Job, commands: Commands) -> None:
    """Answer the parent until it says quit."""
    start_processes(emulate_fp16=bool(job.settings.get("emulate_fp16")))
    peak = Peak()
    with tempfile.TemporaryDirectory() as directory:
        run = make_run(job, Path(directory))
        commands.evaluate = lambda: held_out(run)
        while (steps := commands.next()) is not None:
            before = run.progress.tokens
            run.plan = replace(run.plan, total_steps=run.progress.step + steps)
            with counting() as traffic:
                loop.train(run)
            commands.extra = lambda: {"peak": peak.bytes(), "traffic": traffic.by_name()}
            commands.done(run.progress.tokens - before)


def make_run(job: Job, directory: Path) -> loop.Run:
    """What main.run builds, from a job instead of a command line. Our checkpoints are switched off."""
    preset = {"preset": job.preset, "vocab_size": job.vocab_size}
    values: dict[str, Any] = {
        "model": preset, "max_seq_length": job.row_length, "per_device_train_batch_size": job.micro_batch,
        "max_steps": job.total_steps, "output_dir": str(directory), **job.settings}  # fmt: skip
    config = load_run_config(None, [], values)
    world = int(os.environ.get("WORLD_SIZE", "1"))
    resolved = resolve(Path(job.deepspeed_config), config, world, detect(), config.emulate_fp16)
    data = setup.Data(
        Tokenizer.load(job.tokenizer), TokenStore.open(job.train), TokenStore.open(job.held_out)
    )
    batches = setup.make_batches(data, config, resolved)
    plan = setup.plan_steps(config, batches, held_out=None)
    resolved = resolved.with_total_steps(plan.total_steps, config)
    engine = setup.build_engine(setup.new_model(config), resolved, plan.schedule.factor, config)
    metrics = Metrics(directory, engine.rank, config, plan.total_steps)
    loop.save = lambda run, best=False: None  # type: ignore[assignment]
    plan = replace(plan, save_steps=2**62, save_by_time=False)
    saver = Saver(engine, Control("saving"), directory, keep=1, protected=set())
    return loop.Run(
        config, data, batches, plan, engine, metrics, Progress(), StopRequest(), directory, {}, saver
    )


def held_out(run: loop.Run) -> dict[str, Any]:
    """Loss and bits per byte of the held-out store."""
    store, engine = run.data.held_out, run.engine
    assert store is not None
    batches = SequentialBatches(store, run.config.max_seq_length, run.batches.micro_batch_size)
    result = evaluate(engine.module, batches, engine.device, run.progress.step, store.num_bytes)
    return {"loss": result.loss, "bits_per_byte": result.bits_per_byte}
