"""read_texts: what a tokenizer learns from, under the rules of preparing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from minimind.base.errors import UserError
from minimind.data.records.options import ReadingOptions
from minimind.data.records.rejects import Tally
from minimind.data.records.texts import read_texts

CHAT = "<|im_start|>user\nWhere?<|im_end|>\n<|im_start|>assistant\nHere.<|im_end|>\n"


def tally(directory: Path, skip_bad: bool = False) -> Tally:
    return Tally(skip_bad, 1.0, directory / "out.rejected.jsonl")


def write(path: Path, *rows: object, encoding: str = "utf-8") -> Path:
    path.write_bytes("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode(encoding))
    return path


def test_texts_and_every_turn_of_conversations_in_order(tmp_path: Path) -> None:
    turns = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    write(tmp_path / "1.jsonl", {"text": "one"}, {"conversations": turns}, {"question": "x", "answer": "y"})
    (tmp_path / "2.txt").write_text("two\nlines\n\nthree")
    counted = tally(tmp_path)
    assert list(read_texts([tmp_path], counted)) == ["one", "q", "a", "x", "y", "two\nlines", "three"]
    assert (counted.total.records, counted.total.used, counted.total.rejected) == (5, 5, 0)


@pytest.mark.parametrize(
    ("options", "record", "expected"),
    [
        ({"text_field": "body"}, {"body": "河", "text": None}, ["河"]),
        ({"map": "prompt=p,answer=s"}, {"p": "河", "s": "水"}, ["河", "水"]),
        ({"encoding": "gb18030"}, {"text": "河水"}, ["河水"]),
        ({}, {"text": "<s>a</s> <s>b</s>"}, ["<s>a</s> <s>b</s>"]),
        ({"allow_special": True}, {"text": "<s>a</s> <s>b</s>"}, ["a", "b"]),
        ({"allow_special": True}, {"text": CHAT}, ["user\nWhere?", "assistant\nHere."]),
    ],
)
def test_options_mean_what_they_mean_to_prepare(
    tmp_path: Path, options: dict[str, Any], record: object, expected: list[str]
) -> None:
    path = write(tmp_path / "a.jsonl", record, encoding=options.get("encoding", "utf-8"))
    assert list(read_texts([path], tally(tmp_path), ReadingOptions(**options))) == expected


def test_lines_of_a_text_file(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n\nthree")
    assert list(read_texts([tmp_path / "a.txt"], tally(tmp_path), ReadingOptions("lines"))) == ["one", "two", "three"]


def test_bad_records_end_it_or_are_left_out_and_listed(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", {"text": "one"}, {"text": None}, {"text": "<s></s>"}, {"text": "two"})
    with pytest.raises(UserError) as caught:
        list(read_texts([path], tally(tmp_path), ReadingOptions(allow_special=True)))
    assert str(caught.value) == (
        "2 of 4 records read are bad (--skip-bad leaves them out):\n"
        f'  {path}:2: "text" is null, not a string\n  {path}:3: only special tokens, no text'
    )
    counted = tally(tmp_path, skip_bad=True)
    assert list(read_texts([path], counted, ReadingOptions(allow_special=True))) == ["one", "two"]
    assert (counted.total.used, counted.total.rejected) == (2, 2)
    listed = [json.loads(line)["line"] for line in counted.quarantine.read_text().splitlines()]
    assert listed == [2, 3]


def test_a_file_of_rejects_only_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", {"text": None})
    with pytest.raises(UserError, match=r"nothing to train on: all 1 records are rejected, see .*out\.rejected"):
        list(read_texts([path], tally(tmp_path, skip_bad=True)))
