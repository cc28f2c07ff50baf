"""Any file -> records with the line they start on. JSON Lines and lists, text, CSV/TSV, Parquet; see streams.py
for bytes, tables.py for CSV and Parquet, read/json_text.py for JSON that runs over lines.

Contract: a source is read in chunks, in order, and never held whole. Each non-blank line (JSON Lines),
element (JSON list), paragraph, row becomes exactly one ``Record``; one that can't be read is a record with
``error`` set, so that a caller can count it. A file that stops being readable (broken JSON list, truncated
archive) raises ``UserError``: what follows the break can't be counted, so nothing may be skipped silently.
Blank lines between records are no records.

Known weakness: formats are told apart by the first mebibyte; a .txt file whose first two lines are JSON
objects is read as JSON Lines (``--format paragraphs`` says otherwise).
"""

from __future__ import annotations

import contextlib
import glob
import shutil
import sys
import tempfile
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple

from minimind.base.errors import UserError
from minimind.base.files import remove_files
from minimind.data.read import charsets, streams
from minimind.data.read.directories import files_of, refuse_strange
from minimind.data.read.json_text import JsonParser, Value, json_values
from minimind.data.read.remote import Remote
from minimind.data.read.streams import Head
from minimind.data.read.tables import READERS, ROWS_PER_CHUNK, arrow_values, characters, parquet_values

TEXT_FORMATS = ("paragraphs", "lines", "file")


class Record(NamedTuple):
    """One record: its parsed ``value``, or ``error`` (a reason). ``line`` is 1-based; for Parquet it is the row.

    ``element`` counts from 1 in a JSON list of which several elements begin on one line; else it is 0.
    """

    value: object
    file: str
    line: int
    error: str | None = None
    excerpt: str = ""
    element: int = 0


class Source(NamedTuple):
    """A regular file (or one on a hub) to read and the name that messages call it (``<stdin>`` for a spooled pipe)."""

    path: Path | Remote
    name: str


@dataclass(frozen=True)
class Chunk:
    """Some consecutive records of one file: either unparsed JSON ``lines`` or ready ``parsed`` records."""

    file: str
    first_line: int = 1
    lines: Sequence[bytes | int] = ()
    encoding: str = "utf-8"
    parsed: Sequence[Record] = ()

    @property
    def num_bytes(self) -> int:
        """About how much text it holds."""
        raw = sum(len(line) for line in self.lines if isinstance(line, bytes))
        return raw + sum(characters(record.value) for record in self.parsed)

    def records(self) -> Iterator[Record]:
        """Parse lazily: this is the part of reading that workers do in parallel."""
        yield from self.parsed
        parser = JsonParser()
        for number, line in enumerate(self.lines, self.first_line):
            if isinstance(line, int):
                yield Record(None, self.file, number, streams.too_long(line))
            elif line and not line.isspace():
                yield self._record(parser, line, number)

    def _record(self, parser: JsonParser, line: bytes, number: int) -> Record:
        try:
            return Record(parser.parse(charsets.decode(line, self.encoding)), self.file, number)
        except ValueError as error:
            return Record(None, self.file, number, str(error), line[:2000].decode("utf-8", "replace"))


def read_records(path: Path | str, format: str | None = None, encoding: str | None = None) -> Iterator[Record]:
    """All records of one file, in order. Raises ``UserError`` when the file as a whole can't be read."""
    for chunk in read_chunks(Source(Path(path), str(path)), format, encoding):
        yield from chunk.records()


def read_chunks(
    source: Source, format: str | None = None, encoding: str | None = None, columns: Container[str] | None = None
) -> Iterator[Chunk]:
    """One file in chunks of about 256 KiB. ``format`` forces how text is cut when it is one of ``TEXT_FORMATS``."""
    yield from chunks_of(streams.inspect(source.path, source.name, encoding), format, columns)


def chunks_of(head: Head, format: str | None = None, columns: Container[str] | None = None) -> Iterator[Chunk]:
    """As ``read_chunks``, for a file that was inspected already.

    ``columns``: those of a Parquet or Arrow table that are converted; None for all.
    """
    kind = container(head, format)
    if kind == "jsonl":
        yield from _json_lines(head)
    elif kind == "text":
        yield from _grouped(head.name, _text(head, format if format in TEXT_FORMATS else "paragraphs"))
    else:
        yield from _grouped(head.name, (Record(v[0], head.name, *v[1:]) for v in _values(kind, head, columns)))


def _values(kind: str, head: Head, columns: Container[str] | None) -> Iterator[Value]:
    if kind in ("parquet", "arrow"):
        return (parquet_values if kind == "parquet" else arrow_values)(head, columns)
    return json_values(head) if kind == "json" else READERS[streams.suffix(head.name)](head)


def container(head: Head, format: str | None = None) -> str:
    """How the file holds records: ``jsonl``, ``json`` (lists, values over lines), ``parquet``, ``arrow``, ``text``, or
    as a reader of ``READERS`` says: its suffix without the dot.
    """
    if head.table:
        return head.table
    if format in TEXT_FORMATS:
        return "text"
    suffix = streams.suffix(head.name)
    if suffix in (".parquet", ".arrow", ".feather"):
        mark = "PAR1" if suffix == ".parquet" else "Arrow's mark"
        raise UserError(
            f"{head.name}: named {suffix}, but does not start with {mark}; is it truncated or something else?"
        )
    if suffix in READERS:
        return "csv" if suffix == ".tsv" else suffix[1:]
    start = head.text.split(head.line_end)
    lines = [line.strip() for line in (start if head.complete else start[:-1]) if line.strip()]
    looks_json = head.text.lstrip()[:1] in (b"{", b"[")
    if suffix in (".jsonl", ".json", ".ndjson"):
        return "json" if looks_json and _is_document(lines, head) else "jsonl"
    if looks_json and lines and all(_is_container(line, head) for line in lines[:2]):
        return "jsonl" if not _is_document(lines, head) else "json"
    return "text" if not (looks_json and _is_document(lines, head)) or suffix == ".txt" else "json"


