"""The statistics behind `minimind check`: what is in these files, how it would train, and each bad line.

Contract: every file is read to its end with the same code that prepares it, so what `check` counts is what a store
holds. A file that can't be read as a whole is part of the report, not the end of it. Memory: a few numbers a document.

Known weakness: one thread. On large corpora it runs at about a third of the speed of `prepare`.
"""

from __future__ import annotations

import itertools
import tempfile
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from minimind.base.defaults import ROW_LENGTH
from minimind.base.errors import UserError
from minimind.data.check.overlap import shared_documents
from minimind.data.check.report import CheckReport, FileReport
from minimind.data.check.statistics import SCRIPTS, Duplicates, count_scripts, percentiles
from minimind.data.read import streams
from minimind.data.read.sources import Chunk, Record, Source, chunks_of, container, expand
from minimind.data.records.conversations import Conversation, Kind, detect_format
from minimind.data.records.encoding import (
    EncodedDocument,
    Options,
    Reject,
    document_of,
    encode_chunk,
    kind_of_first,
    note_unread,
)
from minimind.data.records.options import BY_CONTENT, ReadingOptions
from minimind.data.records.unread import Unread
from minimind.data.store.packing import pack
from minimind.text.tokenizer import Tokenizer

_LISTED = 1000
_SAMPLE_TOKENS = 400


def check_files(
    files: Sequence[Path | str],
    tokenizer: Tokenizer | None = None,
    kind: Kind | None = None,
    max_seq_length: int = ROW_LENGTH,
    *,
    reading: ReadingOptions = BY_CONTENT,
) -> CheckReport:
    """Read all files. ``kind`` None: each file by its first record. ``UserError`` only for names without a file."""
    with tempfile.TemporaryDirectory(prefix="minimind-check-") as spool:
        sources, ignored = expand(files, Path(spool))
        reports, digests = [], []
        for source in sources:
            report = FileReport(source.name)
            try:
                digests.append(array("Q"))
                options = Options(kind or "pretrain", max_seq_length, reading)
                digests[-1] = _check(source, report, tokenizer, kind, options)
            except UserError as error:
                report.error = str(error)
            reports.append(report)
    shared = shared_documents([report.path for report in reports], digests)
    return CheckReport(reports, max_seq_length, ignored, shared)


def _check(
    source: Source, report: FileReport, tokenizer: Tokenizer | None, kind: Kind | None, options: Options
) -> array[int]:
    """Fill in the report; returns the digests of the documents. ``kind`` None: by the first record."""
    reading = options.reading
    head = streams.inspect(source.path, source.name, reading.encoding)
    report.container = container(head, reading.format)
    report.compression, report.encoding, report.encoding_confidence = head.compression, head.encoding, head.confidence
    chunks = chunks_of(head, reading.format, reading.fields.columns)
    first = next(chunks, None)
    report.kind = kind or (first and kind_of_first(first.records(), reading.fields)) or "pretrain"
    options = replace(options, kind=report.kind)
    text, tokens = _TextFigures(report, options), _TokenFigures(report, options)
    try:
        for chunk in itertools.chain([first] if first else [], chunks):
            usable = text.add(chunk.records())
            if tokenizer is not None:
                for reject in tokens.add(Chunk(chunk.file, parsed=usable), tokenizer):
                    text.reject(reject)
    finally:  # a list that breaks off still has figures up to there
        text.finish()
        if tokenizer is not None:
            tokens.finish()
    if not report.records:
        raise UserError(f"{source.name}: holds no record")
    return text.digests


