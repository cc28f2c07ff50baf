"""Training speed side by side: our trainer, a bare PyTorch loop, Hugging Face Trainer, MiniMind's way.

    python benchmarks/trainer.py [--data F] [--rounds 5] [--steps 3] [--threads 2] [--sides ours,bare,...] [--json OUT]

The same text, tokenizer, model shape, number of threads and trained tokens a step for every side; trained tokens are
positions with a loss, never padding. Each side is one process (workers.py says how they take turns); after --warmup
steps that don't count they alternate for --rounds rounds of --steps steps. Printed are medians over the rounds, and
our speed over theirs as median (smallest..largest) of the ratios by round: by the clock, and by CPU time, which other
programs on the machine disturb less.

Sides: ours (bf16.json through DeepSpeed), bare (side_bare.py), hf and hf_deepspeed (side_huggingface.py), minimind
(side_minimind.py).
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

SIDES = {
    "ours": "our trainer, bf16, DeepSpeed",
    "bare": "bare PyTorch loop, same rows",
    "hf": "Hugging Face Trainer, bf16",
    "hf_deepspeed": "Hugging Face Trainer, bf16, DeepSpeed",
    "minimind": "MiniMind's way, fp32, padded to 340",
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
    print(
        f"{about['machine']}, {options.threads} thread(s) a side, {options.preset}, {options.rounds} rounds"
    )
    print(table(rounds))
    write_json(options.json, about | {"preset": options.preset, "results": results(rounds)})


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = shared.parser(__doc__)
    parser.add_argument("--rounds", type=shared.positive, default=5)
    parser.add_argument("--steps", type=shared.positive, default=3, help="optimizer steps a round")
    parser.add_argument("--warmup", type=shared.positive, default=2)
    parser.add_argument("--micro-batch", type=shared.positive, default=8, help="packed rows a step")
    parser.add_argument("--deepspeed_config", default="ds_configs/bf16.json", help="ours and hf_deepspeed")
    parser.add_argument(
        "--sides", type=_sides, default=list(SIDES), help="comma-separated; ours is always one"
    )
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
        side: Worker(side, shared.job(options, text, side, total_steps=total, micro_batch=options.micro_batch,
                                      deepspeed_config=options.deepspeed_config))
        for side in options.sides
    }  # fmt: skip


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


def table(rounds: Mapping[str, Sequence[Round]]) -> str:
    """One line a side."""
    lines = []
    for side, figures in results(rounds).items():
        versus = [spread(figures[key]) if key in figures else "" for key in ("ratios", "cpu_ratios")]
        target = f"at least {figures['target']}" if "target" in figures else ""
        lines.append([SIDES[side], f"{figures['tokens_per_second']:,.0f}", *versus, target])
    return markdown(["side", "trained tokens/s", "ours is", "by CPU time", "target"], lines)


if __name__ == "__main__":
    shared.exit_cleanly(main)
