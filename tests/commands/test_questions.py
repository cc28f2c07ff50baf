"""Scoring of the demo: how a conversation is led, and that only the exact answer counts as right."""

from __future__ import annotations

import json
from collections.abc import Sequence
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from minimind.base.errors import UserError
from minimind.commands.questions import (
    Answer,
    answers_table,
    ask_questions,
    greedy,
    lead,
    read_conversations,
    score_table,
)
from minimind.corpus.conversations import HELD_OUT_KINDS
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


def two(conversations: Sequence[Sequence[Turn]]) -> list[str]:
    """Answers 2 to everything."""
    return ["2" for _ in conversations]


def test_only_the_exact_last_answer_is_right() -> None:
    first, second = ask_questions(CONVERSATIONS, two)
    assert first == Answer("1+1", "2", "2", kind="arithmetic", place=1) and first.right
    assert second == Answer("I am Mia.\nWho am I?", "Mia", "2", kind="attributes", place=2) and not second.right


def test_a_conversation_has_the_models_own_answers_in_it() -> None:
    turns = [Turn("user", "I am Mia."), Turn("assistant", "2"), Turn("user", "Who am I?"), Turn("assistant", "2")]
    assert lead(CONVERSATIONS, two) == [[Turn("user", "1+1"), Turn("assistant", "2")], turns]


def test_all_conversations_are_answered_at_once(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    batches: list[list[list[int]]] = []

    def answer(model: object, prompts: list[list[int]], sampling: Sampling, stop_ids: Sequence[int]) -> list[list[int]]:
        assert sampling.temperature == 0
        assert tokenizer.im_end_id in stop_ids
        batches.append(prompts)
        return [tokenizer.encode("2") for _ in prompts]

    monkeypatch.setattr("minimind.inference.generation.generate_batch", answer)
    ask_questions(CONVERSATIONS, greedy(None, tokenizer))  # type: ignore[arg-type]
    last = [Turn("user", "I am Mia."), Turn("assistant", "2"), Turn("user", "Who am I?")]
    assert [len(prompts) for prompts in batches] == [2, 1]
    assert batches[1] == [prompt_ids(last, tokenizer)]


def text_of(table: object) -> str:
    console = Console(file=StringIO(), width=120)
    console.print(table)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_table_shows_questions_as_text() -> None:
    shown = text_of(answers_table([Answer("[red]?", "2", "3", "arithmetic", 1), Answer("1+1", "2", "2", "sorting", 1)]))
    assert "[red]?" in shown, "markup in a question must not be interpreted"


def test_the_score_is_by_kind_and_place() -> None:
    asked = [("arithmetic", 1, True), ("arithmetic", 2, False), ("arithmetic", 3, True), ("sorting", 1, True)]
    answers = [Answer("q", "a", "a" if right else "b", kind, place) for kind, place, right in asked]
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text_of(score_table(answers)).splitlines()]
    assert ["arithmetic", "1 of 1", "1 of 2", "2 of 3"] in rows
    assert ["sorting", "1 of 1", "0 of 0", "1 of 1"] in rows
    assert ["all", "2 of 2", "1 of 2", "3 of 4"] in rows


def test_the_corpus_is_answered_by_what_it_says(tmp_path: Path) -> None:
    """A respondent that knows the file is right everywhere, in every kind and place."""
    from minimind.corpus.corpus import write_demo

    file = write_demo(tmp_path, num_pretrain=1, num_sft=1, num_eval=1, num_sft_eval=100).sft_eval
    conversations = read_conversations(file)
    known = {
        tuple(turn["content"] for turn in turns[:end]): turns[end]["content"]
        for turns in conversations
        for end in range(1, len(turns), 2)
    }
    answers = ask_questions(conversations, lambda asked: [known[tuple(t.content for t in turns)] for turns in asked])
    assert all(answer.right for answer in answers)
    assert sum(answer.place > 1 for answer in answers) == 50
    assert {answer.kind for answer in answers[:10]} == {kind for _, kind in HELD_OUT_KINDS}


def test_conversations_are_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "sft_eval.jsonl"
    file.write_text("".join(json.dumps({"conversations": c}) + "\n" for c in CONVERSATIONS), encoding="utf-8")
    assert read_conversations(file) == CONVERSATIONS
    with pytest.raises(UserError, match="demo-data"):
        read_conversations(tmp_path / "absent.jsonl")
