"""Documents that are held out and trained on, or stand in two files: counted exactly, remembered, and named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from minimind.data.check import overlap as overlapping
from minimind.data.check.check import check_files
from minimind.data.check.overlap import Shared, find_overlap
from minimind.data.store.prepare import prepare
from minimind.data.store.store import TokenStore
from minimind.text.tokenizer import Tokenizer


def write(path: Path, texts: list[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return path


def store(files: dict[str, Path], *paths: Path, **options: Any) -> TokenStore:
    made = prepare(paths, Tokenizer.load(files["tokenizer"]), say=lambda line: None, **options)
    return TokenStore.open(made)


def test_equal_documents_are_counted_by_held_out_document(files: dict[str, Path], tmp_path: Path) -> None:
    train = store(files, write(tmp_path / "train.jsonl", ["a river", "stone", "stone", "little house"]))
    held = store(files, write(tmp_path / "held.jsonl", ["walks", "stone", "a river", "stone", "a river sings"]))
    found = find_overlap(train, held, tmp_path)
    assert (found.documents, found.shared, found.first) == (5, 3, (1, 1))
    assert find_overlap(train, train, tmp_path).share == 1.0
    other = store(files, write(tmp_path / "other.jsonl", ["bright"]))
    assert find_overlap(train, other, tmp_path) == overlapping.Overlap(1, 0)


def test_conversations_are_compared_too(files: dict[str, Path], tmp_path: Path) -> None:
    train = store(files, files["sft"], kind="sft")
    half = tmp_path / "half.jsonl"
    half.write_text("".join(files["sft"].read_text(encoding="utf-8").splitlines(keepends=True)[:7]), encoding="utf-8")
    assert find_overlap(train, store(files, half, kind="sft"), tmp_path).share == 1.0


def test_what_was_found_is_read_from_the_memo(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = store(files, files["pretrain"])
    first = find_overlap(train, train, tmp_path)

    def fail(*_: object) -> None:
        raise AssertionError("read again")

    monkeypatch.setattr(overlapping, "_compare", fail)
    assert find_overlap(train, train, tmp_path) == first


def test_blocks_do_not_change_the_answer(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overlapping, "_BLOCK", 2)
    train = store(files, write(tmp_path / "train.jsonl", ["a", "b", "c", "d", "e"]))
    held = store(files, write(tmp_path / "held.jsonl", ["x", "y", "z", "e", "a"]))
    found = find_overlap(train, held, tmp_path)
    assert (found.shared, found.first) == (2, (3, 4))


def test_the_built_in_corpus_has_none(tmp_path: Path) -> None:
    from minimind.corpus.corpus import write_demo

    write_demo(tmp_path)
    for train, held in (("pretrain.jsonl", "eval.jsonl"), ("sft.jsonl", "sft_eval.jsonl")):
        assert check_files([tmp_path / train, tmp_path / held]).shared == []


def test_check_says_which_files_share_documents(tmp_path: Path) -> None:
    a = write(tmp_path / "a.jsonl", ["one", "two", "two"])
    b = write(tmp_path / "b.jsonl", ["two", "three", "two", "four"])
    c = write(tmp_path / "c.jsonl", ["three", "one", "five"])
    report = check_files([a, b, c])
    names = [str(path) for path in (a, b, c)]
    assert report.shared == [
        Shared(names[1], names[0], 2, 4),
        Shared(names[2], names[0], 1, 3),
        Shared(names[2], names[1], 1, 3),
    ]
    assert report.to_json()["shared"][0]["documents"] == 2 and report.ok
    assert str(report.shared[0]) == f"{b}: 2 of 4 documents (50.0%) are also in {a}"
    assert check_files([a]).shared == [] and check_files([a, write(tmp_path / "d.jsonl", ["six"])]).shared == []
