"""What checkpoints and held-out evaluations cost, as shares of a run at the default cadence.

    python benchmarks/cadence.py [--data F] [--steps 20] [--run-steps 150,1000,80000] [--threads 2] [--json OUT]

The real loop runs --steps steps with a checkpoint and an evaluation every --every of them; the functions that the loop
calls for both are timed. Medians of a step, a save and an evaluation then give their shares of runs of other lengths at
the cadence that the trainer chooses by itself (setup.plan_steps: ten a run, at most 1,000 steps apart). The held-out
text is --held-out-kilobytes of JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import options as shared
from benchmarks.corpus import make_corpus
from benchmarks.figures import machine, markdown, write_json

TARGET = 0.02


@dataclass
class Costs:
    """Seconds of each step, save and evaluation."""

    steps: list[float] = field(default_factory=list)
    saves: list[float] = field(default_factory=list)
    evaluations: list[float] = field(default_factory=list)

    def shares(self, total: int, save_steps: int, eval_steps: int) -> tuple[float, float]:
        """Saves' and evaluations' shares of the time of a run of ``total`` steps."""
        saving = -(-total // save_steps) * median(self.saves)
        evaluating = -(-total // eval_steps) * median(self.evaluations)
        whole = total * median(self.steps) + saving + evaluating
        return saving / whole, evaluating / whole


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    text = make_corpus(options.data, options.vocab_size, options.row_length, options.held_out_kilobytes)
    job = shared.job(options, text, "ours", micro_batch=options.micro_batch, total_steps=options.steps,
                     deepspeed_config=options.deepspeed_config)  # fmt: skip
    with contextlib.redirect_stdout(sys.stderr):  # the trainer's own lines
        costs = measure(job, options.every)
    about = machine(options.threads)
    print(f"{about['machine']}, {options.threads} thread(s), {options.preset}, {options.deepspeed_config}")
    print(f"medians: step {median(costs.steps):.3f} s, save {median(costs.saves):.3f} s, "
          f"evaluation of {options.held_out_kilobytes} kB {median(costs.evaluations):.3f} s")  # fmt: skip
    print(table(costs, options.run_steps))
    write_json(options.json, about | {"costs": vars(costs), "run_steps": options.run_steps, "target": TARGET})


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = shared.parser(__doc__)
    parser.add_argument("--steps", type=shared.positive, default=20)
    parser.add_argument(
        "--every", type=shared.positive, default=4, help="steps between saves and evaluations"
    )
    parser.add_argument("--micro-batch", type=shared.positive, default=8)
    parser.add_argument("--held-out-kilobytes", type=shared.positive, default=64)
    parser.add_argument("--deepspeed_config", default="ds_configs/bf16.json")
    parser.add_argument("--run-steps", type=lambda text: [shared.positive(part) for part in text.split(",")],
                        default=[150, 1000, 80000])  # fmt: skip
    return parser.parse_args(arguments)


def measure(job: Any, every: int) -> Costs:
    """Run the loop in this process with its parts timed."""
    import torch

    from benchmarks import side_ours
    from minimind.training import loop
    from minimind.training.engine import start_processes

    torch.set_num_threads(job.threads)
    start_processes()
    save, costs = loop.save, Costs()
    with tempfile.TemporaryDirectory() as directory:
        run = side_ours.make_run(job, Path(directory))  # switches saving off ...
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


def table(costs: Costs, run_steps: Sequence[int]) -> str:
    """Shares by length of run."""
    from minimind.config import RunConfig
    from minimind.training.setup import plan_steps

    rows = []
    for total in run_steps:
        plan = plan_steps(RunConfig(max_steps=total), total, has_held_out=True)
        assert plan.eval_steps is not None
        saving, evaluating = costs.shares(total, plan.save_steps, plan.eval_steps)
        rows.append([f"{total:,}", f"{plan.save_steps:,}", f"{saving:.2%}", f"{evaluating:.2%}"])
    return markdown(["steps of the run", "save and evaluate every", "saves", "evaluations"], rows)


if __name__ == "__main__":
    shared.exit_cleanly(main)
