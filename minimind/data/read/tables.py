"""Tables -> values: CSV and TSV under a header row, Parquet. A value is a dictionary of the row's cells.

Contract: every row is one value, or one ``error`` (a reason) with the line it starts on (for Parquet the row number);
rows above the record limit are rejected alone. A table that can't be read on raises ``UserError``.

Known weakness: a Parquet batch of 256 rows is in memory at once, however long its cells are.
"""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Callable, Iterator

from minimind.base.errors import UserError
from minimind.data.read import streams
from minimind.data.read.json_text import Value
from minimind.data.read.streams import Head

ROWS_PER_CHUNK = 256


def csv_values(head: Head) -> Iterator[Value]:
    """Rows under a header row as dictionaries. A quoted cell may hold line ends; ``line`` is where the row starts."""
    csv.field_size_limit(streams.MAX_RECORD_BYTES)
    lost: list[tuple[int, int]] = []  # (number, size) of lines that are too long to be held
    start = head.text.split(head.line_end, 1)[0].decode("utf-8", "replace")
    delimiter = "\t" if streams.suffix(head.name) == ".tsv" else max(",;\t", key=start.count)
    reader = csv.reader(_csv_lines(head, lost), delimiter=delimiter, strict=True)
    header: list[str] | None = None
    line = 1
    try:
        for row in reader:
            if lost:  # the row is that line, or has it inside a cell
                if header is None:
                    raise UserError(f"{head.name}:1: the first row must name the columns; it is too long for that")
                yield Value(None, line, streams.too_long(lost[0][1]))
                lost.clear()
            elif header is None:
                header = _header(row, head.name)
            elif row and len(row) != len(header):
                yield Value(None, line, f"{len(row)} cells under a header of {len(header)}", delimiter.join(row)[:2000])
            elif row:
                yield Value(dict(zip(header, row, strict=True)), line)
            line = reader.line_num + 1
    except csv.Error as error:
        hint = "; is a quote missing?" if "field limit" in str(error) else ""
        raise UserError(f"{head.name}:{line}: not CSV: {error}{hint}") from None


def _csv_lines(head: Head, lost: list[tuple[int, int]]) -> Iterator[str]:
    """Lines with their ends; one that is too long comes empty and is noted in ``lost``."""
    for number, line in streams.text_lines(head):
        if isinstance(line, int):
            lost.append((number, line))
        yield "\n" if isinstance(line, int) else line + "\n"


def _header(row: list[str], name: str) -> list[str]:
    header = [cell.strip() for cell in row]
    if len(set(header)) != len(header) or not all(header):
        raise UserError(f"{name}:1: the first row must name each column once, but is {header}")
    return header


def parquet_values(head: Head) -> Iterator[Value]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UserError(f"{head.name}: Parquet needs the pyarrow package: pip install pyarrow") from None
    with tempfile.TemporaryFile() if head.compression else head.path.open("rb") as file:
        if head.compression:  # Parquet is read from its end
            for block in streams.blocks(head):
                file.write(block)
        number = 0
        try:
            # Buffered: otherwise a column of a whole row group is read at once, which may be the whole file.
            reader = pyarrow.parquet.ParquetFile(file, buffer_size=streams.BLOCK_BYTES, pre_buffer=False)
            for batch in reader.iter_batches(batch_size=ROWS_PER_CHUNK):
                for row in batch.to_pylist():
                    number += 1
                    size = characters(row)
                    error = streams.too_long(size) if size > streams.MAX_RECORD_BYTES else None
                    yield Value(None if error else row, number, error)
        except (pyarrow.ArrowException, OSError, ValueError) as error:
            raise UserError(f"{head.name}: not readable as Parquet: {str(error).splitlines()[0]}") from None


def characters(value: object) -> int:
    """How much text a parsed value (a row, a record) holds, in all that is in it, however deep."""
    pending, size = [value], 0
    while pending:
        item = pending.pop()
        if isinstance(item, (str, bytes)):
            size += len(item)
        elif isinstance(item, dict):
            pending.extend(item.values())
        elif isinstance(item, list):
            pending.extend(item)
    return size


# Files whose name tells their format: suffix -> reader. The others' content is looked at (read/sources.py).
READERS: dict[str, Callable[[Head], Iterator[Value]]] = {
    ".csv": csv_values,
    ".tsv": csv_values,
    ".parquet": parquet_values,
}
