"""Fields that nothing reads: counted by name, bounded, each with its first record."""

from __future__ import annotations

import json
from pathlib import Path

from minimind.data.check.check import check_files
from minimind.data.records.options import ReadingOptions
from minimind.data.records.unread import Unread, sentence, unread_of
from minimind.data.store.prepare import not_read, prepare
from minimind.data.store.store import TokenStore
from minimind.text.tokenizer import Tokenizer


def test_only_what_says_something_is_counted() -> None:
    assert unread_of({"a": 1, "b": None, "c": "", "d": [], "e": 0, "f": "x"}, {"a"}) == ["e", "f"]


def test_the_names_of_a_stranger_are_bounded() -> None:
    found = Unread()
    for number in range(1000):
        found.add([f"field{number}"], f"a.jsonl:{number}")
    assert len(found.fields) == 51
    assert found.fields["others"] == (950, "a.jsonl:50")
    assert sentence(found.to_json()).startswith("others in 950 (first a.jsonl:50), field0 in 1 (first a.jsonl:0)")


def test_check_and_prepare_count_the_same_fields(tmp_path: Path, tokenizer: Tokenizer) -> None:
    rows = [{"text": "sea"}, {"text": "day", "id": 1}, {"text": None, "bad": 1}, {"text": "sky", "id": 2, "url": "u"}]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    expected = {"id": {"records": 2, "first": f"{path}:2"}, "url": {"records": 1, "first": f"{path}:4"}}
    assert check_files([path]).files[0].fields_not_read == expected
    said: list[str] = []
    reading = ReadingOptions(skip_bad=True, max_bad_ratio=0.5)
    made = prepare([path], tokenizer, tmp_path / "store", reading=reading, cache_dir=tmp_path, say=said.append)
    store = TokenStore.open(made)
    assert [source["fields_not_read"] for source in store.manifest["sources"]] == [expected]
    line = f"id in 2 (first {path}:2), url in 1 (first {path}:4)"
    assert not_read(store.manifest["sources"]) == line and f"  fields not read: {line}" in said


def test_dropped_reasoning_is_another_store_and_is_counted(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = tmp_path / "a.jsonl"
    turns = [{"role": "user", "content": "sea"}, {"role": "assistant", "content": "sky", "reasoning_content": "day"}]
    path.write_text(json.dumps({"conversations": turns}))
    kept = TokenStore.open(prepare([path], tokenizer, kind="sft", cache_dir=tmp_path))
    drop = ReadingOptions(reasoning="drop")
    dropped = TokenStore.open(prepare([path], tokenizer, kind="sft", cache_dir=tmp_path, reading=drop))
    assert kept.num_trainable > dropped.num_trainable
    assert [store.manifest["counts"]["reasoning_dropped"] for store in (kept, dropped)] == [0, 1]
