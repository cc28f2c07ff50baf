"""Time and trained tokens to the same held-out bits a byte: MiniMind's recipe against our default recipes.

    python benchmarks/time_to_loss.py [--data F] [--target 2.9] [--max-steps 150] [--every 5] [--threads 2] [--json OUT]

One model shape, one text, one set of initial weights, as many trained tokens a step on every side. MiniMind's recipe:
AdamW 5e-4 with betas 0.9/0.999, cosine from the first step, no warmup, fp32 on a CPU, documents padded to 340, the mean
of each micro-batch. Ours: ds_configs/bf16.json and ds_configs/muon.json with the trainer's own defaults. All schedules
span --max-steps. The sides take turns, --every steps each, then evaluate off the clock; a side stops when its held-out
bits a byte are at the target or below, so figures are rounded up to --every steps. --target 0 never stops: the curves
of whole runs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import options as shared
from benchmarks.figures import machine, markdown, write_json
from benchmarks.workers import Worker

RECIPES = {
    "minimind": ("minimind", {}),
    "adamw": ("ours", {"deepspeed_config": "ds_configs/bf16.json"}),
    "muon": ("ours", {"deepspeed_config": "ds_configs/muon.json"}),
}
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

    def crossing(self, target: float) -> tuple[int, float, float] | None:
        """The first point at ``target`` or below; None if there is none."""
        return next((point for point in self.points if point[2] <= target), None)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    text = shared.corpus(options)
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
    about = machine(options.threads)
    print(f"{about['machine']}, {options.threads} thread(s) a side, {options.preset}, held-out bits a byte")
    print(table(courses, options.target))
    curves = {name: course.points for name, course in courses.items()}
    write_json(options.json, about | {"target": options.target, "every": options.every, "courses": curves})


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = shared.parser(__doc__)
    parser.add_argument("--target", type=float, default=2.9, help="held-out bits a byte")
    parser.add_argument("--max-steps", type=shared.positive, default=150)
    parser.add_argument("--every", type=shared.positive, default=5, help="steps between evaluations")
    parser.add_argument("--micro-batch", type=shared.positive, default=8, help="packed rows a step")
    parser.add_argument("--recipes", type=lambda text: text.split(","), default=list(RECIPES))
    options = parser.parse_args(arguments)
    unknown = [name for name in options.recipes if name not in RECIPES]
    if unknown:
        parser.error(f"--recipes: {unknown[0]!r} is none of {', '.join(RECIPES)}")
    return options


def race(workers: Mapping[str, Worker], max_steps: int, every: int, target: float) -> dict[str, Course]:
    """Train in turns until each recipe is at the target or out of steps."""
    courses = {name: Course() for name in workers}
    running = list(workers)
    while running:
        for name in list(running):
            course, steps = courses[name], min(every, max_steps - courses[name].steps)
            done = workers[name].train(steps)
            course.add(steps, done.tokens, done.seconds, workers[name].ask("evaluate")["bits_per_byte"])
            if course.crossing(target) or course.steps >= max_steps:
                running.remove(name)
    return courses


def table(courses: Mapping[str, Course], target: float) -> str:
    """One line a recipe: where it crossed, and that as a share of MiniMind's tokens and seconds."""
    reference = courses["minimind"].crossing(target) if "minimind" in courses else None
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
    best, crossing = min(point[2] for point in course.points), course.crossing(target)
    figures: list[Any] = ["not reached", "", "", ""]
    if crossing:
        shares = [f"{crossing[i] / reference[i]:.2f}" if reference else "n/a" for i in (0, 1)]
        figures = [f"{crossing[0]:,}", f"{crossing[1]:.1f}", *shares]
    return [name, str(course.steps), f"{best:.3f}", *figures]


if __name__ == "__main__":
    shared.exit_cleanly(main)
