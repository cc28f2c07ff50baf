"""No input makes a reader fail in a way of Python's: records, bad records, or one line of UserError."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minimind.base.errors import UserError
from minimind.data.read.sources import Record, read_records
from minimind.data.records.conversations import FORMATS, Fields
from minimind.data.records.encoding import document_of

NAMES = ["a.jsonl", "a.json", "a.txt", "a.csv", "a.tsv", "a"]
ENCODINGS = ["utf-7", "gb18030", "big5", "iso2022_jp", "iso2022_kr", "utf-16", "utf-32", "shift_jis", "hz", "cp037"]
PIECES = [
    *(b'{ } [ ] , : " \n \r \t \\ + - ~{ ~} NaN 1e999 null true a').split(b" "),
    *(b"\n", b"\r", b"\t", b" ", b"\0", b"\xef\xbb\xbf", b"\xff\xfe", b"\x1b$B", b"\xc4\xe3", b"\xe4\xbd\xa0"),
    *(b"9" * 5000, b"\\ud800", b'"text"', b'{"text": "a"}\n', b'{"text": NaN}\n', b"id\ttext\n", b"a,b\n", b"<doc>"),
]
MANY = settings(derandomize=True, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def read(path: Path, data: bytes, format: str | None = None, encoding: str | None = None) -> list[Record]:
    """All records; each goes through the rules for texts and for conversations too."""
    path.write_bytes(data)
    records: list[Record] = []
    try:
        for record in read_records(path, format, encoding):
            records.append(record)
            for kind in ("pretrain", "sft", None):
                str(document_of(record, kind, Fields()))  # type: ignore[arg-type]
    except UserError as error:
        said = str(error)
    else:
        return records
    assert str(path) in said and "\n" not in said
    return records


texts = st.lists(st.sampled_from(PIECES), max_size=25).map(b"".join) | st.binary(max_size=80)


@settings(MANY, max_examples=1000)
@given(texts, st.sampled_from(NAMES), st.none() | st.sampled_from(["lines", "file"]))
def test_any_bytes_under_any_name(tmp_path: Path, data: bytes, name: str, format: str | None) -> None:
    read(tmp_path / name, data, format)


@settings(MANY, max_examples=500)
@given(texts, st.sampled_from(NAMES), st.sampled_from(ENCODINGS))
def test_any_bytes_in_any_encoding(tmp_path: Path, data: bytes, name: str, encoding: str) -> None:
    read(tmp_path / name, data, encoding=encoding)


def parquet() -> bytes:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    buffer = io.BytesIO()
    parquet.write_table(arrow.table({"text": ["a", "b" * 50], "m": [[{"role": "user", "n": 1}], []]}), buffer)
    return buffer.getvalue()


def arrow(stream: bool) -> bytes:
    arrow, ipc = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.ipc")
    table, buffer = arrow.table({"text": ["a", "b" * 50], "m": [[{"role": "user", "n": 1}], []]}), io.BytesIO()
    with (ipc.new_stream if stream else ipc.new_file)(buffer, table.schema) as writer:
        writer.write_table(table)
    return buffer.getvalue()


ROWS = b'{"text": "one"}\n{"text": "two"}\n' * 20
WHOLE: dict[str, Callable[[], bytes]] = {
    "parquet": parquet,
    "file": lambda: arrow(stream=False),
    "stream": lambda: arrow(stream=True),
    "gz": lambda: gzip.compress(ROWS, mtime=0),
    "bz2": lambda: bz2.compress(ROWS),
    "xz": lambda: lzma.compress(ROWS),
    "lzma": lambda: lzma.compress(ROWS, lzma.FORMAT_ALONE),
}
changes = st.lists(st.tuples(st.integers(0, 1 << 14), st.integers(0, 255)), min_size=1, max_size=4)


@pytest.mark.parametrize("kind", WHOLE)
@settings(MANY, max_examples=60)
@given(changes, st.integers(0, 1 << 14))
def test_damaged_tables_and_archives(tmp_path: Path, kind: str, changes: list[tuple[int, int]], cut: int) -> None:
    data = bytearray(WHOLE[kind]())
    assert len(read(tmp_path / "whole", bytes(data))) in (2, 40)
    for at, byte in changes:
        data[at % len(data)] = byte
    read(tmp_path / "a", bytes(data[: cut if cut % 3 == 0 and cut < len(data) else None]))


KEYS = [
    "text",
    "content",
    "role",
    "from",
    "value",
    "conversations",
    "messages",
    "instruction",
    "input",
    "output",
    "context",
]
KEYS += [
    "prompt",
    "completion",
    "question",
    "answer",
    "history",
    "system",
    "tools",
    "tool_calls",
    "function_call",
    "name",
]
KEYS += [
    "arguments",
    "function",
    "reasoning_content",
    "weight",
    "train",
    "loss_mask",
    "label",
    "rejected",
    "images",
    "type",
]
leaves = st.sampled_from(
    ["", "a", "user", "assistant", "tool", "[", "{}", "[[1]]", '{"name": "f"}', "\0", "\ud800", None, True]
)
leaves |= st.integers(-2, 2) | st.floats() | st.just(10**4000)
values = st.recursive(
    leaves, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.sampled_from(KEYS), v, max_size=4), max_leaves=12
)


@settings(MANY, max_examples=1200)
@given(values, st.sampled_from(["pretrain", "sft", None]), st.none() | st.sampled_from(FORMATS))
def test_any_structure_is_a_document_or_one_line(value: object, kind: str, format: str | None) -> None:
    for reasoning in ("train", "drop"):
        found = document_of(Record(value, "a.jsonl", 1), kind, Fields(format, reasoning=reasoning))  # type: ignore[arg-type]
        assert "\n" not in str(getattr(found, "reason", ""))
