"""A tokenizer for files without one: made once, found again, the same each time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from minimind.base.errors import UserError
from minimind.data.records.options import BY_CONTENT, ReadingOptions
from minimind.data.store.own_tokenizer import tokenizer_for
from minimind.data.store.rooms import room
from minimind.text.tokenizer import FILE_NAME, Tokenizer


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "own.jsonl"
    lines = [json.dumps({"text": f"the {a} fox ran {b} times, 你好 {a}{b}"}) for a in "abcdef" for b in range(40)]
    path.write_text("\n".join(lines))
    return path


def test_it_is_trained_once_and_found_again(file: Path, tmp_path: Path) -> None:
    said: list[str] = []

    def get(size: int = 320, reading: ReadingOptions = BY_CONTENT) -> Path:
        return tokenizer_for([file], size, reading, said.append, cache_dir=tmp_path / "cache")

    first = get()
    assert Tokenizer.load(first).vocab_size == 320
    assert len(said) == 1 and "320 pieces" in said[0]
    assert get() == first and len(said) == 1
    assert len({first, get(300), get(reading=ReadingOptions(text_field="text"))}) == 3 and len(said) == 3
    before = (first / FILE_NAME).read_bytes()
    (first / FILE_NAME).unlink()
    assert (get() / FILE_NAME).read_bytes() == before
    file.write_text(file.read_text() + '\n{"text": "more"}')
    assert get() != first


def test_few_texts_give_fewer_pieces(file: Path, tmp_path: Path) -> None:
    made = tokenizer_for([file], 30_000, BY_CONTENT, lambda line: None, cache_dir=tmp_path / "cache")
    assert 262 < Tokenizer.load(made).vocab_size < 30_000


def test_bad_records_are_refused_as_by_prepare(file: Path, tmp_path: Path) -> None:
    file.write_text(file.read_text() + "\n{broken")
    with pytest.raises(UserError, match=r"own\.jsonl:241"):
        tokenizer_for([file], 320, BY_CONTENT, lambda line: None, cache_dir=tmp_path / "cache")
    assert not list(room(tmp_path / "cache", "tokenizers").glob(f"*/{FILE_NAME}"))
