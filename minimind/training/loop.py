"""The run: one loop for pretraining and supervised fine-tuning, on one process or many.

Every rank leaves the loop at the same step: the only reasons to leave are the step count, the shared request to
stop, and decisions taken from numbers that are equal on all ranks.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from minimind.config import RunConfig
from minimind.data.batches import Batches, prefetch, sequential_batches
from minimind.durable import write_durably
from minimind.findings import Finding
from minimind.training.checkpoints import BEST, clean_up, point, save_checkpoint
from minimind.training.engine import Engine
from minimind.training.evaluation import evaluate
from minimind.training.health import Health
from minimind.training.host import anonymous_memory, settled_garbage, timed
from minimind.training.metrics import Metrics, StepMetrics
from minimind.training.recorder import Progress, Recorder
from minimind.training.setup import Data, Plan
from minimind.training.signals import StopRequest
from minimind.training.step import train_step

MAX_CONSECUTIVE_SKIPS = (
    64  # from 2^16 with hysteresis 2, seventeen overflows reach scale 1: far beyond is hopeless
)
POST_MORTEM = "post_mortem.json"


@dataclass
class Run:
    """Everything that the loop works with."""

    config: RunConfig
    data: Data
    batches: Batches
    plan: Plan
    engine: Engine
    metrics: Metrics
    progress: Progress
    stop: StopRequest
    run_dir: Path
    about: dict[str, Any]
    protected: set[Path]
    overfit_one_batch: bool = False
    health: Health = field(init=False)
    waits: dict[int, float] = field(
        default_factory=dict
    )  # step -> seconds it waited for data; until reported

    def __post_init__(self) -> None:
        self.health = Health.from_state(self.progress.health, self.config.health)

    @property
    def rank(self) -> int:
        return self.engine.rank

    def data_step(self, step: int) -> int:
        """Which step's data step ``step`` trains on."""
        return 0 if self.overfit_one_batch else step


@settled_garbage()
def train(run: Run) -> str:
    """Train from ``run.progress`` to the end; returns why it ended: finished, stopped, early-stop or failed."""
    progress, plan, engine = run.progress, run.plan, run.engine
    run.stop.training = True
    recorder = Recorder(
        lambda metrics: report(run, metrics), engine.sum_over_ranks, run.batches.steps_per_epoch
    )
    steps = range(progress.step, plan.total_steps)
    ahead = prefetch((run.batches.micro_batches(run.data_step(s), run.rank) for s in steps), depth=2)
    for micro_batches in timed(ahead, run.waits, progress.step + 1):
        result = train_step(engine, micro_batches, run.stop.requested)
        progress.advance(result)
        recorder.add(result, progress)

        step, last = progress.step, progress.step == plan.total_steps
        hopeless = result.update.exhausted or progress.consecutive_skips >= MAX_CONSECUTIVE_SKIPS
        evaluating = (
            bool(plan.eval_steps) and (last or step % (plan.eval_steps or 1) == 0) and not result.stop
        )
        saving = last or result.stop or step % plan.save_steps == 0
        if evaluating or saving or hopeless or step % run.config.logging_steps == 0 or step == 1:
            recorder.flush()
        if hopeless:
            return give_up(run)
        improved = evaluating and evaluate_now(run)
        if saving or improved:
            save(run, best=improved)
        if evaluating or saving:
            recorder.restart_clock()
        if result.stop:
            return "stopped"
        if early_stop(run):
            return "early-stop"
    return "finished"


def report(run: Run, metrics: StepMetrics) -> None:
    """One step's line, and after it what it says about the run's health."""
    run.metrics.step(metrics)
    wait = run.waits.pop(metrics.step, None)
    for finding in run.health.observe_step(metrics, anonymous_memory(), wait):
        run.metrics.finding(finding)


def evaluate_now(run: Run) -> bool:
    """Evaluate on the held-out file; True if it is the best so far."""
    store, engine, progress = run.data.held_out, run.engine, run.progress
    assert store is not None
    size = run.batches.micro_batch_size
    batches = sequential_batches(store, run.config.max_seq_length, size, engine.rank, engine.world_size)
    num_bytes = store.num_bytes if store.kind == "pretrain" else None
    result = evaluate(engine.module, batches, engine.device, progress.step, num_bytes, engine.sum_over_ranks)
    run.metrics.evaluation(result, progress.step)
    for finding in run.health.observe_evaluation(progress.step, result.loss):
        run.metrics.finding(finding)
    improved = progress.best_loss is None or result.loss < progress.best_loss
    if improved:
        progress.best_loss, progress.best_step, progress.evaluations_without_gain = (
            result.loss,
            progress.step,
            0,
        )
    else:
        progress.evaluations_without_gain += 1
    return improved


def early_stop(run: Run) -> bool:
    """Whether held-out loss has not improved for ``early_stopping_patience`` evaluations."""
    patience = run.config.early_stopping_patience
    return patience is not None and run.progress.evaluations_without_gain >= patience


def save(run: Run, best: bool = False) -> None:
    """Write a complete checkpoint, then delete what save_total_limit no longer keeps."""
    run.progress.wandb_id = run.engine.control.from_first(run.metrics.wandb_id if run.rank == 0 else None)
    run.progress.health = run.health.state()
    state = {"progress": run.progress.state()}
    checkpoint = save_checkpoint(run.engine, run.run_dir, run.progress.step, state, run.about)
    if run.rank == 0:
        if best:
            point(run.run_dir / BEST, checkpoint.path)
        clean_up(run.run_dir, run.config.save_total_limit, run.protected)


def give_up(run: Run) -> str:
    """Gradients overflow for good: say so, leave a post-mortem, end. The last checkpoint stays as it was."""
    progress = run.progress
    finding = Finding(
        code="gradients-never-finite",
        message=f"{progress.consecutive_skips} steps in a row were skipped: their gradients were not finite",
        advice="look at the samples in post_mortem.json, then try its remedies in order",
        step=progress.step,
        values={"consecutive_skips": progress.consecutive_skips},
    )
    run.metrics.finding(finding)
    if run.rank == 0:
        text = json.dumps(post_mortem(run), indent=1, ensure_ascii=False, default=str)
        write_durably(run.run_dir / POST_MORTEM, text + "\n")
    return "failed"


def post_mortem(run: Run) -> dict[str, Any]:
    """Scale history, last norms, the samples in the last step, remedies in order."""
    step = run.progress.step - 1
    documents = sorted({document for document, _, _ in run.batches.documents(run.data_step(step))})
    return {
        "step": run.progress.step,
        "history": run.progress.state()["history"],
        "samples": ["{}:{}".format(*run.data.train.source(document)) for document in documents],
        "remedies": [
            "look at the samples above for text unlike the rest",
            "halve the learning rate in the JSON and --resume",
            "set gradient_clipping to 0.5 in the JSON and --resume",
            "--resume with ds_configs/fp16_fixed_scale.json (loss scale 1024), if this is an fp16 run",
            "start again with ds_configs/bf16.json, if the GPU is Ampere or newer (another precision can't resume)",
            "start again with ds_configs/fp32.json",
        ],
    }
