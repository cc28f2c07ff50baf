"""Preparing a corpus, side by side: this project from files to a finished store, and Hugging Face tokenizers
one text at a time.

    python benchmarks/prepare.py FILE.jsonl... [--workers N] [--rounds 3]

The other side is what MiniMind does: ``json.loads`` of each line, a byte-level BPE of the same vocabulary
size trained on the same text, ``tokenizer.encode(text).ids``, bos and eos, into one array; nothing is checked
or written. Both sides run in turns in one process, on the same files. Two ratios are printed, of medians:
wall clock (what a user waits; it uses all cores on this side, as the other cannot), and CPU time per byte
(what a core does, which other programs on the machine disturb less). Needs ``pip install tokenizers``. Peak
memory is measured in a fresh process for each size of input (``--memory``).
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import numpy as np

from minimind.data.store.prepare import default_workers, prepare
from minimind.text.tokenizer import Tokenizer, train_tokenizer

VOCABULARY = 6400


def main() -> None:
    parser = argparse.ArgumentParser(description="Time preparing against Hugging Face tokenizers one text at a time.")
    parser.add_argument("files", nargs="+", type=Path, help="JSON Lines with a text field")
    parser.add_argument("--workers", type=int, default=default_workers())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--memory", type=float, help="instead: peak memory for inputs of this many GB and a quarter of it"
    )
    parser.add_argument("--memory-of", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.memory_of:
        measure_memory(arguments.files[0], arguments.memory_of, arguments.workers)
    elif arguments.memory:
        compare_memory(arguments.files, arguments.memory, arguments.workers)
    else:
        compare_speed(arguments.files, arguments.workers, arguments.rounds)


def compare_speed(files: Sequence[Path], workers: int, rounds: int) -> None:
    megabytes = sum(file.stat().st_size for file in files) / 1e6
    with tempfile.TemporaryDirectory() as scratch:
        ours = Tokenizer.load(train_tokenizer(_texts(files), Path(scratch) / "tokenizer", VOCABULARY))
        theirs = _train_hugging_face(files)
        sides: dict[str, Callable[[int], object]] = {
            "minimind prepare": lambda n: prepare(
                files, ours, Path(scratch) / f"store{n}", cache_dir=Path(scratch), workers=workers, say=lambda _: None
            ),
            "tokenizers, one at a time": lambda _: _one_at_a_time(files, theirs),
        }
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
        for number in range(rounds):
            for name, work in sides.items():
                times[name].append(_timed(lambda: work(number)))  # noqa: B023 (called at once)
    wall = {name: median(wall for wall, _ in found) for name, found in times.items()}
    cpu = {name: median(cpu for _, cpu in found) for name, found in times.items()}
    for name in sides:
        print(f"{name:26} {megabytes / wall[name]:6.2f} MB/s  {megabytes / cpu[name]:6.2f} MB per CPU second")
    first, second = sides
    print(
        f"ratio with {workers} workers: {wall[second] / wall[first]:.1f} by the clock, "
        f"{cpu[second] / cpu[first]:.1f} by CPU"
    )


def compare_memory(files: Sequence[Path], gigabytes: float, workers: int) -> None:
    """Peak resident memory of a whole process that prepares ``files``, repeated to two sizes, no record twice."""
    with tempfile.TemporaryDirectory() as scratch:
        tokenizer = train_tokenizer(_texts(files), Path(scratch) / "tokenizer", VOCABULARY)
        for size in (gigabytes / 4, gigabytes):
            big = Path(scratch) / "big.jsonl"
            _write_numbered(big, _texts(files), int(size * 1e9))
            command = [sys.executable, __file__, str(big), "--memory-of", str(tokenizer), "--workers", str(workers)]
            print(
                f"{size:.2f} GB: {subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()}"
            )


def _write_numbered(path: Path, texts: Sequence[str], size: int) -> None:
    """The texts again and again, each with a number before it, until the file has ``size`` bytes."""
    with path.open("wb") as output:
        for number, text in enumerate(itertools.cycle(texts)):
            output.write(json.dumps({"text": f"{number} {text}"}, ensure_ascii=False).encode() + b"\n")
            if output.tell() >= size:
                return


def measure_memory(file: Path, tokenizer: Path, workers: int) -> None:
    with tempfile.TemporaryDirectory(dir=file.parent) as scratch:
        started = time.perf_counter()
        prepare(
            [file],
            Tokenizer.load(tokenizer),
            Path(scratch) / "store",
            cache_dir=Path(scratch),
            workers=workers,
            say=lambda _: None,
        )
        # VmHWM, not ru_maxrss: the latter starts at the size that the parent had when it forked.
        status = Path("/proc/self/status").read_text()
        peak = int(status.split("VmHWM:")[1].split()[0]) / 1024
        print(f"peak {peak:.0f} MiB, {file.stat().st_size / 1e6 / (time.perf_counter() - started):.1f} MB/s")


def _texts(files: Sequence[Path]) -> list[str]:
    return [json.loads(line)["text"] for file in files for line in file.open(encoding="utf-8", newline="\n")]


def _train_hugging_face(files: Sequence[Path]):  # type: ignore[no-untyped-def]
    from tokenizers import Tokenizer as HuggingFace
    from tokenizers import models, pre_tokenizers, trainers

    tokenizer = HuggingFace(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<unk>", "<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(files), trainer)
    return tokenizer


def _one_at_a_time(files: Sequence[Path], tokenizer) -> object:  # type: ignore[no-untyped-def]
    documents = []
    for file in files:
        for line in file.open(encoding="utf-8", newline="\n"):
            ids = tokenizer.encode(json.loads(line)["text"]).ids
            documents.append(np.array([1, *ids, 2], np.uint16))
    return np.concatenate(documents)


def _timed(work: Callable[[], object]) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


if __name__ == "__main__":
    main()
