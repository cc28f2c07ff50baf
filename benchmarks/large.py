"""A large shape under ZeRO stage 3 with weights and optimizer in CPU memory: the peak of three steps beside the plan's.

    python benchmarks/large.py [--model 306m] [--json bf16_zero3_offload] [--length 64] [--steps 3]

One rank. The peak is resident memory above what the process held before the model was built; glibc is told to give
large blocks back at once, so that it is what was in use and not what the allocator kept.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

ROOT = Path(__file__).resolve().parents[1]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="306m")
    parser.add_argument("--json", default="bf16_zero3_offload")
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--steps", type=int, default=3)
    options = parser.parse_args(arguments)
    if "MALLOC_MMAP_THRESHOLD_" not in os.environ:  # read when a process starts
        os.environ["MALLOC_MMAP_THRESHOLD_"] = "1048576"
        os.execv(sys.executable, [sys.executable, *sys.argv])
    train(options.model, options.json, options.length, options.steps)


def train(preset: str, name: str, length: int, steps: int) -> None:
    """Print the losses, the peak and the plan's figure."""
    from benchmarks.memory_use import Peak
    from benchmarks.states import rows
    from minimind.base.hardware import detect
    from minimind.config.deepspeed import resolve
    from minimind.config.memory import estimate_memory
    from minimind.config.run import load_run_config
    from minimind.training.engine.construction import new_model
    from minimind.training.engine.engine import Engine, start_processes
    from minimind.training.engine.step import train_step

    start_processes(emulate_fp16=True)
    run = load_run_config(None, [f"model={preset}", f"max_seq_length={length}", "per_device_train_batch_size=1"])
    resolved, hardware = resolve(ROOT / "ds_configs" / f"{name}.json", run, 1, detect(), True), detect()
    plan = estimate_memory(run, resolved, hardware=hardware)
    peak = Peak()
    engine = Engine(new_model(run.model, run.seed, resolved), resolved, lambda step: 1.0)
    batch = rows(run.model.vocab_size, length)
    for step in range(steps):
        result = train_step(engine, [batch])
        loss, far = float(result.loss_sum) / result.tokens, peak.bytes() / 2**30
        print(f"step {step + 1}: loss {loss:.3f}, so far {far:.2f} GiB", flush=True)
    planned = plan.peak + plan.host
    print(
        f"{run.model.num_parameters():,} parameters, {name}, one row of {length}: peak {peak.bytes() / 2**30:.2f} GiB, "
        f"plan {planned / 2**30:.2f} GiB ({peak.bytes() / planned - 1:+.1%})"
    )


if __name__ == "__main__":
    main()
