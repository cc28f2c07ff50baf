"""Scoring of the demo: which prompt is asked, and that only the exact answer counts as right."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from minimind.base.errors import UserError
from minimind.commands.questions import Answer, answers_table, ask_questions, read_conversations
from minimind.inference.sampling import Sampling
from minimind.text.chat import Turn, prompt_ids
from minimind.text.tokenizer import Tokenizer, train_tokenizer

CONVERSATIONS = [
    [{"role": "user", "content": "1+1"}, {"role": "assistant", "content": "2"}],
    [
        {"role": "user", "content": "I am Mia."},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "Who am I?"},
        {"role": "assistant", "content": "Mia"},
    ],
]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    texts = [f"{n} Who am I? I am Mia. Hello user assistant" for n in range(100)]
    return Tokenizer.load(train_tokenizer(texts, tmp_path_factory.mktemp("tokenizer"), 300))


@pytest.fixture
def prompts(monkeypatch: pytest.MonkeyPatch, tokenizer: Tokenizer) -> list[list[int]]:
    """Replaces generation by a model that answers "2" to everything; returns the prompts that it gets."""
    seen: list[list[int]] = []

    def answer(model: object, prompt: Sequence[int], sampling: Sampling, stop_ids: Sequence[int]) -> Iterator[int]:
        assert sampling.temperature == 0
        assert tokenizer.im_end_id in stop_ids
        seen.append(list(prompt))
        yield from tokenizer.encode("2")

    monkeypatch.setattr("minimind.inference.generation.generate", answer)
    return seen


def test_only_the_exact_answer_is_right(prompts: list[list[int]], tokenizer: Tokenizer) -> None:
    answers = ask_questions(None, tokenizer, CONVERSATIONS, 10)  # type: ignore[arg-type]
    assert answers == [Answer("1+1", "2", "2", True), Answer("I am Mia.\nWho am I?", "Mia", "2", False)]


def test_the_prompt_is_everything_before_the_last_answer(prompts: list[list[int]], tokenizer: Tokenizer) -> None:
    ask_questions(None, tokenizer, CONVERSATIONS, 2)  # type: ignore[arg-type]
    turns = [Turn("user", "I am Mia."), Turn("assistant", "Hello."), Turn("user", "Who am I?")]
    assert prompts[1] == prompt_ids(turns, tokenizer)


def test_no_more_than_n_questions_are_asked(prompts: list[list[int]], tokenizer: Tokenizer) -> None:
    assert len(ask_questions(None, tokenizer, CONVERSATIONS, 1)) == 1  # type: ignore[arg-type]
    assert len(prompts) == 1


def test_table_shows_questions_as_text_and_the_score() -> None:
    console = Console(file=StringIO(), width=120)
    console.print(answers_table([Answer("[red]?", "2", "3", False), Answer("1+1", "2", "2", True)]))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "1 of 2 right" in shown
    assert "[red]?" in shown, "markup in a question must not be interpreted"


def test_conversations_are_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "sft_eval.jsonl"
    file.write_text("".join(json.dumps({"conversations": c}) + "\n" for c in CONVERSATIONS), encoding="utf-8")
    assert read_conversations(file) == CONVERSATIONS
    with pytest.raises(UserError, match="demo-data"):
        read_conversations(tmp_path / "absent.jsonl")
