"""Peak memory of a training step: our trainer, with activation checkpointing, and Hugging Face Trainer.

    python benchmarks/memory.py [--data F] [--micro-batches 8,16,32] [--threads 2] [--json OUT]

Each figure is a fresh process that trains two steps of the same full rows (equal shapes: Hugging Face gets packed
rows too, as documents). Counted is the peak above what the process held before its model was built: on a GPU what torch
allocated, on a CPU resident memory, with glibc told to give large blocks back at once (MALLOC_MMAP_THRESHOLD_), so that
it is what was in use and not what the allocator kept. "a row" is the growth by row
between the smallest and the largest micro-batch; from it and --device-memory the largest micro-batch that fits is
computed (not tried out).
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import options as shared
from benchmarks.figures import machine, markdown, write_json
from benchmarks.workers import Job, Worker
from minimind.commands.plan import parse_bytes
from minimind.config.memory import RESERVE

FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "ours": ("ours", {}),
    "ours, checkpointing": ("ours", {"settings": {"gradient_checkpointing": True}}),
    "Hugging Face Trainer": ("hf", {"documents": "rows"}),
}
REFERENCE = "Hugging Face Trainer"
TARGET = 0.6
STEPS = 2  # the second one has optimizer states from the start


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    text = shared.corpus(options)
    os.environ["MALLOC_MMAP_THRESHOLD_"] = "1048576"  # for the workers: setting it also stops it from growing
    peaks: dict[str, dict[int, int]] = {name: {} for name in FORMS}
    for rows in options.micro_batches:
        for name, (side, changes) in FORMS.items():
            job = shared.job(options, text, side, micro_batch=rows, total_steps=STEPS + 1, **changes)
            peaks[name][rows] = peak(name, job)
    about = machine(options.threads)
    print(f"{about['machine']}, {options.preset}, bf16, rows of {options.row_length}, peak of a step")
    print(table(peaks, parse_bytes(options.device_memory)))
    write_json(options.json, about | {"preset": options.preset, "peaks": peaks, "target": TARGET})


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = shared.parser(__doc__)
    parser.add_argument("--micro-batches", type=_sizes, default=[8, 16, 32])
    parser.add_argument("--device-memory", default="24GiB", help="for the largest micro-batch")
    return parser.parse_args(arguments)


def _sizes(text: str) -> list[int]:
    return sorted({shared.positive(part) for part in text.split(",")})


def peak(name: str, job: Job) -> int:
    """Bytes at the worst moment of two steps in a process of its own."""
    worker = Worker(name, job)
    try:
        return int(worker.ask(f"steps {STEPS}")["peak"])
    finally:
        worker.close()


def largest(peaks: Mapping[int, int], memory: int) -> int | None:
    """Rows that fit into ``memory`` with a GiB set aside, by the line through the smallest and largest micro-batch."""
    low, high = min(peaks), max(peaks)
    if low == high or peaks[high] <= peaks[low]:
        return None
    slope = (peaks[high] - peaks[low]) / (high - low)
    return max(0, int((memory - RESERVE - peaks[low]) / slope + low))


def table(peaks: Mapping[str, Mapping[int, int]], memory: int) -> str:
    """Peaks in MiB, with the share of Hugging Face Trainer's, by micro-batch."""
    sizes = sorted(peaks[REFERENCE])
    lines = []
    for name, own in peaks.items():
        cells = [f"{own[rows] / 2**20:,.0f} MiB ({own[rows] / peaks[REFERENCE][rows]:.2f})" for rows in sizes]
        slope = (own[sizes[-1]] - own[sizes[0]]) / max(sizes[-1] - sizes[0], 1) / 2**20
        fits = largest(own, memory)
        lines.append([name, *cells, f"{slope:.1f} MiB" if len(sizes) > 1 else "n/a", f"{fits:,}" if fits else "n/a"])
    header = ["form", *(f"{rows} rows" for rows in sizes), "a row", f"rows in {memory / 2**30:.0f} GiB"]
    return markdown(header, lines)


if __name__ == "__main__":
    shared.exit_cleanly(main)
