"""Sources: whatever people call a data file -> records with the right line numbers, or an error that names the
cause.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import sys
import threading
from pathlib import Path

import pytest

from minimind.base.errors import UserError
from minimind.data.read import sources, streams
from minimind.data.read.sources import Record, expand, read_records

CHINESE = "滚滚长江东逝水，浪花淘尽英雄。是非成败转头空，青山依旧在，几度夕阳红。白发渔樵江渚上，惯看秋月春风。"
TAIWAN = "數學是利用符號語言研究數量、結構、變化以及空間等概念的一門學科，從某種角度看屬於形式科學的一種。"
ROWS = [{"text": "one"}, {"text": "二"}, {"text": "three"}]


def write(path: Path, data: bytes | str) -> Path:
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def lines(rows: list[object]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def values(path: Path, **options: str) -> list[object]:
    records = list(read_records(path, **options))
    assert [record.error for record in records] == [None] * len(records)
    return [record.value for record in records]


def test_json_lines_with_line_numbers_that_count_blank_lines(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"text": "a"}\n\n  \n{"text": "b"}\n{"text": "c"}')
    assert [(r.value, r.line) for r in read_records(path)] == [
        ({"text": "a"}, 1),
        ({"text": "b"}, 4),
        ({"text": "c"}, 5),
    ]


@pytest.mark.parametrize("name", ["a.json", "a.jsonl", "a.data", "a.txt"])
def test_json_lines_under_any_name(tmp_path: Path, name: str) -> None:
    assert values(write(tmp_path / name, lines(ROWS))) == ROWS


@pytest.mark.parametrize("name", ["a.json", "a.jsonl", "a.data"])
@pytest.mark.parametrize("indent", [None, 1, 4])
def test_a_json_list_under_any_name_and_layout(tmp_path: Path, name: str, indent: int | None) -> None:
    assert values(write(tmp_path / name, json.dumps(ROWS, indent=indent))) == ROWS


def test_a_list_with_one_element_a_line(tmp_path: Path) -> None:
    text = "[\n" + ",\n".join(json.dumps(row) for row in ROWS) + "\n]\n"
    assert [(r.value, r.line) for r in read_records(write(tmp_path / "a.json", text))] == [
        (row, number) for number, row in enumerate(ROWS, 2)
    ]


def test_pretty_printed_objects_one_after_another(tmp_path: Path) -> None:
    text = "\n".join(json.dumps(row, indent=2) for row in ROWS)
    assert [(r.value, r.line) for r in read_records(write(tmp_path / "a.jsonl", text))] == [
        (ROWS[0], 1),
        (ROWS[1], 4),
        (ROWS[2], 7),
    ]


def test_a_list_on_one_line_longer_than_the_head_and_the_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "HEAD_BYTES", 200)
    monkeypatch.setattr(streams, "BLOCK_BYTES", 7)
    rows = [{"text": "x" * number, "n": number} for number in range(50)]
    assert values(write(tmp_path / "a.json", json.dumps(rows))) == rows


def test_numbers_at_a_block_end_are_not_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "BLOCK_BYTES", 3)
    assert values(write(tmp_path / "a.json", "[12345, 67890.5, -1e10]")) == [12345, 67890.5, -1e10]


def test_bare_lists_of_turns_one_a_line(tmp_path: Path) -> None:
    turns = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    assert values(write(tmp_path / "a.jsonl", lines([turns, turns]))) == [turns, turns]
    assert values(write(tmp_path / "b.jsonl", lines([turns]))) == [turns]


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ('[\n {"a": 1},\n {"a": 2},\n]', ":4:1: not JSON: trailing comma"),
        ('[\n {"a": 1}\n {"a": 2}\n]', ":3:2:"),
        ('[\n {"a": 1},\n {"a" 2}\n]', ":3:7:"),
        ('[\n {"a": 1},\n', "truncated"),
        ('[{"a": 1}', "truncated"),
        ('{\n "a": [1,\n ]\n}', "trailing comma"),
    ],
)
def test_a_broken_list_is_an_error_with_line_and_column(tmp_path: Path, text: str, where: str) -> None:
    path = write(tmp_path / "a.json", text)
    with pytest.raises(UserError) as caught:
        list(read_records(path))
    assert str(caught.value).startswith(f"{path}:")
    assert where in str(caught.value)


def test_a_broken_line_is_one_bad_record_and_the_others_are_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"text": "a\n{"text": "b"}\n{"text"}\n{"text": "d"}\n')
    records = list(read_records(path))
    assert [r.line for r in records] == [1, 2, 3, 4]
    assert [r.error is None for r in records] == [False, True, False, True]
    assert records[2].error == "not JSON: Expecting ':' delimiter at column 8"
    assert records[2].excerpt == '{"text"}'


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\u0085", "\x0c", "\x0b", "\x1c", "\x1e"])
@pytest.mark.parametrize("name", ["a.jsonl", "a.txt"])
def test_only_line_ends_end_a_line(tmp_path: Path, separator: str, name: str) -> None:
    row = {"text": f"a{separator}b"}
    if name == "a.jsonl":  # json allows only some of them unescaped; those must not split a line
        text = json.dumps(row, ensure_ascii=False) + "\n" if separator > "\x1f" else json.dumps(row) + "\n"
        assert values(write(tmp_path / name, text)) == [row]
    else:
        assert values(write(tmp_path / name, row["text"] + "\n")) == [row["text"]]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-be", "utf-32"])
def test_line_ends_and_byte_order_marks(tmp_path: Path, end: str, encoding: str) -> None:
    text = end.join([*(json.dumps(row, ensure_ascii=False) for row in ROWS), ""])
    mark = b"\xfe\xff" if encoding == "utf-16-be" else b""
    path = write(tmp_path / "a.jsonl", mark + text.encode(encoding))
    assert [(r.value, r.line, r.error) for r in read_records(path)] == [
        (row, number, None) for number, row in enumerate(ROWS, 1)
    ]
    paragraphs = end.join(["first", "still first", "", "second 二", ""])
    path = write(tmp_path / "a.txt", mark + paragraphs.encode(encoding))
    assert [(r.value, r.line) for r in read_records(path)] == [("first\nstill first", 1), ("second 二", 4)]


def test_crlf_across_every_block_border(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.jsonl", "\r\n".join(json.dumps(row) for row in ROWS) + "\r\n")
    for size in range(1, 20):
        monkeypatch.setattr(streams, "BLOCK_BYTES", size)
        assert values(path) == ROWS


@pytest.mark.parametrize(
    ("text", "encoding", "found"),
    [(CHINESE, "gb18030", "gb18030"), (CHINESE, "gbk", "gb18030"), (TAIWAN, "big5", "big5hkscs")],
)
def test_chinese_encodings_are_recognised_with_a_confidence(
    tmp_path: Path, text: str, encoding: str, found: str
) -> None:
    rows = [{"text": text}] * 5
    path = write(tmp_path / "a.jsonl", lines(rows).encode(encoding))
    head = streams.inspect(path)
    assert head.encoding == found
    assert 0.75 <= head.confidence <= 1
    assert values(path) == rows
    assert values(write(tmp_path / "a.txt", f"{text}\n\n{text}".encode(encoding))) == [text, text]
    assert values(write(tmp_path / "b.json", json.dumps(rows, indent=1, ensure_ascii=False).encode(encoding))) == rows


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("短句子", "gb18030"),
        ("Ein schöner Tag für die Übung, café déjà vu. " * 20, "cp1252"),
        ("これは日本語の文章です。漢字とかなが混ざっています。" * 20, "shift_jis"),
    ],
)
def test_an_encoding_that_is_not_sure_is_refused(tmp_path: Path, text: str, encoding: str) -> None:
    path = write(tmp_path / "a.txt", text.encode(encoding))
    with pytest.raises(UserError, match=r"--encoding"):
        list(read_records(path))
    assert values(path, encoding=encoding) == [text.rstrip("\n")]


def test_utf8_with_one_bad_line_is_utf8_with_one_bad_line(tmp_path: Path) -> None:
    data = lines([{"text": CHINESE}] * 9).encode() + b'{"text": "\xff\xfe"}\n'
    records = list(read_records(write(tmp_path / "a.jsonl", data)))
    assert [r.line for r in records if r.error] == [10]
    assert records[9].error == "not valid UTF-8 at byte 11 of the line; if the file is GBK or Big5, say --encoding"


def test_utf16_without_a_mark_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="UTF-16-LE without its mark; name it with --encoding utf-16-le"):
        list(read_records(write(tmp_path / "a.txt", "hello".encode("utf-16-le"))))
    assert values(tmp_path / "a.txt", encoding="utf-16-le") == ["hello"]


def zstd(data: bytes) -> bytes:
    zstandard = pytest.importorskip("zstandard")
    return zstandard.ZstdCompressor(write_checksum=True).compress(data)


COMPRESSORS = {"gz": gzip.compress, "xz": lzma.compress, "bz2": bz2.compress, "zst": zstd}


@pytest.mark.parametrize("suffix", COMPRESSORS)
def test_compressed_files(tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "BLOCK_BYTES", 100)
    rows = [{"text": f"row {number}"} for number in range(500)]
    data = lines(rows).encode()
    compress = COMPRESSORS[suffix]
    assert values(write(tmp_path / f"a.jsonl.{suffix}", compress(data))) == rows
    assert values(write(tmp_path / "no_suffix", compress(data))) == rows
    two_members = compress(data[:1000]) + compress(data[1000:])
    assert values(write(tmp_path / f"b.jsonl.{suffix}", two_members)) == rows


@pytest.mark.parametrize("suffix", COMPRESSORS)
def test_a_truncated_or_damaged_archive_is_named(tmp_path: Path, suffix: str) -> None:
    data = COMPRESSORS[suffix](os.urandom(5000).hex().encode())
    with pytest.raises(UserError, match=r"a\.jsonl.*truncated"):
        list(read_records(write(tmp_path / "a.jsonl", data[:-1000])))
    damaged = bytearray(data)
    damaged[len(data) // 2] ^= 0xFF
    damaged[len(data) // 2 + 1] ^= 0xFF
    with pytest.raises(UserError, match=r"b\.jsonl"):
        list(read_records(write(tmp_path / "b.jsonl", bytes(damaged))))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "0 bytes"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:98\nsize 1\n", "Git LFS"),
        (b"<!-- saved -->\n<HTML><body>", "an HTML page"),
        (b"<!DOCTYPE html><html><body>404</body></html>", "HTML page"),
        (b"\n <HTML>", "HTML page"),
        (b"<?xml version='1.0'?><Error/>", "XML"),
        (b"PK\x03\x04aaaa", "zip archive"),
        (b"PK\x05\x06" + b"\0" * 18, "zip archive"),
        (gzip.compress(gzip.compress(b"text")), "an archive within an archive"),
        (bz2.compress(bz2.compress(b"text")), "an archive within an archive"),
        (b"%PDF-1.7", "PDF"),
        (b"7z\xbc\xaf\x27\x1c", "7z archive"),
        (b"Rar!\x1a\x07\x01\0", "RAR archive"),
        (b"\x04\x22\x4d\x18aaaa", "lz4 archive"),
        (b'<doc id="1" url="u" title="t">\ntext\n</doc>\n', "WikiExtractor's <doc> markup"),
        (b"\0" * 100, "NUL bytes"),
    ],
)
def test_what_is_no_data_is_named(tmp_path: Path, data: bytes, said: str) -> None:
    for name in ("a.jsonl", "a.txt", "a.json"):
        path = write(tmp_path / name, data)
        with pytest.raises(UserError, match=said) as caught:
            list(read_records(path))
        assert str(caught.value).startswith(f"{path}: ")
        assert "\n" not in str(caught.value)


def test_a_tar_archive_is_named(tmp_path: Path) -> None:
    import tarfile

    write(tmp_path / "inside.jsonl", lines([{"text": "a"}]))
    with tarfile.open(tmp_path / "a.jsonl.gz", "w:gz") as archive:
        archive.add(tmp_path / "inside.jsonl", "inside.jsonl")
    with pytest.raises(UserError, match=r"a\.jsonl\.gz: a tar archive"):
        list(read_records(tmp_path / "a.jsonl.gz"))


def test_files_that_are_not_there(tmp_path: Path) -> None:
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "gone.jsonl")
    with pytest.raises(UserError, match=r"a symlink to .*gone\.jsonl, which does not exist"):
        list(read_records(tmp_path / "link.jsonl"))
    with pytest.raises(UserError, match="no such file"):
        list(read_records(tmp_path / "absent.jsonl"))
    with pytest.raises(UserError, match="a directory"):
        list(read_records(tmp_path))


def test_paragraphs_lines_and_whole_files(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "\n\n  first\nmore\n \t\nsecond\n\n\n")
    assert [(r.value, r.line) for r in read_records(path)] == [("  first\nmore", 3), ("second", 6)]
    assert [(r.value, r.line) for r in read_records(path, "lines")] == [("  first", 3), ("more", 4), ("second", 6)]
    assert [(r.value, r.line) for r in read_records(path, "file")] == [("  first\nmore\n \t\nsecond", 3)]


def test_csv_and_tsv(tmp_path: Path) -> None:
    text = 'question,answer\n"a, b","two\nlines"\nshort\n\nc,d\n'
    records = list(read_records(write(tmp_path / "a.csv", text)))
    assert records[0] == Record({"question": "a, b", "answer": "two\nlines"}, str(tmp_path / "a.csv"), 2)
    assert (records[1].line, records[1].error) == (4, "1 cells under a header of 2")
    assert (records[2].line, records[2].value) == (6, {"question": "c", "answer": "d"})
    assert values(write(tmp_path / "a.tsv", "text\tn\na, b\t1\n")) == [{"text": "a, b", "n": "1"}]
    assert values(write(tmp_path / "b.csv", "text;n\na, b;1\n")) == [{"text": "a, b", "n": "1"}]
    with pytest.raises(UserError, match=r"c\.csv:1: the first row"):
        list(read_records(write(tmp_path / "c.csv", "text,text\na,b\n")))
    with pytest.raises(UserError, match=r"d\.csv:2: not CSV"):
        list(read_records(write(tmp_path / "d.csv", 'text,n\n"a,b\n')))


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_parquet(tmp_path: Path, compress: object) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")

    turns = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "答"}]
    rows = [{"messages": turns, "n": number} for number in range(600)]
    buffer = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(rows), buffer, row_group_size=100)
    path = write(tmp_path / "a.parquet", compress(buffer.getvalue()))  # type: ignore[operator]
    records = list(read_records(path))
    assert [r.value for r in records] == rows
    assert [r.line for r in records] == list(range(1, 601))
    with pytest.raises(UserError, match=r"b\.parquet: not readable as Parquet"):
        list(read_records(write(tmp_path / "b.parquet", buffer.getvalue()[:-500])))
    with pytest.raises(UserError, match="does not start with PAR1"):
        list(read_records(write(tmp_path / "c.parquet", "text")))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("[" * 100_000 + "]" * 100_000, "nested too deeply"),
        ('{"a":' * 100_000 + "1" + "}" * 100_000, "nested too deeply"),
        ('{"text": "a", "text": "b"}', "key 'text' appears twice in one object"),
        ('{"a": [{"k": 1, "k": 1}]}', "key 'k' appears twice in one object"),
        ('{"n": ' + "9" * 10_000 + "}", "an integer of 10,000 digits; the limit is 4,300"),
        ('{"text": "tab\there"}', "Invalid control character"),
        ('{"text": "a"} {"text": "b"}', "not JSON: Extra data"),
        ("\x00\x01\x02", "not JSON"),
        ('{"text": "a", "n": -Infinity}', "not JSON: -Infinity is no number"),
        ("plain words", "not JSON"),
    ],
)
def test_pathological_lines_are_bad_records(tmp_path: Path, line: str, reason: str) -> None:
    path = write(tmp_path / "a.jsonl", '{"text": "a"}\n' + line + '\n{"text": "b"}\n')
    records = list(read_records(path))
    assert [r.value for r in records] == [{"text": "a"}, None, {"text": "b"}]
    assert reason in str(records[1].error)
    assert len(str(records[1].error)) < 300


def test_pathological_lists_end_cleanly(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nested too deeply"):
        list(read_records(write(tmp_path / "a.json", "[\n" + "[" * 100_000)))
    records = list(read_records(write(tmp_path / "b.json", '[\n{"a": 1, "a": 2},\n{"b": NaN}\n]')))
    assert records[0].error == "key 'a' appears twice in one object"
    assert records[1].error == "not JSON: NaN is no number (write null)"


def test_a_line_over_the_limit_is_counted_and_never_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import tracemalloc

    monkeypatch.setattr(streams, "MAX_RECORD_BYTES", 2 << 20)
    path = tmp_path / "a.jsonl"
    with path.open("w") as file:
        file.write('{"text": "a"}\n{"text": "')
        for _ in range(50):
            file.write("x" * (1 << 20))
        file.write('"}\n{"text": "b"}\n')
    tracemalloc.start()
    records = list(read_records(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [(r.line, r.error is None) for r in records] == [(1, True), (2, False), (3, True)]
    assert records[1].error == "52,428,812 bytes in one record; the limit is 2 MiB"
    assert peak < 16 << 20


BIG = "x" * 3000


def limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit of 2,000 bytes for a record, and small blocks."""
    monkeypatch.setattr(streams, "MAX_RECORD_BYTES", 2000)
    monkeypatch.setattr(streams, "BLOCK_BYTES", 256)


