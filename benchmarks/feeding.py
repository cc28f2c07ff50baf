"""A store in use: opening it, sharing its pages between processes, and making batches of it, against a training step.

    python benchmarks/feeding.py STORE [--rows 8] [--row-length 512] [--rounds 5]

STORE is what ``minimind prepare`` made. Printed are the median time of opening; for two processes that have read all
tokens, the resident memory of the store's files (Rss) and each process's share of it (Pss, half of it when the pages
are shared); and the time to make a micro-batch as a share of the forward and backward pass that trains on it (26M,
bf16, on this machine, without the optimizer; the two are measured in turns).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from minimind.data.store.batches import Batches
from minimind.data.store.store import TokenStore

READER = """
import sys
from minimind.data.store.store import TokenStore
store = TokenStore.open(sys.argv[1])
print(int(store.tokens.sum(dtype="int64")), flush=True)
sys.stdin.readline()
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="Opening, sharing and feeding of a store.")
    parser.add_argument("store", type=Path, help="a prepared store")
    parser.add_argument("--rows", type=int, default=8, help="rows in a micro-batch")
    parser.add_argument("--row-length", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    print(f"opening: {1000 * median(_opening(arguments.store) for _ in range(20)):.2f} ms")
    resident, share = shared_pages(arguments.store)
    print(f"two readers: {resident / 1024:.1f} MiB resident in each, of which its share is {share / 1024:.1f} MiB")
    feeding(arguments.store, arguments.rows, arguments.row_length, arguments.rounds)


def _opening(store: Path) -> float:
    started = time.perf_counter()
    TokenStore.open(store)
    return time.perf_counter() - started


def shared_pages(store: Path) -> tuple[int, int]:
    """(Rss, Pss) in KiB of the store's files in one of two processes that both have read all tokens."""
    command = [sys.executable, "-c", READER, str(store)]
    readers = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for reader in readers:
        assert reader.stdout is not None
        reader.stdout.readline()
    sizes = _mapped(readers[0].pid, store)
    for reader in readers:
        reader.communicate("\n")
    return sizes


def _mapped(pid: int, store: Path) -> tuple[int, int]:
    sums, inside = {"Rss:": 0, "Pss:": 0}, False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        name, *rest = line.split()
        if not name.endswith(":"):  # the head of a mapping
            inside = str(store.resolve()) in line
        elif inside and name in sums:
            sums[name] += int(rest[0])
    return sums["Rss:"], sums["Pss:"]


def feeding(path: Path, rows: int, row_length: int, rounds: int) -> None:
    """Print what one micro-batch costs to make and to train on."""
    import torch

    from minimind.config.model import ModelConfig
    from minimind.model.transformer import Transformer

    store = TokenStore.open(path)
    batches = Batches(store, row_length, rows, 1, 1, seed=0)
    model = Transformer(ModelConfig.preset("26m", vocab_size=store.vocab_size)).to(torch.bfloat16)
    made: list[float] = []
    trained: list[float] = []
    for step in range(rounds + 1):  # the first round warms up
        started = time.perf_counter()
        for number in range(20):
            (batch,) = batches.micro_batches(20 * step + number, 0)
        ready = time.perf_counter()
        inputs = (batch.input_ids, batch.labels, batch.position_ids, batch.document_ids)
        model(*inputs).backward()
        trained.append(time.perf_counter() - ready)
        made.append((ready - started) / 20)
    make, train = median(made[1:]), median(trained[1:])
    print(f"a micro-batch of {rows} x {row_length}: {1000 * make:.2f} ms to make, {1000 * train:.0f} ms to train on")
    print(f"share: {make / train:.3%}")


if __name__ == "__main__":
    main()
