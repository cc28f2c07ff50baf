"""Does a long run grow? Thousands of tiny steps with saves and evaluations; memory, file handles, threads.

    python benchmarks/long_run.py [--steps 5000] [--every 50] [--deepspeed_config ds_configs/fp32.json]

Prints samples and the slope of anonymous memory after the warm-up (least squares, MiB per 1,000 steps).
Exit code 1 if that is above LIMIT or if file handles or threads have grown. Linux; the numbers do not depend on speed.
bf16 is worth a run of its own: oneDNN keeps a kernel for each shape: a size that differed from
step to step would grow.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from minimind.text.tokenizer import train_tokenizer
from minimind.training.process.host import anonymous_memory
from minimind.training.run import loop
from minimind.training.run.arguments import parse
from minimind.training.run.main import run
from minimind.training.values import StepMetrics

MODEL = (
    "model={vocab_size: 400, hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 2, "
    "num_key_value_heads: 1, head_dim: 8, intermediate_size: 32}"
)
WARM_UP = 0.5  # share of the run that is left out: allocator and caches still settled at step 2,000 of 5,000
LIMIT = 0.5  # MiB per 1,000 steps: 50 MiB over a run of 100,000


@dataclass(frozen=True)
class Sample:
    """This process after a step. ``memory``: anonymous resident bytes."""

    step: int
    memory: int
    handles: int
    threads: int


def take(step: int) -> Sample:
    """Look at this process now."""
    count = {name: len(list(Path(f"/proc/self/{name}").iterdir())) for name in ("fd", "task")}
    return Sample(step, anonymous_memory() or 0, count["fd"], count["task"])


def slope(samples: list[Sample]) -> float:
    """Growth of memory in MiB per 1,000 steps."""
    steps, memory = zip(*((sample.step, sample.memory) for sample in samples), strict=True)
    return float(np.polyfit(steps, memory, 1)[0]) * 1000 / 2**20


def write_corpus(directory: Path) -> tuple[Path, Path]:
    """A small text file and a tokenizer for it."""
    draw = random.Random(0)
    words = ["river", "stone", "little", "house", "walks", "sings", "bright", "到", "山上", "小猫", "看见", "朋友"]
    texts = [" ".join(draw.choices(words, k=draw.randint(3, 60))) for _ in range(200)]
    file = directory / "text.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return file, train_tokenizer(texts, directory / "tokenizer", 330)


def train_sampled(arguments: argparse.Namespace, directory: Path) -> list[Sample]:
    """One run, with a sample every ten steps."""
    file, tokenizer = write_corpus(directory)
    samples: list[Sample] = []
    report = loop.report

    def report_and_sample(run: loop.Run, metrics: StepMetrics) -> None:
        report(run, metrics)
        if metrics.step % 10 == 0:
            samples.append(take(metrics.step))

    loop.report = report_and_sample
    settings = [MODEL, "max_seq_length=64", "logging_steps=10", f"save_steps={arguments.every}"]
    settings += [f"eval_steps={arguments.every}", f"train_file={file}", f"eval_file={file}"]
    settings += [f"tokenizer={tokenizer}"]
    words = ["--deepspeed_config", str(arguments.deepspeed_config), "--output-dir", str(directory / "run")]
    words += ["--max-steps", str(arguments.steps), "--emulate-fp16"]
    code = run("pretrain", parse("pretrain", [*words, *(w for s in settings for w in ("--set", s))]))
    assert code == 0, code
    return samples


def main() -> int:
    parser = argparse.ArgumentParser(description="Does a long run grow?")
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--every", type=int, default=50, help="steps between saves and between evaluations")
    parser.add_argument("--deepspeed_config", type=Path, default=Path("ds_configs/fp32.json"))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        os.environ["MINIMIND_CACHE"] = directory
        samples = train_sampled(arguments, Path(directory))
    steady = [sample for sample in samples if sample.step > WARM_UP * arguments.steps]
    for sample in steady[:: max(1, len(steady) // 8)]:
        print(
            f"step {sample.step:6}  {sample.memory / 2**20:8.2f} MiB  {sample.handles} files  {sample.threads} threads"
        )
    growth = slope(steady)
    print(f"slope {growth:+.3f} MiB per 1,000 steps (limit {LIMIT})")
    more = [name for name in ("handles", "threads") if getattr(steady[-1], name) > getattr(steady[0], name)]
    print("grown: " + (", ".join(more) or "no handles, no threads"))
    return int(growth > LIMIT or bool(more))


if __name__ == "__main__":
    sys.exit(main())