def expand(files: Sequence[Path | str | Remote], spool: Path) -> tuple[list[Source], list[str]]:
    """(sources, names that were left out because they are no data) for files, directories, globs and ``-``.

    Pipes are copied to ``spool`` (a directory), because a source is read twice: for its hash, then for its records.
    """
    sources, ignored = [], []
    for file in files:
        if isinstance(file, Remote):
            sources.append(Source(file, file.name))
            continue
        path = Path(file)
        if str(file) == "-":
            sources.append(Source(_spooled(sys.stdin.buffer, spool), "<stdin>"))
        elif path.is_dir():
            inside, left_out = files_of(path)
            sources += [Source(p, str(p)) for p in inside]
            ignored += left_out
        elif path.is_char_device() or path.is_block_device() or path.is_socket():
            raise UserError(f"{path}: a device or a socket, not a file; - reads stdin")
        elif path.is_fifo():
            with path.open("rb") as pipe:
                sources.append(Source(_spooled(pipe, spool), str(path)))
        elif not path.exists() and not path.is_symlink() and any(mark in str(file) for mark in "*?["):
            matches = glob.glob(str(file), recursive=True)  # noqa: PTH207 (Path.glob takes no absolute pattern)
            found = sorted(match for match in matches if not Path(match).is_dir())
            if not found:
                raise UserError(f"{file}: no file matches this pattern")
            for match in found:
                refuse_strange(Path(match), None)
            sources += [Source(Path(p), p) for p in found]
        else:
            sources.append(Source(path, str(path)))
    return sources, ignored


def _json_lines(head: Head) -> Iterator[Chunk]:
    number = 1
    for lines in streams.line_batches(head):
        yield Chunk(head.name, number, lines, head.encoding)
        number += len(lines)


def _text(head: Head, split: str) -> Iterator[Record]:
    """Paragraphs (runs of non-blank lines), single lines, or the whole file as one record."""
    held: list[str] = []
    start, size = 1, 0
    for number, line in streams.text_lines(head):
        if isinstance(line, int):
            yield Record(None, head.name, number, streams.too_long(line))
            continue
        blank = not line.strip()
        if held and (split == "lines" or (blank and split == "paragraphs")):
            yield _paragraph(head.name, start, held, size)
            held, size = [], 0
        if not held:
            start = number
        if size <= streams.MAX_RECORD_BYTES and (held or not blank):
            held.append(line)
        size += len(line.encode("utf-8", "surrogatepass")) + 1
        if blank and not held:
            size = 0
    if held:
        yield _paragraph(head.name, start, held, size)


def _paragraph(name: str, start: int, lines: list[str], size: int) -> Record:
    if size > streams.MAX_RECORD_BYTES:
        return Record(None, name, start, streams.too_long(size))
    return Record("\n".join(lines).rstrip("\n"), name, start)


def _grouped(name: str, records: Iterable[Record]) -> Iterator[Chunk]:
    """Records into chunks of at most 256 records and about 256 KiB of text."""
    held: list[Record] = []
    size = 0
    for record in records:
        held.append(record)
        size += 1024 + characters(record.value)
        if len(held) >= ROWS_PER_CHUNK or size >= streams.BLOCK_BYTES:
            yield Chunk(name, parsed=held)
            held, size = [], 0
    if held:
        yield Chunk(name, parsed=held)


def _parsed(line: bytes, head: Head) -> tuple[object, bool]:
    """(value, whether the line is one whole JSON value, even if it will be rejected)."""
    try:
        return JsonParser().shape(charsets.decode(line, head.encoding)), True
    except ValueError:
        return None, False


def _is_container(line: bytes, head: Head) -> bool:
    return isinstance(_parsed(line, head)[0], (dict, list))


def _is_document(lines: list[bytes], head: Head) -> bool:
    """Whether values run over lines (or one list holds all records) rather than standing one a line.

    ``lines``: the stripped, non-blank, whole lines of the head.
    """
    if not lines:
        return head.text.lstrip().startswith(b"[")  # a list on one long line; a long object is a JSON Lines record
    value, whole = _parsed(lines[0], head)
    if whole:  # one line with a list: the list of all records, unless it is one bare conversation
        return len(lines) == 1 and head.complete and isinstance(value, list) and not is_turns(value)
    if any(_parsed(line, head)[1] and line[:1] in b"{[" for line in lines[1:50] if not line.endswith(b",")):
        # Some later line is a value of its own. In pretty-printed JSON that happens only for short inner values.
        return lines[0] in (b"[", b"{") or lines[0].endswith((b",", b"[", b"{"))
    return True


def is_turns(value: object) -> bool:
    """Whether ``value`` is a list of chat turns (objects with a role or a sender)."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(t, dict) and ("role" in t or "from" in t) for t in value)
    )


def remove_spool(spool: Path) -> None:
    """Delete the copies of pipes in ``spool``, and it, if it is there."""
    with contextlib.suppress(OSError):  # the next user of the disk will say more
        remove_files(spool, lambda name: name.startswith("stdin-"))


def _spooled(pipe: IO[bytes], spool: Path) -> Path:
    spool.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=spool, prefix="stdin-", delete=False) as copy:
        shutil.copyfileobj(pipe, copy)
    return Path(copy.name)