@pytest.mark.parametrize(
    ("name", "data", "bad_line"),
    [
        ("a.csv", f"id,text\n1,a\n2,{BIG}\n3,b\n", 3),
        ("a.csv", f'id,text\n1,a\n2,"x\n{BIG}\ny"\n3,b\n', 3),  # inside a cell: the whole row is lost
        ("a.tsv", f"id\ttext\n1\ta\n2\tx\n{BIG}", 4),
        ("a.json", json.dumps([{"text": "a"}, {"text": BIG}, {"text": "b"}]), 1),
        ("a.json", json.dumps([{"text": "a"}, {"text": BIG}, {"text": "b"}], indent=1), 5),
    ],
)
def test_a_record_over_the_limit_is_rejected_and_the_others_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, data: str, bad_line: int
) -> None:
    limited(monkeypatch)
    records = list(read_records(write(tmp_path / name, data)))
    assert len(records) == 3
    bad = [record for record in records if record.error is not None]
    assert [record.line for record in bad] == [bad_line]
    assert "bytes in one record; the limit is" in str(bad[0].error)


def test_a_parquet_row_over_the_limit_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    limited(monkeypatch)
    turns = [[{"role": "user", "content": text}] for text in ("a", BIG, "b")]
    parquet.write_table(pyarrow.table({"messages": turns}), tmp_path / "a.parquet")
    records = list(read_records(tmp_path / "a.parquet"))
    assert [(record.line, record.error is None) for record in records] == [(1, True), (2, False), (3, True)]


