"""Ratios, tables and the corpus of the benchmarks."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from benchmarks import corpus as corpus_module
from benchmarks.corpus import make_corpus
from benchmarks.figures import markdown, ratios, spread, write_json
from benchmarks.workers import Round
from minimind.base.errors import UserError
from minimind.data.store.store import TokenStore


def test_ratios_pair_the_rounds() -> None:
    ours = [Round(100, 1.0, 2.0), Round(100, 2.0, 2.0)]
    theirs = [Round(100, 2.0, 2.0), Round(100, 2.0, 4.0)]
    assert ratios(ours, theirs) == [2.0, 1.0]
    assert ratios(ours, theirs, cpu=True) == [1.0, 2.0]


def test_a_missing_round_is_an_error() -> None:
    with pytest.raises(ValueError, match="zip"):
        ratios([Round(1, 1.0, 1.0)], [])


def test_spread_shows_the_noise() -> None:
    assert spread([1.0, 3.0, 2.0]) == "2.00 (1.00..3.00)"


def test_markdown_has_equal_columns() -> None:
    lines = markdown(["a", "long name"], [["text that is longer", "1"]]).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert lines[1].strip("|-") == "|".join([""] * 2) or set(lines[1]) == {"|", "-"}


def test_json_only_where_asked(tmp_path: Path) -> None:
    write_json(None, {"a": 1})
    write_json(tmp_path / "out.json", {"a": "字"})
    assert json.loads((tmp_path / "out.json").read_text()) == {"a": "字"}


def test_the_corpus_holds_out_whole_records_once(files: dict[str, Path]) -> None:
    corpus = make_corpus(files["pretrain"], vocab_size=330, row_length=32, held_out_kilobytes=4)
    train, held = (TokenStore.open(path) for path in (corpus.train, corpus.held_out))
    assert len(train) + len(held) == 120
    assert 0 < len(held) < len(train)
    assert make_corpus(files["pretrain"], 330, 32, 4) == corpus
    assert corpus.documents()[0] == train.document(0).tolist()


def test_two_benchmarks_at_once_make_one_corpus(files: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    split, calls = corpus_module._split, []

    def slowly(*arguments: Any) -> None:
        calls.append(arguments)
        time.sleep(0.2)  # long enough for the other to come
        split(*arguments)

    monkeypatch.setattr(corpus_module, "_split", slowly)
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: make_corpus(files["pretrain"], 330, 32, 5), range(2))
    assert len(calls) == 1 and first == second


def test_no_text_is_said_plainly(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no \.jsonl file"):
        make_corpus(tmp_path, 330)
