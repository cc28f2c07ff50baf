"""The run: one loop for pretraining and supervised fine-tuning, on one process or many.

Every rank leaves the loop at the same step: the only reasons to leave are the step count, the shared request to
stop, and decisions taken from numbers that are equal on all ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from minimind.base.findings import Finding
from minimind.config.run import RunConfig, steps_of
from minimind.data.store.batches import Batch, Batches, SequentialBatches, prefetch
from minimind.training.checkpoint.directory import all_checkpoints, restore_best
from minimind.training.checkpoint.writer import Saver
from minimind.training.engine.engine import Engine
from minimind.training.engine.measure import peak_memory
from minimind.training.engine.step import StepResult
from minimind.training.engine.step import train_step as train_step  # benchmarks put a timed one in its place
from minimind.training.health.culprits import find_culprits, shorten
from minimind.training.health.ladder import Rollback, data_step
from minimind.training.health.monitor import Health
from minimind.training.health.trouble import LEAD, Trouble, Watch
from minimind.training.process.host import anonymous_memory, settled_garbage, timed
from minimind.training.process.signals import StopRequest
from minimind.training.process.watchdog import EVALUATION, SAVE, STEP, Watchdog
from minimind.training.record.metrics import Metrics
from minimind.training.record.recorder import Progress, Recorder
from minimind.training.record.samples import Sampler
from minimind.training.run.cadence import SaveClock
from minimind.training.run.evaluation import evaluate
from minimind.training.run.setup import Data, Plan
from minimind.training.values import StepMetrics

LOOK_UP = 8  # batches of an evaluation between looks at the request to stop
NOT_FINITE = ("loss-not-finite", "gradient-not-finite")  # findings that name their samples


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
    saver: Saver
    sampler: Sampler | None = None  # writes samples after each evaluation
    rollbacks: Sequence[Rollback] = ()  # that this run lives with
    overfit_one_batch: bool = False
    watchdog: Watchdog = field(default_factory=Watchdog)  # not started: watches nothing
    health: Health = field(init=False)
    watch: Watch = field(init=False)
    save_clock: SaveClock = field(default_factory=SaveClock)
    waits: dict[int, float] = field(default_factory=dict)  # step -> seconds it waited for data; until reported

    def __post_init__(self) -> None:
        self.health = Health.from_state(self.progress.health, self.config.health)
        self.watch = Watch(self.config.recovery, self.config.health, self.engine.resolved.dynamic_scale)
        self.watch.load(self.progress.watch)

    @property
    def trouble(self) -> Trouble | None:
        """What the run can't go on with; `Watch` says so."""
        return self.watch.trouble

    @property
    def rank(self) -> int:
        return self.engine.rank

    @cached_property
    def held_out(self) -> SequentialBatches:
        """This rank's part of the held-out store."""
        store, size = self.data.held_out, self.batches.micro_batch_size
        assert store is not None
        return SequentialBatches(store, self.config.max_seq_length, size, self.rank, self.engine.world_size)

    def data_step(self, step: int) -> int:
        """Which step of the data order training step ``step`` (both 0-based) uses."""
        return 0 if self.overfit_one_batch else data_step(step, self.rollbacks)


