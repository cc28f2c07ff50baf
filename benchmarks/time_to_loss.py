"""Time and trained tokens to the same held-out bits a byte: MiniMind's recipe against our default recipes.

    python benchmarks/time_to_loss.py [--data F] [--rounds 5] [--max-steps 60] [--every 5] [--threads 2] [--json OUT]

One model shape, one text, one set of initial weights, as many trained tokens a step on every side. MiniMind's recipe:
AdamW 5e-4 with betas 0.9/0.999, cosine from the first step, no warmup, fp32 on a CPU, documents padded to 340, the mean
of each micro-batch. Ours: ds_configs/bf16.json and ds_configs/muon.json with the trainer's own defaults. All schedules
span --max-steps, so MiniMind's has come down to its end when it is measured and ours have not; with `--plan muon=15`
one of ours is planned for as many steps and comes down in them.

Each round is a race of its own with another seed, for initial weights and the order of the text, the same on all
sides; printed are medians over the rounds with the smallest and the largest. In a round the goal is the best that
MiniMind's recipe reaches in --max-steps (or --target, to end sooner). Turns: MiniMind trains --every steps, then each
of our recipes until it is no worse; held-out text is evaluated off the clock. Figures are rounded up to --every steps.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import options as shared
from benchmarks.corpus import Corpus, make_corpus
from benchmarks.figures import machine, markdown, spread, write_json
from benchmarks.workers import FIRST_SEED, Worker
from minimind.base.hardware import detect

RECIPES = {
    "minimind": ("minimind", {}),
    "adamw": ("ours", {"deepspeed_config": "ds_configs/bf16.json"}),
    "muon": ("ours", {"deepspeed_config": "ds_configs/muon.json"}),
}
HELD_OUT_KILOBYTES = 32  # it is evaluated dozens of times
LEADER = "minimind"

Point = tuple[int, float, float]  # trained tokens, seconds, bits a byte


@dataclass
class Course:
    """One recipe's way down: a point after each stretch, and the optimizer steps done by then."""

    points: list[Point] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)

    @property
    def steps(self) -> int:
        """Optimizer steps so far."""
        return self.marks[-1] if self.marks else 0

    def add(self, steps: int, tokens: int, seconds: float, bits: float) -> None:
        """One more stretch; tokens and seconds are its own."""
        before = self.points[-1] if self.points else (0, 0.0, 0.0)
        self.points.append((before[0] + tokens, before[1] + seconds, bits))
        self.marks.append(self.steps + steps)

    @property
    def best(self) -> float:
        """Lowest bits a byte so far; infinite before the first stretch."""
        return min((point[2] for point in self.points), default=math.inf)

    def crossing(self, target: float) -> Point | None:
        """The first point at ``target`` or below; None if there is none."""
        return next((point for point in self.points if point[2] <= target), None)

    def steps_at(self, point: Point) -> int:
        """Optimizer steps at one of the points."""
        return self.marks[self.points.index(point)]


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    text = make_corpus(options.data, options.vocab_size, options.row_length, HELD_OUT_KILOBYTES)
    rounds = []
    for number in range(options.rounds):
        courses = one_round(options, text, FIRST_SEED + number)
        rounds.append((goal(courses, options.target), courses))
        print(f"round {number + 1}\n{table(rounds[-1:])}", file=sys.stderr, flush=True)
    about = machine(options.threads)
    print(f"{about['machine']}, {options.threads} thread(s) a side, {options.preset}, {options.rounds} round(s)")
    print(table(rounds))
    curves = [{name: course.points for name, course in courses.items()} for _, courses in rounds]
    targets = [target for target, _ in rounds]
    write_json(options.json, about | {"targets": targets, "every": options.every, "courses": curves})


def one_round(options: argparse.Namespace, text: Corpus, seed: int) -> dict[str, Course]:
    """One race from one seed, each side in a process of its own."""
    workers = {}
    steps = {name: options.plan.get(name, options.max_steps) for name in options.recipes}
    try:
        for name in options.recipes:
            side, changes = RECIPES[name]
            if side == LEADER:  # MiniMind's own: autocast on a GPU only
                changes = {"precision": "bf16" if detect().device_type == "cuda" else "fp32", **changes}
            job = shared.job(
                options,
                text,
                side,
                total_steps=steps[name],
                micro_batch=options.micro_batch,
                seed=seed,
                **changes,
            )
            workers[name] = Worker(name, job)
        return race(workers, steps, options.every, options.target)
    finally:
        for worker in workers.values():
            worker.close()


