"""No input makes a reader fail in a way of Python's: records, bad records, or one line of UserError; 10,000 cases."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minimind.base.errors import UserError
from minimind.data.read.sources import Record, read_records
from minimind.data.records.conversations import FORMATS, Fields
from minimind.data.records.encoding import document_of
from minimind.data.records.formats import COLUMNS

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


# One draw of bytes is many times as fast as a list of choices.
texts = st.binary(max_size=25).map(lambda code: b"".join(PIECES[n % len(PIECES)] for n in code)) | st.binary(
    max_size=80
)


@settings(MANY, max_examples=3500)
@given(texts, st.sampled_from(NAMES), st.none() | st.sampled_from(["lines", "file"]))
def test_any_bytes_under_any_name(tmp_path: Path, data: bytes, name: str, format: str | None) -> None:
    read(tmp_path / name, data, format)


@settings(MANY, max_examples=1500)
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
@settings(MANY, max_examples=150)
@given(changes, st.integers(0, 1 << 14))
def test_damaged_tables_and_archives(tmp_path: Path, kind: str, changes: list[tuple[int, int]], cut: int) -> None:
    data = bytearray(WHOLE[kind]())
    assert len(read(tmp_path / "whole", bytes(data))) in (2, 40)
    for at, byte in changes:
        data[at % len(data)] = byte
    read(tmp_path / "a", bytes(data[: cut if cut % 3 == 0 and cut < len(data) else None]))


WORDS = [*sorted(COLUMNS), "name", "type", "arguments", "function", "human", "weight", "train"]
LEAVES: list[object] = [
    *("", "a", "user", "assistant", "tool", "tool_call", "system", "[", "{}", "[[1]]", "[{}]", '{"name": "f"}', "\0"),
    *("\ud800", "<think>a</think>", None, True, False, -1, 0, 1, 2, 0.5, float("nan"), float("inf"), 10**4000),
]
USER, ASSISTANT = {"role": "user", "content": "a"}, {"role": "assistant", "content": "a"}
CALL = {"function": {"name": "f", "arguments": '{"a": 1}'}}
RECORDS: list[object] = [
    {"text": "a", "meta": {}},
    {
        "messages": [USER, {**ASSISTANT, "tool_calls": [CALL]}, {"role": "tool", "content": "a"}, ASSISTANT],
        "tools": "[]",
    },
    {"conversations": [{"from": "human", "value": "a"}, {"from": "function_call", "value": '{"name": "f"}'}]},
    {"instruction": "a", "input": "", "output": "a", "history": [["a", "a"]], "system": "a"},
    {"conversation": [{"system": "a", "input": "a", "output": "a"}, {"human": "a", "assistant": "a"}]},
    {"prompt": [USER], "completion": [{**ASSISTANT, "reasoning_content": "a", "weight": 1}], "label": None},
    {"question": "a", "context": ["a"], "answer": "a", "thinking": "a", "loss_mask": [1]},
    [USER, ASSISTANT],
]


def grown(code: Iterator[int], depth: int = 0) -> object:
    """The value that the numbers describe: each a leaf, or how many parts come."""
    number = next(code, 0)
    if number < 128 or depth > 4:
        return LEAVES[number % len(LEAVES)]
    if number < 176:
        return [grown(code, depth + 1) for _ in range(number % 4)]
    return {WORDS[next(code, 0) % len(WORDS)]: grown(code, depth + 1) for _ in range(number % 4 + 1)}


def altered(value: object, code: Iterator[int], odds: int = 16) -> object:
    """The value with some of its parts exchanged, left out or added to."""
    if next(code, 255) < odds:
        return grown(code)
    if isinstance(value, list):
        return [altered(part, code, odds) for part in value for _ in range(0 if next(code, 255) < odds // 2 else 1)]
    if isinstance(value, dict):
        more = {WORDS[next(code, 0) % len(WORDS)]: grown(code)} if next(code, 255) < odds else {}
        return {key: altered(part, code, odds) for key, part in value.items()} | more
    return value


@settings(MANY, max_examples=4000)
@given(st.binary(max_size=60), st.sampled_from(["pretrain", "sft", None]), st.none() | st.sampled_from(FORMATS))
def test_any_structure_is_a_document_or_one_line(code: bytes, kind: str, format: str | None) -> None:
    numbers = iter(code)
    first = next(numbers, 0)
    value = altered(RECORDS[first % len(RECORDS)], numbers) if first < 192 else grown(numbers)
    for reasoning in ("train", "drop"):
        found = document_of(Record(value, "a.jsonl", 1), kind, Fields(format, reasoning=reasoning))  # type: ignore[arg-type]
        assert "\n" not in str(getattr(found, "reason", ""))
