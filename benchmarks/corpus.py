"""The text that every side of a benchmark trains on: one tokenizer, one training store, one held-out store.

Made once, under a lock, and kept in ``$MINIMIND_CACHE/benchmarks``, named by the files and the options. Each N-th
record is held out, N so that the held-out part has about ``held_out_kilobytes`` of JSON: evaluating it must cost little
beside ten steps on a CPU.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from minimind.base.errors import UserError
from minimind.base.files import subdirectory
from minimind.data.store.cache import locked
from minimind.data.store.prepare import prepare
from minimind.data.store.rooms import default_cache, room
from minimind.data.store.store import TokenStore
from minimind.text.tokenizer import Tokenizer, train_tokenizer

DEFAULT_DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "pretrain"


@dataclass(frozen=True)
class Corpus:
    """Paths of the tokenizer (a .model file) and of the two stores."""

    tokenizer: Path
    train: Path
    held_out: Path

    def documents(self) -> list[list[int]]:
        """Ids of each training document, bos and eos included."""
        store = TokenStore.open(self.train)
        return [store.document(index).tolist() for index in range(len(store))]


def make_corpus(data: Path, vocab_size: int, row_length: int = 512, held_out_kilobytes: int = 64) -> Corpus:
    """Split, train a tokenizer on the training part, tokenise both. Raises UserError if there is no text."""
    files = sorted(data.glob("*.jsonl")) if data.is_dir() else [data]
    if not files or not all(file.is_file() for file in files):
        raise UserError(f"--data {data}: no .jsonl file there; name a JSON Lines file with a text field, or a folder")
    name = _key(files, vocab_size, row_length, held_out_kilobytes)
    directory = subdirectory(room(default_cache(), "benchmarks"), name)
    with locked(directory / "lock", lambda message: print(message, file=sys.stderr, flush=True)):
        return _made_in(directory, files, vocab_size, row_length, held_out_kilobytes * 1000)


def _made_in(directory: Path, files: Sequence[Path], vocab_size: int, row_length: int, held_out_bytes: int) -> Corpus:
    """What is not in ``directory`` yet is made there; nobody else does so at the same time."""
    parts = (directory / "train.jsonl", directory / "held.jsonl")
    if not parts[1].exists():
        _split(files, *parts, held_out_bytes)
    tokenizer = directory / "tokenizer" / "tokenizer.model"
    if not tokenizer.exists():
        tokenizer = train_tokenizer(_texts(parts[0]), directory / "tokenizer", vocab_size)
    loaded = Tokenizer.load(tokenizer)
    stores = [prepare([part], loaded, max_seq_length=row_length, say=lambda _: None) for part in parts]
    return Corpus(tokenizer, *stores)


def _key(files: Sequence[Path], *options: int) -> str:
    stamps = [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return hashlib.sha256(json.dumps([stamps, options]).encode()).hexdigest()[:16]


def _split(files: Sequence[Path], train: Path, held_out: Path, held_out_bytes: int) -> None:
    every = max(2, round(sum(file.stat().st_size for file in files) / held_out_bytes))
    train_part, held_part = train.with_suffix(".partial"), held_out.with_suffix(".partial")
    with train_part.open("w", encoding="utf-8") as kept, held_part.open("w", encoding="utf-8") as held:
        for number, line in enumerate(_lines(files)):
            (held if number % every == every - 1 else kept).write(line)
    train_part.replace(train)
    held_part.replace(held_out)


def _lines(files: Sequence[Path]) -> Iterator[str]:
    for file in files:
        with file.open(encoding="utf-8", newline="\n") as source:
            yield from (line for line in source if line.strip())


def _texts(file: Path) -> Iterator[str]:
    return (json.loads(line)["text"] for line in _lines([file]))
