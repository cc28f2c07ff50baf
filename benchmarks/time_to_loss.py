"""Time and trained tokens to the same held-out bits a byte: MiniMind's recipe against our default recipes.

    python benchmarks/time_to_loss.py [--data F] [--max-steps 60] [--every 5] [--threads 2] [--json OUT]

One model shape, one text, one set of initial weights, as many trained tokens a step on every side. MiniMind's recipe:
AdamW 5e-4 with betas 0.9/0.999, cosine from the first step, no warmup, fp32 on a CPU, documents padded to 340, the mean
of each micro-batch. Ours: ds_configs/bf16.json and ds_configs/muon.json with the trainer's own defaults. All schedules
span --max-steps, so MiniMind's has come down to its end when it is measured and ours have not.

The goal is the best that MiniMind's recipe reaches in --max-steps (or --target, to end sooner). Turns: MiniMind trains
--every steps, then each of our recipes until it is no worse; held-out text is evaluated off the clock. Figures are
rounded up to --every steps.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import options as shared
from benchmarks.corpus import make_corpus
from benchmarks.figures import machine, markdown, write_json
from benchmarks.workers import Worker

RECIPES = {
    "minimind": ("minimind", {}),
    "adamw": ("ours", {"deepspeed_config": "ds_configs/bf16.json"}),
    "muon": ("ours", {"deepspeed_config": "ds_configs/muon.json"}),
}
HELD_OUT_KILOBYTES = 32  # it is evaluated dozens of times
LEADER = "minimind"
TARGETS = {"tokens": 0.35, "seconds": 0.15}  # of MiniMind's, with the muon recipe


@dataclass
class Course:
    """One recipe's way down: (trained tokens, seconds, bits a byte) after each stretch."""

    points: list[tuple[int, float, float]] = field(default_factory=list)
    steps: int = 0

    def add(self, steps: int, tokens: int, seconds: float, bits: float) -> None:
        """One more stretch; tokens and seconds are its own."""
        before = self.points[-1] if self.points else (0, 0.0, 0.0)
        self.points.append((before[0] + tokens, before[1] + seconds, bits))
        self.steps += steps

    @property
    def best(self) -> float:
        """Lowest bits a byte so far; infinite before the first stretch."""
        return min((point[2] for point in self.points), default=math.inf)

    def crossing(self, target: float) -> tuple[int, float, float] | None:
        """The first point at ``target`` or below; None if there is none."""
        return next((point for point in self.points if point[2] <= target), None)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    text = make_corpus(options.data, options.vocab_size, options.row_length, HELD_OUT_KILOBYTES)
    workers = {}
    try:
        for name in options.recipes:
            side, changes = RECIPES[name]
            job = shared.job(options, text, side, total_steps=options.max_steps, micro_batch=options.micro_batch,
                             **changes)  # fmt: skip
            workers[name] = Worker(name, job)
        courses = race(workers, options.max_steps, options.every, options.target)
    finally:
        for worker in workers.values():
            worker.close()
    target = courses[LEADER].best if options.target is None else options.target
    about = machine(options.threads)
    print(
        f"{about['machine']}, {options.threads} thread(s) a side, {options.preset}, to {target:.3f} held-out bits/byte"
    )
    print(table(courses, target))
    curves = {name: course.points for name, course in courses.items()}
    write_json(options.json, about | {"target": target, "every": options.every, "courses": curves})


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = shared.parser(__doc__)
    parser.add_argument(
        "--target", type=float, help="held-out bits a byte; default: what MiniMind's recipe reaches"
    )
    parser.add_argument("--max-steps", type=shared.positive, default=60)
    parser.add_argument("--every", type=shared.positive, default=5, help="steps between evaluations")
    parser.add_argument("--micro-batch", type=shared.positive, default=8, help="packed rows a step")
    parser.add_argument("--recipes", type=_recipes, default=list(RECIPES), help="minimind is always one")
    return parser.parse_args(arguments)


def _recipes(text: str) -> list[str]:
    names = [LEADER, *(name for name in text.split(",") if name != LEADER)]
    unknown = [name for name in names if name not in RECIPES]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(RECIPES)}")
    return names


def race(
    workers: Mapping[str, Worker], max_steps: int, every: int, target: float | None
) -> dict[str, Course]:
    """MiniMind to the target or the end of its steps, our recipes abreast of it in loss."""
    courses = {name: Course() for name in workers}
    leader = courses[LEADER]
    while leader.steps < max_steps and not (target is not None and leader.crossing(target)):
        stretch(workers[LEADER], leader, min(every, max_steps - leader.steps))
        for name, course in courses.items():
            while course.best > leader.best and course.steps < max_steps:
                stretch(workers[name], course, min(every, max_steps - course.steps))
    return courses


def stretch(worker: Worker, course: Course, steps: int) -> None:
    """Train on the clock, evaluate off it."""
    done = worker.train(steps)
    course.add(steps, done.tokens, done.seconds, worker.ask("evaluate")["bits_per_byte"])
    line = f"{worker.name}: step {course.steps}, {course.points[-1][1]:.1f} s, {course.points[-1][2]:.3f} bits/byte"
    print(line, file=sys.stderr, flush=True)


def table(courses: Mapping[str, Course], target: float) -> str:
    """One line a recipe: where it crossed, and that as a share of MiniMind's tokens and seconds."""
    reference = courses[LEADER].crossing(target)
    lines = [_line(name, course, target, reference) for name, course in courses.items()]
    header = [
        "recipe",
        "steps",
        "best bits/byte",
        "tokens to target",
        "seconds",
        "of MiniMind's tokens",
        "of its time",
    ]
    return markdown(header, lines)


def _line(name: str, course: Course, target: float, reference: tuple[int, float, float] | None) -> list[str]:
    best, crossing = course.best, course.crossing(target)
    figures: list[Any] = ["not reached", "", "", ""]
    if crossing:
        shares = [f"{crossing[i] / reference[i]:.2f}" if reference else "n/a" for i in (0, 1)]
        figures = [f"{crossing[0]:,}", f"{crossing[1]:.1f}", *shares]
    return [name, str(course.steps), f"{best:.3f}", *figures]


if __name__ == "__main__":
    shared.exit_cleanly(main)
