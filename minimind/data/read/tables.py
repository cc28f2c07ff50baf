"""Tables -> values: CSV and TSV under a header row, Parquet, Arrow. A value is a dictionary of the row's cells.

Contract: every row is one value, or one ``error`` (a reason) with the line it starts on (for Parquet and Arrow the row
number); rows above the record limit are rejected alone. A table that can't be read on raises ``UserError``.

In a TSV a line is a row: its quotes are CSV's where they make a whole row of the line, else characters.

Of a Parquet or Arrow table only the columns that somebody can use are read and converted; another's cells are
`UNREAD`. A cell that can't be converted (text that is not UTF-8) is an `Unusable` with the reason, so that only a
record that uses it is rejected. Dates, times and durations are their numbers: Python has no form for all of them.

Known weakness: a Parquet batch of 256 rows is in memory at once, however long its cells are.
"""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Callable, Container, Iterable, Iterator
from typing import IO, Any

from minimind.base.errors import UserError
from minimind.data.read import streams
from minimind.data.read.json_text import Value
from minimind.data.read.streams import Head

ROWS_PER_CHUNK = 256


class Unusable:
    """A cell that holds no value for us; it prints as the reason."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def __repr__(self) -> str:
        return self._reason


UNREAD = Unusable("a column that is not read")


def csv_values(head: Head) -> Iterator[Value]:
    """Rows under a header row as dictionaries. ``line`` is where the row starts: a quoted cell may hold line ends."""
    start = head.text.split(head.line_end, 1)[0].decode("utf-8", "replace")
    tabbed = streams.suffix(head.name) == ".tsv"
    delimiter = "\t" if tabbed else max(",;\t", key=start.count)
    header: list[str] | None = None
    for line, row in _tsv_rows(head) if tabbed else _csv_rows(head, delimiter):
        if isinstance(row, int):
            if header is None:
                raise UserError(f"{head.name}:1: the first row must name the columns; it is too long for that")
            yield Value(None, line, streams.too_long(row))
        elif header is None:
            header = _header(row, head.name)
        elif row and len(row) != len(header):
            yield Value(None, line, f"{len(row)} cells under a header of {len(header)}", delimiter.join(row)[:2000])
        elif row:
            yield Value(dict(zip(header, row, strict=True)), line)


def _csv_rows(head: Head, delimiter: str) -> Iterator[tuple[int, list[str] | int]]:
    """(line, cells) of each row; the size of a row that is too long to be held."""
    csv.field_size_limit(streams.MAX_RECORD_BYTES)
    lost: list[tuple[int, int]] = []  # (number, size) of lines that are too long to be held
    reader = csv.reader(_csv_lines(head, lost), delimiter=delimiter, strict=True)
    line = 1
    try:
        for row in reader:
            yield line, lost[0][1] if lost else row  # the row is that line, or has it inside a cell
            lost.clear()
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


def _tsv_rows(head: Head) -> Iterator[tuple[int, list[str] | int]]:
    """As `_csv_rows`, one line a row."""
    csv.field_size_limit(streams.MAX_RECORD_BYTES)
    width = 0
    for number, line in streams.text_lines(head):
        if isinstance(line, int):
            yield number, line
            continue
        cells = _tsv_cells(line, width) if line else []
        width = width or len(cells)
        yield number, cells


def _tsv_cells(line: str, width: int) -> list[str]:
    """The line's cells, unquoted if that gives ``width`` of them (0: any number)."""
    if '"' in line:
        try:
            rows = list(csv.reader([line], delimiter="\t", strict=True))
        except csv.Error:
            rows = []
        if len(rows) == 1 and len(rows[0]) == (width or len(rows[0])):
            return rows[0]
    return line.split("\t")


def _header(row: list[str], name: str) -> list[str]:
    """The names of the columns. One without a name, as an index is written, gets its number for one."""
    header = [cell.strip() for cell in row]
    if len(set(header)) != len(header) or not any(header):
        raise UserError(f"{name}:1: the first row must name each column once, but is {header}")
    return [cell or f"unnamed column {number}" for number, cell in enumerate(header, 1)]


def parquet_values(head: Head, columns: Container[str] | None = None) -> Iterator[Value]:
    with _opened(head) as file:
        yield from _table_values(head, columns, _parquet_batches(file, columns))


def arrow_values(head: Head, columns: Container[str] | None = None) -> Iterator[Value]:
    """Arrow's own format: a stream (what ``save_to_disk`` writes) or a file (Feather)."""
    with _opened(head) as file:
        yield from _table_values(head, columns, _arrow_batches(file))


def _opened(head: Head) -> IO[bytes]:
    """The file, decompressed: tables are read from their ends."""
    if not head.compression:
        return head.path.open("rb")
    file = tempfile.TemporaryFile()  # noqa: SIM115 (the caller closes it)
    for block in streams.blocks(head):
        file.write(block)
    file.seek(0)
    return file


