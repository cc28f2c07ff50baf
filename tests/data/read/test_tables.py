"""Parquet and Arrow: only what is used is converted, and what can't be converted spoils its record only."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from minimind.base.errors import UserError
from minimind.data.read.sources import Source, read_chunks, read_records
from minimind.data.read.tables import UNREAD
from minimind.data.records.conversations import Fields
from minimind.data.records.encoding import Reject, document_of

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
ipc = pytest.importorskip("pyarrow.ipc")


def table() -> object:
    """Far dates and nanoseconds, beside the text and inside the turns."""
    stamp = pa.array([1, 2], pa.int64()).cast(pa.timestamp("ns"))
    turns = pa.array(
        [[{"role": "user", "at": 7}], []], pa.list_(pa.struct([("role", pa.string()), ("at", pa.int64())]))
    )
    kind = pa.list_(pa.struct([("role", pa.string()), ("at", pa.timestamp("ns"))]))
    far = pa.array([2**31 - 1, 0], pa.int32()).cast(pa.date32())
    return pa.table({"text": ["a", "b"], "far": far, "stamp": stamp, "turns": turns.cast(kind)})


def written(tmp_path: Path, form: str) -> Path:
    path = tmp_path / f"a.{form}"
    buffer = io.BytesIO()
    if form == "parquet":
        parquet.write_table(table(), buffer)
    else:
        with (ipc.new_stream if form == "arrow" else ipc.new_file)(buffer, table().schema) as writer:  # type: ignore[attr-defined]
            writer.write_table(table())
    path.write_bytes(buffer.getvalue())
    return path


@pytest.mark.parametrize("form", ["parquet", "arrow", "feather"])
def test_dates_and_nanoseconds_do_not_matter(tmp_path: Path, form: str) -> None:
    records = list(read_records(written(tmp_path, form)))
    assert [r.value["text"] for r in records] == ["a", "b"]  # type: ignore[index]
    assert records[0].value["turns"] == [{"role": "user", "at": 7}]  # type: ignore[index]


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_only_the_columns_that_are_used_are_read(tmp_path: Path, form: str) -> None:
    source = Source(written(tmp_path, form), "a")
    (chunk,) = read_chunks(source, columns=Fields().columns)
    assert [r.value for r in chunk.records()] == [
        {"text": text, "far": UNREAD, "stamp": UNREAD, "turns": UNREAD} for text in "ab"
    ]
    (mapped,) = read_chunks(source, columns=Fields.parse(None, "stamp", None).columns)
    assert [r.value["stamp"] for r in mapped.records()] == [1, 2]  # type: ignore[index]
    (none,) = read_chunks(source, columns=())
    assert len(list(none.records())) == 2


@pytest.mark.parametrize("form", ["parquet", "arrow"])
@pytest.mark.parametrize("column", ["text", "other"])
def test_text_that_is_not_utf8_is_one_reject_where_it_is_used(tmp_path: Path, form: str, column: str) -> None:
    broken = pa.StringArray.from_buffers(2, *pa.array([b"a", b"\xff"]).buffers()[1:])
    rows = pa.table({column: broken, **({} if column == "text" else {"text": ["a", "b"]})})
    buffer = io.BytesIO()
    if form == "parquet":
        parquet.write_table(rows, buffer)
    else:
        with ipc.new_stream(buffer, rows.schema) as writer:
            writer.write_table(rows)
    path = tmp_path / f"a.{form}"
    path.write_bytes(buffer.getvalue())
    found = [document_of(record, "pretrain", Fields()) for record in read_records(path)]
    if column == "other":
        assert found == ["a", "b"]
    else:
        assert found[0] == "a" and isinstance(found[1], Reject)
        assert found[1].reason == '"text" is text that is not UTF-8, not a string'


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    rows = pa.table([["a"], ["b"]], names=["text", "text"])
    with (tmp_path / "a.arrow").open("wb") as file, ipc.new_stream(file, rows.schema) as writer:
        writer.write_table(rows)
    with pytest.raises(UserError, match="two columns are named text"):
        list(read_records(tmp_path / "a.arrow"))


def test_two_columns_of_one_name_matter_only_where_they_are_read(tmp_path: Path) -> None:
    other = pa.Table.from_arrays([pa.array(["a"]), pa.array([1]), pa.array([2])], ["text", "n", "n"])
    with ipc.new_stream(str(tmp_path / "a.arrow"), other.schema) as writer:
        writer.write_table(other)
    (chunk,) = read_chunks(Source(tmp_path / "a.arrow", "a"), columns=Fields().columns)
    assert [r.value["text"] for r in chunk.records()] == ["a"]  # type: ignore[index]
    with pytest.raises(UserError, match="two columns are named n"):
        list(read_records(tmp_path / "a.arrow"))
