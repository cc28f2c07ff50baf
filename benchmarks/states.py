"""Bytes a parameter that each rank holds, by DeepSpeed JSON and number of ranks, counted on real engines.

    python benchmarks/states.py [--ranks 1,2,4] [--model 26m] [JSON ...]

"between" is after an update: weights, masters, moments, and buffers that DeepSpeed keeps. "most" is the largest count
at the end of each forward and backward pass and after the update. Counted are the storages of all tensors that came to
be with the engine (Python's garbage collector finds them), on the CPU, so that device and offload are one sum. Not in
it: activations that are gone by then, and what is gathered only inside a pass.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from minimind.base.hardware import Hardware
from minimind.base.launcher import free_port
from minimind.config.deepspeed import resolve
from minimind.config.run import load_run_config
from minimind.data.store.batches import Batch

ROOT = Path(__file__).resolve().parents[1]
JSONS = ("fp32", "bf16", "bf16_zero2", "bf16_zero3", "bf16_zero2_offload", "bf16_zero3_offload", "fp16_zero3_offload")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jsons", nargs="*", default=list(JSONS))
    parser.add_argument("--ranks", default="1,2,4")
    parser.add_argument("--model", default="26m")
    options = parser.parse_args(arguments)
    counts = [int(part) for part in options.ranks.split(",")]
    print("| file | " + " | ".join(f"{count} rank{'s' * (count > 1)}: between, most" for count in counts) + " |")
    print("|---" * (len(counts) + 1) + "|")
    for name in options.jsons:
        cells = [measure(name, count, options.model) for count in counts]
        print(f"| {name} | " + " | ".join(f"{between:.2f}, {most:.2f}" for between, most in cells) + " |", flush=True)


def measure(name: str, ranks: int, model: str) -> tuple[float, float]:
    """Bytes a parameter on the rank that holds most: between two steps, and at the most."""
    context, port = get_context("spawn"), str(free_port())
    pipe, answer = context.Pipe(duplex=False)
    processes = [context.Process(target=_rank, args=(answer, rank, ranks, port, name, model)) for rank in range(ranks)]
    for process in processes:
        process.start()
    answer.close()
    found = [pipe.recv() for _ in processes]
    for process in processes:
        process.join()
    return max(one for one, _ in found), max(most for _, most in found)


def _rank(answer: Any, rank: int, ranks: int, port: str, name: str, model: str) -> None:
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1")
    os.environ.update(MASTER_PORT=port)
    torch.set_num_threads(1)
    answer.send(held(name, ranks, model))


def held(name: str, ranks: int, preset: str) -> tuple[float, float]:
    """What this rank holds, in bytes a parameter: between two steps, and at the most."""
    from minimind.model.transformer import Transformer
    from minimind.training.engine.engine import Engine, start_processes

    start_processes(emulate_fp16=True)
    run = load_run_config(None, [f"model={preset}"])
    resolved = resolve(ROOT / "ds_configs" / f"{name}.json", run, ranks, Hardware("cpu", True, True))
    before = storages()
    engine = Engine(Transformer(run.model), resolved, lambda step: 1.0)
    most = 0
    for _ in range(2):
        loss = engine.forward(rows(run.model.vocab_size), last=True)
        most = max(most, new_bytes(before))
        engine.backward(loss / 32)
        del loss
        most = max(most, new_bytes(before))
        engine.update()
        between = new_bytes(before)
    count = run.model.num_parameters()
    return between / count, max(most, between) / count


def rows(vocabulary: int, length: int = 16) -> Batch:
    """One row of random tokens, each of which is a target too."""
    ids = torch.randint(vocabulary, (1, length))
    positions, documents = torch.arange(length)[None], torch.zeros_like(ids)
    return Batch(ids, ids, positions, documents, (0,), length)


def storages() -> dict[int, Any]:
    """Every live tensor storage by address; holding them keeps addresses from coming back."""
    gc.collect()
    found: dict[int, Any] = {}
    for thing in gc.get_objects():
        if type(thing) in (torch.Tensor, torch.nn.Parameter) and thing.device.type != "meta":
            for tensor in (thing, thing.grad if thing.is_leaf else None):
                if tensor is not None and (storage := tensor.untyped_storage()).data_ptr():
                    found[storage.data_ptr()] = storage
    return found


def new_bytes(before: dict[int, Any]) -> int:
    """Bytes of the storages that were not there before."""
    return sum(storage.nbytes() for address, storage in storages().items() if address not in before)


if __name__ == "__main__":
    main()