def _parquet_batches(file: IO[bytes], columns: Container[str] | None) -> Iterator[Any]:
    """Batches of the wanted columns, and then the names of all others."""
    import pyarrow.parquet

    # Buffered: otherwise a column of a whole row group is read at once, which may be the whole file.
    reader = pyarrow.parquet.ParquetFile(file, buffer_size=streams.BLOCK_BYTES, pre_buffer=False)
    names = reader.schema_arrow.names
    wanted = [name for name in names if columns is None or name in columns]
    others = dict.fromkeys((name for name in names if name not in set(wanted)), UNREAD)
    for batch in reader.iter_batches(batch_size=ROWS_PER_CHUNK, columns=wanted):
        yield batch, others


def _arrow_batches(file: IO[bytes]) -> Iterator[Any]:
    import pyarrow.ipc

    mark = file.read(6)
    file.seek(0)
    if mark != b"ARROW1":
        batches: Iterable[Any] = pyarrow.ipc.open_stream(file)
    else:
        reader = pyarrow.ipc.open_file(file)
        batches = (reader.get_batch(number) for number in range(reader.num_record_batches))
    for batch in batches:
        for column in batch.columns:
            _validate(column)
        for start in range(0, batch.num_rows, ROWS_PER_CHUNK):
            yield batch.slice(start, ROWS_PER_CHUNK), {}


def _validate(column: Any) -> None:
    """Raises ArrowInvalid for a column that points outside its memory: Arrow takes a file's word for it."""
    import pyarrow

    try:
        column.validate(full=True)
    except pyarrow.ArrowInvalid as error:
        if "UTF8" not in str(error):
            raise
        column.validate()
        column.cast(_undecoded(column.type)).validate(full=True)  # bad text is a matter of its row


def _table_values(head: Head, columns: Container[str] | None, batches: Iterator[Any]) -> Iterator[Value]:
    try:
        import pyarrow
    except ImportError:
        raise UserError(f"{head.name}: {_spelled(head)} needs the pyarrow package: pip install pyarrow") from None
    number = 0
    try:
        for batch, others in batches:
            for row in _rows(batch, columns, others, head.name):
                number += 1
                size = characters(row)
                error = streams.too_long(size) if size > streams.MAX_RECORD_BYTES else None
                yield Value(None if error else row, number, error)
    except (pyarrow.ArrowException, OSError, ValueError, KeyError, OverflowError, MemoryError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise UserError(f"{head.name}: not readable as {_spelled(head)} after row {number}: {reason}") from None


def _spelled(head: Head) -> str:
    return (head.table or "").capitalize()


def _rows(
    batch: Any, columns: Container[str] | None, others: dict[str, Unusable], name: str
) -> Iterator[dict[str, object]]:
    """The batch's rows as dictionaries, in the order of its columns."""
    names = batch.schema.names
    wanted = [column for column in names if columns is None or column in columns]
    if len(set(wanted)) != len(wanted):
        twice = next(column for column in wanted if wanted.count(column) > 1)
        raise UserError(f"{name}: two columns are named {twice}; rename one")
    read = [
        _cells(batch.column(at)) if columns is None or column in columns else [UNREAD] * batch.num_rows
        for at, column in enumerate(names)
    ]
    for at in range(batch.num_rows):
        yield {**{column: cells[at] for column, cells in zip(names, read, strict=True)}, **others}


def _cells(column: Any) -> list[object]:
    """The column's values; one that can't be converted is an `Unusable`."""
    plain = _plain(column.type)
    if plain != column.type:
        column = column.cast(plain)
    try:
        values: list[object] = column.to_pylist()
        return values
    except (UnicodeDecodeError, ValueError, OverflowError):
        return [_cell(value) for value in column]


def _cell(value: Any) -> object:
    try:
        found: object = value.as_py()
        return found
    except UnicodeDecodeError:
        return Unusable("text that is not UTF-8")
    except (ValueError, OverflowError) as error:
        return Unusable(f"not convertible ({next(iter(str(error).splitlines()), 'no reason given')})")


def _undecoded(kind: Any) -> Any:
    """The type with bytes for text, in lists and objects too."""
    import pyarrow

    types = pyarrow.types
    if types.is_string(kind):
        return pyarrow.binary()
    if types.is_large_string(kind):
        return pyarrow.large_binary()
    return _nested(kind, _undecoded)


def _nested(kind: Any, change: Callable[[Any], Any]) -> Any:
    """The type with ``change`` made to the types inside lists and objects."""
    import pyarrow

    types = pyarrow.types
    if types.is_struct(kind):
        return pyarrow.struct([field.with_type(change(field.type)) for field in kind])
    if types.is_list(kind):
        return pyarrow.list_(kind.value_field.with_type(change(kind.value_type)))
    if types.is_large_list(kind):
        return pyarrow.large_list(kind.value_field.with_type(change(kind.value_type)))
    return kind


def _plain(kind: Any) -> Any:
    """The type with dates, times and durations as numbers, in lists and objects too."""
    import pyarrow

    types = pyarrow.types
    if types.is_date32(kind) or types.is_time32(kind):
        return pyarrow.int32()
    if types.is_temporal(kind) and not types.is_interval(kind):
        return pyarrow.int64()
    return _nested(kind, _plain)


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
}
