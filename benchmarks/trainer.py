"""Training speed side by side: our trainer, a bare PyTorch loop, Hugging Face Trainer, MiniMind's way.

    python benchmarks/trainer.py [--data F] [--deepspeed_config J] [--rounds 5] [--steps 3] [--threads 2]
                                 [--sides ours,bare,...] [--json OUT]

The same text, tokenizer, model shape, precision (the JSON's; by default that of this machine), number of threads and
trained tokens a step for every side; trained tokens are positions with a loss, never padding. Where the machine only
emulates the precision, the table says so. Each side is one process (workers.py says how they take turns); after
--warmup steps that don't count they alternate for --rounds rounds of --steps steps. Printed are medians over the
rounds, and our speed over theirs as median (smallest..largest) of the ratios by round: by the clock, and by CPU time,
which other programs on the machine disturb less.

Sides: ours (the JSON through DeepSpeed), bare (side_bare.py), hf and hf_deepspeed (side_huggingface.py), minimind
(side_minimind.py; on a CPU MiniMind itself knows fp32 only).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import options as shared
from benchmarks.corpus import Corpus
from benchmarks.figures import machine, markdown, ratios, spread, write_json
from benchmarks.workers import Round, Worker, alternate
from minimind.base.hardware import Hardware, choose_config, detect

SIDES = {
    "ours": "our trainer, DeepSpeed",
    "bare": "bare PyTorch loop, same rows",
    "hf": "Hugging Face Trainer",
    "hf_deepspeed": "Hugging Face Trainer, DeepSpeed",
    "minimind": "MiniMind's way, padded to 340",
}
TARGETS = {"bare": 0.98, "hf": 1.6, "hf_deepspeed": 1.6, "minimind": 3.0}


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    text = shared.corpus(options)
    workers = start(options, text)
    try:
        rounds = alternate(workers, options.rounds, options.steps, options.warmup)
    finally:
        for worker in workers.values():
            worker.close()
    about = machine(options.threads)
    precisions = {side: computed_in(worker.job.precision, detect()) for side, worker in workers.items()}
    print(f"{about['machine']}, {options.threads} thread(s) a side, {options.preset}, {options.rounds} rounds")
    print(table(rounds, precisions))
    about |= {"preset": options.preset, "deepspeed_config": options.deepspeed_config, "precisions": precisions}
    write_json(options.json, about | {"results": results(rounds)})


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = shared.parser(__doc__)
    parser.add_argument("--rounds", type=shared.positive, default=5)
    parser.add_argument("--steps", type=shared.positive, default=3, help="optimizer steps a round")
    parser.add_argument("--warmup", type=shared.positive, default=2)
    parser.add_argument("--micro-batch", type=shared.positive, default=8, help="packed rows a step")
    parser.add_argument("--deepspeed_config", default=str(choose_config()[0]), help="its precision is every side's")
    parser.add_argument("--sides", type=_sides, default=list(SIDES), help="comma-separated; ours is always one")
    return parser.parse_args(arguments)


def _sides(text: str) -> list[str]:
    names = ["ours", *(name for name in text.split(",") if name != "ours")]
    unknown = [name for name in names if name not in SIDES]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(SIDES)}")
    return names


def start(options: argparse.Namespace, text: Corpus) -> dict[str, Worker]:
    """One worker a side, building its model while the others do."""
    total = options.warmup + options.rounds * options.steps
    return {
        side: Worker(
            side,
            shared.job(
                options,
                text,
                side,
                total_steps=total,
                micro_batch=options.micro_batch,
                deepspeed_config=options.deepspeed_config,
            ),
        )
        for side in options.sides
    }


def results(rounds: Mapping[str, Sequence[Round]]) -> dict[str, Any]:
    """Figures by side: tokens a second, tokens a step, ratios by round (ours over theirs), the target."""
    found: dict[str, Any] = {}
    for side, own in rounds.items():
        found[side] = {
            "tokens_per_second": median(item.speed for item in own),
            "tokens_per_cpu_second": median(item.cpu_speed for item in own),
            "trained_tokens": [item.tokens for item in own],
        }
        if side != "ours":
            found[side]["ratios"] = ratios(rounds["ours"], own)
            found[side]["cpu_ratios"] = ratios(rounds["ours"], own, cpu=True)
            found[side]["target"] = TARGETS[side]
    return found


def computed_in(precision: str, hardware: Hardware) -> str:
    """The precision, and whether this machine computes in it or only emulates it."""
    native = precision == "fp32" or getattr(hardware, precision)
    return precision if native else f"{precision}, emulated"


def table(rounds: Mapping[str, Sequence[Round]], precisions: Mapping[str, str]) -> str:
    """One line a side. ``precisions``: what each computes in."""
    lines = []
    for side, figures in results(rounds).items():
        versus = [spread(figures[key]) if key in figures else "" for key in ("ratios", "cpu_ratios")]
        target = f"at least {figures['target']}" if "target" in figures else ""
        lines.append([SIDES[side], precisions[side], f"{figures['tokens_per_second']:,.0f}", *versus, target])
    return markdown(["side", "precision", "trained tokens/s", "ours is", "by CPU time", "target"], lines)


if __name__ == "__main__":
    shared.exit_cleanly(main)