def test_a_header_that_is_too_long_and_a_quote_that_never_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limited(monkeypatch)
    with pytest.raises(UserError, match=r"a\.csv:1: the first row must name the columns"):
        list(read_records(write(tmp_path / "a.csv", BIG + "\n1,2\n")))
    open_quote = 'id,text\n1,a\n2,"' + "b\n" * 3000
    with pytest.raises(UserError, match=r"a\.csv:3: not CSV: .*is a quote missing"):
        list(read_records(write(tmp_path / "a.csv", open_quote)))


def test_a_small_archive_of_a_huge_line_is_read_in_bounded_memory(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    import tracemalloc

    data = b'{"text": "' + b"a" * (200 << 20) + b'"}\n{"text": "b"}\n'
    path = write(tmp_path / "a.jsonl.zst", zstandard.compress(data))
    del data
    tracemalloc.start()
    records = list(read_records(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [record.error is None for record in records] == [False, True]
    assert path.stat().st_size < 50_000
    assert peak < 150 << 20


def test_lone_surrogates_in_utf16_are_bad_lines(tmp_path: Path) -> None:
    text = '{"text": "a"}\n{"text": "\ud800"}\n{"text": "b"}\n'
    path = write(tmp_path / "a.jsonl", b"\xff\xfe" + text.encode("utf-16-le", "surrogatepass"))
    assert [r.error is None for r in read_records(path)] == [True, False, True]
    path = write(tmp_path / "b.jsonl", b"\xff\xfe" + text.encode("utf-16-le", "surrogatepass") + b"a")
    with pytest.raises(UserError, match="ends in the middle of a UTF-16"):
        list(read_records(path))


def test_directories_globs_and_what_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / ".git").mkdir()
    for name in ("b.jsonl", "a.txt.gz", "sub/c.parquet", "sub/readme.pdf", ".git/d.jsonl"):
        write(tmp_path / name, "x")
    found, ignored = expand([tmp_path], tmp_path / "spool")
    assert [Path(s.name).name for s in found] == ["a.txt.gz", "b.jsonl", "c.parquet"]
    assert ignored == [str(tmp_path / "sub/readme.pdf")]
    assert [s.path for s in expand([str(tmp_path / "*.jsonl")], tmp_path)[0]] == [tmp_path / "b.jsonl"]
    assert [s.path.name for s in expand([str(tmp_path / "**/*.p*")], tmp_path)[0]] == ["c.parquet", "readme.pdf"]
    with pytest.raises(UserError, match="no file matches"):
        expand([str(tmp_path / "*.nothing")], tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="a directory without any file"):
        expand([tmp_path / "empty"], tmp_path)


def test_a_file_whose_name_has_glob_characters(tmp_path: Path) -> None:
    path = write(tmp_path / "a[1].jsonl", lines(ROWS))
    assert [s.path for s in expand([path], tmp_path)[0]] == [path]


def test_stdin_and_pipes_are_spooled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines(ROWS).encode())))
    ((source,), _) = expand(["-"], tmp_path / "spool")
    assert source.name == "<stdin>"
    assert [r.value for chunk in sources.read_chunks(source) for r in chunk.records()] == ROWS
    fifo = tmp_path / "pipe"
    os.mkfifo(fifo)
    writer = threading.Thread(target=fifo.write_text, args=(lines(ROWS),))
    writer.start()
    ((source,), _) = expand([fifo], tmp_path / "spool")
    writer.join()
    assert [r.value for chunk in sources.read_chunks(source) for r in chunk.records()] == ROWS