def goal(courses: Mapping[str, Course], target: float | None) -> float:
    """The bits a byte that count as reached."""
    return courses[LEADER].best if target is None else target


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = shared.parser(__doc__)
    parser.add_argument("--target", type=float, help="held-out bits a byte; default: what MiniMind's recipe reaches")
    parser.add_argument("--rounds", type=shared.positive, default=5)
    parser.add_argument("--max-steps", type=shared.positive, default=60)
    parser.add_argument("--every", type=shared.positive, default=5, help="steps between evaluations")
    parser.add_argument("--micro-batch", type=shared.positive, default=8, help="packed rows a step")
    parser.add_argument("--plan", type=_plan, default={}, help="steps of a recipe's own schedule: muon=15,adamw=42")
    parser.add_argument("--recipes", type=_recipes, default=list(RECIPES), help="minimind is always one")
    return parser.parse_args(arguments)


def _recipes(text: str) -> list[str]:
    names = [LEADER, *(name for name in text.split(",") if name != LEADER)]
    unknown = [name for name in names if name not in RECIPES]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(RECIPES)}")
    return names


def _plan(text: str) -> dict[str, int]:
    steps = {name: shared.positive(number) for name, _, number in (part.partition("=") for part in text.split(","))}
    unknown = [name for name in steps if name not in RECIPES or name == LEADER]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(set(RECIPES) - {LEADER})}")
    return steps


def race(
    workers: Mapping[str, Worker], steps: Mapping[str, int], every: int, target: float | None
) -> dict[str, Course]:
    """MiniMind to the target or the end of its steps, our recipes abreast of it in loss. ``steps``: each one's most."""
    courses = {name: Course() for name in workers}
    leader = courses[LEADER]
    while leader.steps < steps[LEADER] and not (target is not None and leader.crossing(target)):
        stretch(workers[LEADER], leader, min(every, steps[LEADER] - leader.steps))
        for name, course in courses.items():
            while course.best > leader.best and course.steps < steps[name]:
                stretch(workers[name], course, min(every, steps[name] - course.steps))
    return courses


def stretch(worker: Worker, course: Course, steps: int) -> None:
    """Train on the clock, evaluate off it."""
    done = worker.train(steps)
    course.add(steps, done.tokens, done.seconds, worker.ask("evaluate")["bits_per_byte"])
    line = f"{worker.name}: step {course.steps}, {course.points[-1][1]:.1f} s, {course.points[-1][2]:.3f} bits/byte"
    print(line, file=sys.stderr, flush=True)


def table(rounds: Sequence[tuple[float, Mapping[str, Course]]]) -> str:
    """One line a recipe: its steps, and where it crossed each round's goal as shares of MiniMind's tokens and time."""
    header = ["recipe", "steps to the goal", "bits/byte there", "of MiniMind's tokens", "of its time"]
    return markdown(header, [_line(name, rounds) for name in rounds[0][1]])


def _line(name: str, rounds: Sequence[tuple[float, Mapping[str, Course]]]) -> list[str]:
    crossings = [courses[name].crossing(target) for target, courses in rounds]
    reached = [crossing for crossing in crossings if crossing]
    if len(reached) < len(rounds):
        return [name, f"not reached in {len(rounds) - len(reached)} of {len(rounds)} round(s)", "", "", ""]
    steps = [courses[name].steps_at(crossing) for (_, courses), crossing in zip(rounds, reached, strict=True)]
    references = [courses[LEADER].crossing(target) for target, courses in rounds]
    return [
        name,
        f"{median(steps):g} ({min(steps)}..{max(steps)})",
        f"{median(c[2] for c in reached):.3f}",
        *(_share(reached, references, part) for part in (0, 1)),
    ]


def _share(reached: Sequence[Point], references: Sequence[Point | None], part: int) -> str:
    if None in references:
        return "n/a"
    return spread([own[part] / other[part] for own, other in zip(reached, references, strict=True) if other])


if __name__ == "__main__":
    shared.exit_cleanly(main)
