"""What real gloo ranks send in one optimizer step, counted at every ZeRO stage, beside paper.py's formulas.

    python benchmarks/step_traffic.py [--ranks 2,4,8] [--accumulation 4] [--model 26m] [JSON ...]

The default model has 20,000 parameters: the formulas are in bytes a parameter. Counted are payloads (traffic.py); a
ring's bytes follow from both sides in the same way. "small": all calls of at most 64 bytes (token counts, norms,
overflow flags; at stage 3 of the tiny model also norms' gradients).
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from benchmarks.figures import markdown
from benchmarks.paper import payloads
from benchmarks.states import rows
from benchmarks.traffic import Traffic, counting
from minimind.base.hardware import Hardware
from minimind.base.launcher import free_port
from minimind.config.deepspeed import resolve
from minimind.config.run import load_run_config

ROOT = Path(__file__).resolve().parents[1]
STAGES = {"fp32": 0, "bf16": 1, "bf16_zero2": 2, "bf16_zero3": 3}  # of ds_configs, by name
KINDS = ("all_reduce", "all_gather", "reduce_scatter")
TINY = (
    "{vocab_size: 64, hidden_size: 32, num_hidden_layers: 2, num_attention_heads: 4, num_key_value_heads: 2, "
    "head_dim: 8, intermediate_size: 64}"
)
SMALL = 64  # bytes


def counted(name: str, ranks: int, accumulation: int, model: str = TINY) -> tuple[int, Traffic]:
    """Parameters, and what this rank sends in its second optimizer step (the first one sets things up), labelled by
    phase: ``micro-batch 0`` and so on, ``update``. ``model``: a preset or its fields."""
    from minimind.model.transformer import Transformer
    from minimind.training.engine.engine import Engine, start_processes
    from minimind.training.engine.step import train_step

    start_processes(emulate_fp16=True)
    run = load_run_config(None, [f"model={model}", f"gradient_accumulation_steps={accumulation}"])
    resolved = resolve(ROOT / "ds_configs" / f"{name}.json", run, ranks, Hardware("cpu", True, True))
    engine = Engine(Transformer(run.model), resolved, lambda step: 1.0)
    batches = [rows(run.model.vocab_size) for _ in range(accumulation)]
    train_step(engine, batches)
    with counting() as traffic:
        train_step(_labelled(engine, traffic), batches)
    return run.model.num_parameters(), traffic


def _labelled(engine: Any, traffic: Traffic) -> Any:
    """The engine, telling ``traffic`` which micro-batch's forward or backward it is in, or that it updates."""
    forward, update, number = engine.forward, engine.update, count()

    def counted_forward(batch: Any, last: bool) -> Any:
        traffic.phase = f"micro-batch {next(number)}"
        return forward(batch, last)

    def counted_update() -> Any:
        traffic.phase = "update"
        return update()

    engine.forward, engine.update = counted_forward, counted_update
    return engine


def on_ranks(ranks: int, names: Sequence[str], accumulation: int, model: str = TINY) -> dict[str, tuple[int, Traffic]]:
    """``counted`` of each JSON on the first of ``ranks`` gloo ranks, processes of this machine.

    Raises EOFError where a rank ends without an answer.
    """
    context, port = get_context("spawn"), str(free_port())
    pipe, answer = context.Pipe(duplex=False)
    work = (tuple(names), ranks, accumulation, model)
    processes = [context.Process(target=_rank, args=(answer, rank, port, work), daemon=True) for rank in range(ranks)]
    for process in processes:
        process.start()
    answer.close()
    found: dict[str, tuple[int, Traffic]] = pipe.recv()
    for process in processes:
        process.join()
    return found


def _rank(answer: Any, rank: int, port: str, work: tuple[Sequence[str], int, int, str]) -> None:
    names, ranks, accumulation, model = work
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1")
    os.environ.update(MASTER_PORT=port)
    torch.set_num_threads(1)
    found = {name: counted(name, ranks, accumulation, model) for name in names}
    if rank == 0:
        answer.send(found)


def compared(name: str, parameters: int, traffic: Traffic, accumulation: int) -> list[str]:
    """A line of the table: counted and computed payload by kind, in bytes, and their ratio."""
    computed = payloads(STAGES[name], parameters, accumulation)
    cells = []
    for kind in KINDS:
        seen = sum(call.bytes for call in traffic.calls if call.name.startswith(kind) and call.bytes > SMALL)
        expected = sum(size for collective, size in computed.items() if collective.startswith(kind))
        cells.append(f"{seen:,} / {expected:,.0f}" + (f" = {seen / expected:.3f}" if expected else ""))
    return [*cells, str(sum(call.bytes for call in traffic.calls if call.bytes <= SMALL))]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jsons", nargs="*", default=list(STAGES), metavar="JSON", help="of " + ", ".join(STAGES))
    parser.add_argument("--ranks", default="2,4,8")
    parser.add_argument("--accumulation", type=int, default=4)
    parser.add_argument("--model", default=TINY)
    options = parser.parse_args(arguments)
    lines = []
    for ranks in map(int, options.ranks.split(",")):
        for name, found in on_ranks(ranks, options.jsons, options.accumulation, options.model).items():
            lines.append([str(ranks), name, *compared(name, *found, options.accumulation)])
    print(markdown(["ranks", "JSON", *(f"{kind}, counted / computed" for kind in KINDS), "small"], lines))


if __name__ == "__main__":
    main()