@settled_garbage()
def train(run: Run) -> str:
    """Train from ``run.progress`` on; why it ended: finished, stopped, early-stop or trouble (``run.trouble``)."""
    progress, plan, engine = run.progress, run.plan, run.engine
    run.watchdog.expect_compilation(engine.compiled)
    mixture = run.batches.mixture
    recorder = Recorder(
        lambda metrics: report(run, metrics),
        engine.sum_over_ranks,
        run.batches.steps_per_epoch,
        sources=mixture.names if mixture else (),
    )
    if (ended := catch_up(run)) is not None:
        return ended
    run.save_clock.restart()
    steps = range(progress.step, plan.total_steps)
    ahead = prefetch((run.batches.micro_batches(run.data_step(s), run.rank) for s in steps), depth=2)
    for micro_batches in timed(ahead, run.waits, progress.step + 1):
        result = train_step(
            engine,
            micro_batches,
            run.stop.requested,
            by_source=mixture is not None,
            save_requested=save_wanted(run, progress.step + 1),
            beat=lambda: run.watchdog.beat(STEP, progress.step + 1),
        )
        progress.advance(result)
        recorder.add(result, progress)

        step, last = progress.step, progress.step == plan.total_steps
        evaluating = evaluation_due(run) and not result.stop
        saving = last or result.stop or result.save
        if evaluating or saving or report_due(run, result):
            recorder.flush()
        if observed_trouble(run, result, evaluating, last) is not None:
            return "trouble"
        improved = evaluating and evaluate_now(run)
        stop = result.stop or (evaluating and progress.evaluated_step < step)
        if saving or improved or stop:
            save(run, best=improved)
        if run.trouble is not None:
            return "trouble"
        if evaluating or saving:
            recorder.restart_clock()
        if stop:
            return "stopped"
        if out_of_patience(run):
            return "early-stop"
    return "finished"


def report_due(run: Run, result: StepResult) -> bool:
    """Whether this step's numbers are read now: at the log cadence, or because steps are being skipped in a row."""
    step, patience = run.progress.step, run.config.recovery.non_finite_patience
    skipping = result.update.exhausted or run.progress.consecutive_skips >= patience
    return skipping or step == 1 or step % steps_of(run.config.logging_steps, run.plan.total_steps) == 0


def evaluation_due(run: Run) -> bool:
    """Whether there is to be an evaluation after the present step: at its cadence and at the end."""
    every, step = run.plan.eval_steps, run.progress.step
    return every is not None and step > 0 and (step == run.plan.total_steps or step % every == 0)


def catch_up(run: Run) -> str | None:
    """What a checkpoint left undone at its step; why the run ends there, or None."""
    if run.progress.step and not check_weights(run):  # written by an earlier version, or by another program
        return "trouble"
    if missed_evaluation(run) and evaluate_now(run) and run.rank == 0:
        restore_best(run.run_dir, run.progress.step)
    if missed_evaluation(run):  # asked to stop again
        return "stopped"
    return "early-stop" if out_of_patience(run) else None


def missed_evaluation(run: Run) -> bool:
    """Whether the run was stopped after the present step, before or during its evaluation."""
    return evaluation_due(run) and run.progress.evaluated_step < run.progress.step


def save_wanted(run: Run, step: int) -> bool:
    """Whether rank 0 asks for a checkpoint after ``step``, which begins now; the others only learn of it."""
    planned = step % run.plan.save_steps == 0
    due = run.save_clock.due(planned, run.saver.writing) if run.plan.save_by_time else planned
    return due and run.rank == 0


def report(run: Run, metrics: StepMetrics) -> None:
    """One step's line, and after it what it says about the run's health."""
    metrics = replace(metrics, host_memory=anonymous_memory(), device_memory=peak_memory(run.engine.device))
    run.metrics.step(metrics)
    wait = run.waits.pop(metrics.step, None)
    for finding in run.health.observe_step(metrics, metrics.host_memory, wait):
        run.metrics.finding(with_samples(run, finding) if finding.code in NOT_FINITE else finding)
    for finding in run.saver.poll():
        run.metrics.finding(finding)
    run.watch.observe(metrics)


def with_samples(run: Run, finding: Finding) -> Finding:
    """The lowest rung of the ladder: the update was skipped, and here are the samples. All ranks call it."""
    assert finding.step is not None
    samples = find_culprits(run.engine, run.batches, run.data.train, run.data_step(finding.step - 1))
    run.metrics.recovery({"step": finding.step, "rung": "skip", "trouble": finding.code, "samples": samples})
    return replace(finding, message=f"{finding.message}: the update was skipped; samples: {shorten(samples)}")


