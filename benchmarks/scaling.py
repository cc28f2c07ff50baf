"""Two gloo ranks against one, on one machine: speed, and what they send in a step.

    python benchmarks/scaling.py [--data F] [--deepspeed_config J] [--accumulation 4] [--rounds 5] [--json OUT]

Weak scaling: each rank has one thread and the same micro-batches, so two ranks do twice the work of one. The efficiency
is tokens/s of two ranks over twice those of one, by round, alternating. Two ranks on two cores share caches and memory
bandwidth, so it is a lower bound on what two machines would do as far as the trainer goes. Traffic is counted in a step
(traffic.py): payload bytes by collective, the same on every rank.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import options as shared
from benchmarks.figures import machine, markdown, spread, write_json
from benchmarks.workers import Round, Worker, alternate


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    text = shared.corpus(options)
    total = options.warmup + options.rounds * options.steps + 1
    settings = {"gradient_accumulation_steps": options.accumulation}
    workers: dict[str, Worker] = {}
    try:
        for ranks in (1, 2):
            job = shared.job(
                options,
                text,
                "ours",
                ranks=ranks,
                total_steps=total,
                settings=settings,
                threads=1,
                micro_batch=options.micro_batch,
                deepspeed_config=options.deepspeed_config,
            )
            workers[f"{ranks} rank{'s' if ranks > 1 else ''}"] = Worker(f"{ranks} ranks", job)
        rounds = alternate(workers, options.rounds, options.steps, options.warmup)
        sent = workers["2 ranks"].ask("steps 1")["traffic"]
    finally:
        for worker in workers.values():
            worker.close()
    shares = efficiencies(rounds["1 rank"], rounds["2 ranks"])
    about = machine(1)
    print(f"{about['machine']}, {options.preset}, {options.deepspeed_config}, accumulation {options.accumulation}")
    print(f"efficiency of two ranks: {spread(shares)}")
    print(table(sent))
    write_json(options.json, about | {"efficiency": shares, "traffic": sent, "preset": options.preset})


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = shared.parser(__doc__)
    parser.add_argument("--rounds", type=shared.positive, default=5)
    parser.add_argument("--steps", type=shared.positive, default=2, help="optimizer steps a round")
    parser.add_argument("--warmup", type=shared.positive, default=1)
    parser.add_argument("--micro-batch", type=shared.positive, default=2)
    parser.add_argument("--accumulation", type=shared.positive, default=4)
    parser.add_argument("--deepspeed_config", default="ds_configs/bf16.json")
    return parser.parse_args(arguments)


def efficiencies(one: Sequence[Round], two: Sequence[Round]) -> list[float]:
    """Tokens/s of two ranks over twice those of one, by round."""
    return [b.speed / (2 * a.speed) for a, b in zip(one, two, strict=True)]


def table(sent: Mapping[str, Any]) -> str:
    """Calls and payload of one optimizer step, by collective."""
    rows = [[name, str(calls), f"{size / 1e6:.2f} MB"] for name, (calls, size) in sent.items()]
    return markdown(["collective", "calls a step", "payload a step"], rows)


if __name__ == "__main__":
    shared.exit_cleanly(main)