class _TextFigures:
    """What can be said without a tokenizer."""

    def __init__(self, report: FileReport, options: Options) -> None:
        self._report, self._options = report, options
        self._formats: Counter[str] = Counter()
        self._fields: Counter[str] = Counter()
        self._reasons: Counter[str] = Counter()
        self._unread = Unread()
        self._lengths, self._turns = array("q"), array("q")
        self._scripts = np.zeros(len(SCRIPTS), np.int64)
        self._duplicates = Duplicates()

    def add(self, records: Iterable[Record]) -> list[Record]:
        """Count the records; those that can be used are returned."""
        usable = []
        for record in records:
            self._report.records += 1
            if isinstance(record.value, dict):
                self._fields.update(str(key)[:40] for key in itertools.islice(record.value, 20))
            document = document_of(record, self._options.kind, self._options.reading.fields)
            if isinstance(document, Reject):
                self.reject(document)
                continue
            self._formats[detect_format(record.value, self._options.kind, self._options.reading.fields)] += 1
            note_unread(self._unread, record, document, self._options.reading.fields)
            self._document(document)
            usable.append(record)
        return usable

    @property
    def digests(self) -> array[int]:
        """64 bits a document."""
        return self._duplicates.digests

    def reject(self, reject: Reject) -> None:
        self._report.rejected += 1
        self._report.answers_lost += reject.too_long
        self._reasons[_general(reject.reason)] += 1
        if len(self._report.bad) < _LISTED:
            self._report.bad.append(str(reject))

    def finish(self) -> None:
        report = self._report
        report.used = report.records - report.rejected
        report.formats, report.reasons = dict(self._formats), dict(self._reasons.most_common(20))
        report.fields_not_read = self._unread.to_json()
        report.fields = dict(self._fields.most_common(20))
        report.characters = sum(self._lengths)
        report.characters_per_document = percentiles(self._lengths)
        report.turns_per_document = percentiles(self._turns)
        visible = max(1, int(self._scripts.sum()))
        shares = {
            name: round(int(count) / visible, 4) for name, count in zip(SCRIPTS, self._scripts, strict=True) if count
        }
        report.scripts = dict(sorted(shares.items(), key=lambda item: -item[1]))
        report.exact_duplicates, report.near_duplicates = self._duplicates.exact, self._duplicates.near
        report.near_compared = self._duplicates.compared

    def _document(self, document: str | Conversation) -> None:
        if isinstance(document, Conversation):
            self._report.trimmed += document.trimmed > 0
            self._report.reasoning_dropped += document.dropped
            self._turns.append(len(document.turns))
            text = "\n".join(turn.content for turn in document.turns)
        else:
            text = document
        self._lengths.append(len(text))
        self._scripts += count_scripts(text)
        self._duplicates.add(text)


class _TokenFigures:
    """What a store of this file would hold."""

    def __init__(self, report: FileReport, options: Options) -> None:
        self._report, self._options = report, options
        self._lengths = array("q")
        self._trainable = self._shortened = self._cut = 0

    def add(self, chunk: Chunk, tokenizer: Tokenizer) -> list[Reject]:
        """Count the documents; what can only be rejected once it is tokenised is returned."""
        encoded = encode_chunk(chunk, tokenizer, self._options)
        self._lengths.extend(len(document.tokens) for document in encoded.documents)
        self._trainable += encoded.counts.trainable_tokens
        self._shortened += encoded.counts.shortened
        self._cut += encoded.counts.answers_cut
        if self._options.reading.reasoning == "train":  # else the texts' figures have it
            self._report.reasoning_dropped += encoded.counts.reasoning_dropped
        if not self._report.sample and encoded.documents:
            self._report.sample = list(_pieces(encoded.documents[0], tokenizer))
        return encoded.rejects

    def finish(self) -> None:
        report, row = self._report, self._options.max_seq_length
        lengths = np.array(self._lengths, np.int64)
        report.tokens = int(lengths.sum())
        report.tokens_per_document = percentiles(lengths)
        report.truncated, report.answers_cut = self._shortened + self._cut, self._cut
        if not len(lengths):
            return
        report.trainable_share = round(self._trainable / report.tokens, 4)
        if report.kind == "pretrain":
            report.longer_than_row = int((lengths - 1 > row).sum())
            report.characters_per_token = round(report.characters / report.tokens, 3)
        report.row_fill = round(float(pack(lengths - 1, row, seed=0).fill(row)), 4)


def _pieces(document: EncodedDocument, tokenizer: Tokenizer) -> Iterator[tuple[str, bool]]:
    """The document's text, special tokens spelled, in runs of equal "trainable"."""
    ids = document.tokens[:_SAMPLE_TOKENS].tolist()
    flags = [True] * len(ids) if document.trainable is None else document.trainable.tolist()
    if document.trainable is None:
        flags[0] = False  # bos is never a target
    for flag, run in itertools.groupby(zip(ids, flags, strict=False), key=lambda pair: bool(pair[1])):
        yield tokenizer.decode([i for i, _ in run], with_special=True), flag


def _general(reason: str) -> str:
    """The reason without its numbers and quotations, for counting."""
    return "".join("N" if c.isdigit() else c for c in reason.split(" at ")[0])[:100]
