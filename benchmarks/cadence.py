"""What checkpoints and held-out evaluations cost, as shares of a run at the default cadence.

    python benchmarks/cadence.py [--data F] [--steps 20] [--run-steps 150,1000,80000] [--threads 2] [--json OUT]

The real loop runs --steps steps with a checkpoint and an evaluation every --every of them; the functions that the loop
calls for both are timed. With the medians of a step, a save and an evaluation, runs of other lengths are then gone
through at the cadence that the trainer chooses by itself: the evaluations planned and the saves decided by its own code
(minimind/training/run/cadence.py) on a clock that these medians move. Each evaluation is taken to be the best so far,
which saves once more: the worst case. The held-out text is --held-out-kilobytes of JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import wraps
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import options as shared
from benchmarks.corpus import make_corpus
from benchmarks.figures import machine, markdown, write_json
from minimind.training.run.cadence import SHARE, SaveClock, evaluation_steps, usual_steps


@dataclass
class Costs:
    """Seconds of each step, save and evaluation; positions of a step on all ranks and of the held-out text."""

    step_positions: int
    held_out_positions: int
    steps: list[float] = field(default_factory=list)
    saves: list[float] = field(default_factory=list)
    evaluations: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Course:
    """A run at the default cadence. ``saves``: all, ``periodic``: those that no evaluation and no end asked for."""

    total_steps: int
    evaluate_every: int
    evaluations: int
    saves: int
    periodic: int
    evaluating: float  # shares of the run's time
    saving: float


def course(costs: Costs, total: int) -> Course:
    """Go through a run of ``total`` steps."""
    now = 0.0
    clock = SaveClock(lambda: now)
    every = evaluation_steps(total, costs.step_positions, costs.held_out_positions)
    step, save, evaluation = (median(each) for each in (costs.steps, costs.saves, costs.evaluations))
    saves = periodic = 0
    for number in range(1, total + 1):
        due = clock.due(number % usual_steps(total) == 0, writing=False)
        evaluating = number % every == 0 or number == total
        now += step + evaluating * evaluation
        if due or evaluating:
            saves, periodic = saves + 1, periodic + (not evaluating)
            with clock.saving():
                now += save
    evaluations = -(-total // every)
    return Course(total, every, evaluations, saves, periodic, evaluations * evaluation / now, saves * save / now)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    text = make_corpus(options.data, options.vocab_size, options.row_length, options.held_out_kilobytes)
    job = shared.job(
        options,
        text,
        "ours",
        micro_batch=options.micro_batch,
        total_steps=options.steps,
        deepspeed_config=options.deepspeed_config,
    )
    with contextlib.redirect_stdout(sys.stderr):  # the trainer's own lines
        costs = measure(job, options.every)
    about = machine(options.threads)
    print(f"{about['machine']}, {options.threads} thread(s), {options.preset}, {options.deepspeed_config}")
    print(
        f"medians: step {median(costs.steps):.3f} s, save {median(costs.saves):.3f} s, "
        f"evaluation of {options.held_out_kilobytes} kB {median(costs.evaluations):.3f} s"
    )
    courses = [course(costs, total) for total in options.run_steps]
    print(table(courses))
    results = [asdict(each) for each in courses]
    write_json(options.json, about | {"costs": vars(costs), "runs": results, "target": SHARE})


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = shared.parser(__doc__)
    parser.add_argument("--steps", type=shared.positive, default=20)
    parser.add_argument("--every", type=shared.positive, default=4, help="steps between saves and evaluations")
    parser.add_argument("--micro-batch", type=shared.positive, default=8)
    parser.add_argument("--held-out-kilobytes", type=shared.positive, default=64)
    parser.add_argument("--deepspeed_config", default="ds_configs/bf16.json")
    parser.add_argument(
        "--run-steps", type=lambda text: [shared.positive(part) for part in text.split(",")], default=[150, 1000, 80000]
    )
    return parser.parse_args(arguments)


def measure(job: Any, every: int) -> Costs:
    """Run the loop in this process with its parts timed."""
    import torch

    from benchmarks import side_ours
    from minimind.training.engine.engine import start_processes
    from minimind.training.run import loop

    torch.set_num_threads(job.threads)
    start_processes()
    save = loop.save
    with tempfile.TemporaryDirectory() as directory:
        run = side_ours.make_run(job, Path(directory))  # switches saving off ...
        assert run.data.held_out is not None  # the job names one
        costs = Costs(run.batches.rows_per_step * job.row_length, run.data.held_out.num_predictions)
        loop.save = timed(save, costs.saves)  # ... here it is wanted
        loop.evaluate_now = timed(loop.evaluate_now, costs.evaluations)
        loop.train_step = timed(loop.train_step, costs.steps)
        run.plan = replace(run.plan, save_steps=every, eval_steps=every)
        loop.train(run)
        run.saver.finish()  # the last checkpoint is still being written in the background
    del costs.steps[:2]  # warm-up
    return costs


def timed(work: Callable[..., Any], seconds: list[float]) -> Callable[..., Any]:
    """``work``, appending how long each call took (the device is waited for)."""
    from benchmarks.workers import wait_for_device

    @wraps(work)
    def call(*args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        result = work(*args, **kwargs)
        wait_for_device()
        seconds.append(time.perf_counter() - start)
        return result

    return call


def table(courses: Sequence[Course]) -> str:
    """Shares by length of run, each against its ``SHARE`` of the time."""
    header = [
        "steps of the run",
        "evaluate every",
        "evaluations",
        "their share",
        "saves",
        "periodic ones",
        "their share",
        f"each within {SHARE:.0%}",
    ]
    return markdown(header, [row(each) for each in courses])


def row(each: Course) -> list[str]:
    """One line of the table."""
    within = max(each.evaluating, each.saving) <= SHARE
    counts = [f"{each.saves:,}", f"{each.periodic:,}"]
    return [
        f"{each.total_steps:,}",
        f"{each.evaluate_every:,}",
        f"{each.evaluations:,}",
        f"{each.evaluating:.2%}",
        *counts,
        f"{each.saving:.2%}",
        "yes" if within else "NO",
    ]


if __name__ == "__main__":
    shared.exit_cleanly(main)
