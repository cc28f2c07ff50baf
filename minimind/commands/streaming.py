"""``minimind fetch --stream``: a data set of a hub into a store, without a copy of it on the disk."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from minimind.base.defaults import ROW_LENGTH, Kind
from minimind.base.errors import UserError
from minimind.data.read.remote import Remote
from minimind.data.records.options import BY_CONTENT, ReadingOptions


@dataclass(frozen=True)
class Streaming:
    """How the store is made; ``kind`` None goes by the first record."""

    tokenizer: Path | None = None
    kind: Kind | None = None
    max_seq_length: int = ROW_LENGTH
    reading: ReadingOptions = BY_CONTENT


def stream(file: Remote, output: Path, wanted: Streaming) -> Path:
    """The store of the file. Raises UserError as `prepare`, and without a tokenizer."""
    from minimind.data.store.prepare import prepare
    from minimind.text.tokenizer import Tokenizer

    if wanted.tokenizer is None:
        raise UserError("--stream makes a store, which needs --tokenizer; docs/data.md says how to train one")
    tokenizer = Tokenizer.load(wanted.tokenizer)
    return prepare([file], tokenizer, output, wanted.kind, wanted.max_seq_length, reading=wanted.reading)


def refuse_without(wanted: Streaming) -> None:
    """UserError for options that a plain download has no use for."""
    if wanted != Streaming():
        raise UserError("--tokenizer, --kind, --max-seq-length and how files are read are for --stream")