def test_a_byte_order_mark_in_the_middle_is_left_out(tmp_path: Path) -> None:
    mark = "\ufeff"
    assert values(write(tmp_path / "a.jsonl", f'{mark}{{"n": 1}}\n{mark}{{"n": 2}}\n')) == [{"n": 1}, {"n": 2}]
    assert values(write(tmp_path / "a.json", f'[\n{{"n": 1}}\n]\n{mark}[\n{{"n": 2}}\n]')) == [{"n": 1}, {"n": 2}]
    assert values(write(tmp_path / "a.txt", f"one\n\n{mark}two\n")) == ["one", "two"]


def test_records_of_a_list_on_one_line_are_told_apart(tmp_path: Path) -> None:
    bad = '{"a": 1, "a": 2}'
    records = list(read_records(write(tmp_path / "a.json", f'[{{"n": 1}}, {bad},\n{{"n": 1}},\n{bad}, {bad}]')))
    assert [(r.line, r.element) for r in records if r.error] == [(1, 2), (3, 0), (3, 5)]


def test_a_huge_integer_spoils_its_record_only(tmp_path: Path) -> None:
    rows = f'[\n {{"n": 1}},\n {{"n": {"1" * 5000}, "m": 3}},\n {{"n": [-2]}}\n]'
    records = list(read_records(write(tmp_path / "a.json", rows)))
    assert [r.value for r in records] == [{"n": 1}, None, {"n": [-2]}]
    assert (records[1].line, records[1].error) == (3, "an integer of 5,000 digits; the limit is 4,300")


def test_a_quote_in_a_tsv_merges_no_rows(tmp_path: Path) -> None:
    text = 'id\ttext\n1\t"Stop\n2\tGo"\n3\t"a ""b"" c"\n4\tsay "hi"\n5\t"x"y\n'
    found = [row["text"] for row in values(write(tmp_path / "a.tsv", text))]  # type: ignore[index]
    assert found == ['"Stop', 'Go"', 'a "b" c', 'say "hi"', '"x"y']


def test_an_unnamed_index_column(tmp_path: Path) -> None:
    assert values(write(tmp_path / "a.csv", ",text\n0,a\n")) == [{"unnamed column 1": "0", "text": "a"}]
    with pytest.raises(UserError, match="must name each column once"):
        list(read_records(write(tmp_path / "b.csv", ",text,\n0,a,1\n")))