def observed_trouble(run: Run, result: StepResult, evaluating: bool, last: bool) -> Trouble | None:
    """Have this step watched; why the run can't go on, the same on every rank. Broken weights need no evaluation."""
    step, every = run.progress.step, run.config.recovery.parameter_check_steps
    if result.update.exhausted:
        run.watch.observe_exhausted_scale(step)
    if evaluating or step % every == 0:
        check_weights(run)
    if last:
        run.watch.observe_end(step)
    return run.trouble


def check_weights(run: Run) -> bool:
    """Look at the weights of all ranks; True if all are finite, as all ranks learn. The run is in trouble if not."""
    gathered = run.engine.control.gather(run.engine.broken_parameters())
    broken = list(dict.fromkeys(name for names in gathered for name in names))  # ranks mostly name the same
    run.watch.observe_parameters(run.progress.step, broken)
    return not broken


def evaluate_now(run: Run) -> bool:
    """Evaluate on the held-out file; True if it is the best so far. Asked to stop meanwhile, there is no result."""
    store, engine, progress = run.data.held_out, run.engine, run.progress
    assert store is not None
    num_bytes = store.num_bytes if store.kind == "pretrain" else None
    try:
        result = evaluate(
            engine.module,
            until_stop(run),
            engine.device,
            progress.step,
            num_bytes=num_bytes,
            sum_over_ranks=engine.sum_over_ranks,
        )
    except Interrupted:
        return False
    progress.evaluated_step = progress.step
    improved = progress.best.observe(progress.step, result.loss)
    run.metrics.evaluation(result, progress.step)
    for finding in run.health.observe_evaluation(progress.step, result.loss):
        run.metrics.finding(finding)
    write_samples(run)
    return improved


def write_samples(run: Run) -> None:
    """Have the prompts of `samples:` answered by the weights as they are; all ranks call it, and wait for rank 0."""
    if run.sampler is None:
        return
    run.watchdog.beat(EVALUATION)
    weights = run.engine.weights()  # gathered from all ranks
    if run.rank == 0:
        run.metrics.samples(run.sampler.write(run.progress.step, weights, run.engine.device))


class Interrupted(Exception):
    """A rank was asked to stop during an evaluation."""


def until_stop(run: Run) -> Iterator[Batch]:
    """The held-out batches, equally many on every rank; raises Interrupted on all ranks at the same one."""
    for index, batch in enumerate(run.held_out):
        run.metrics.evaluating(index, len(run.held_out))
        run.watchdog.beat(EVALUATION)
        if index % LOOK_UP == 0 and run.engine.sum_over_ranks([float(run.stop.requested)])[0] > 0:
            raise Interrupted
        yield batch


def out_of_patience(run: Run) -> bool:
    """Whether held-out loss has not improved for ``early_stopping_patience`` evaluations."""
    patience = run.config.early_stopping_patience
    return patience is not None and run.progress.best.without_gain >= patience


def save(run: Run, best: bool = False) -> None:
    """Take a snapshot for a checkpoint; it is written, and old ones deleted, while training goes on.

    A checkpoint is never made of broken weights, whatever asks for one: then the run is in trouble instead.
    """
    if not check_weights(run):
        return
    run.watchdog.beat(SAVE)
    with run.save_clock.saving():
        run.progress.health, run.progress.watch = run.health.state(), run.watch.state()
        about = {**run.about, "applied": run.progress.applied}
        run.saver.finish()  # last_good looks at what is there
        run.saver.save(run.progress.step, {"progress": run.progress.state()}, about, best, last_good(run))


def last_good(run: Run) -> set[Path]:
    """While a spike is open, the checkpoint from before it: it may be gone back to."""
    onset = run.watch.open_onset()
    if onset is None:
        return set()
    before = [c.path for c in all_checkpoints(run.run_dir) if c.step <= onset - LEAD]
    return set(before[:1])
