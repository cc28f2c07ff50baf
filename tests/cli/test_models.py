"""Commands on a model: each takes a tokenizer, and `evaluate` reads files as its options say."""

from __future__ import annotations

from pathlib import Path

import pytest

from minimind.base.errors import UserError
from minimind.data.records.options import ReadingOptions
from tests.cli.test_entry import run


def test_evaluate_reads_files_as_told(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, object] = {}
    monkeypatch.setattr("minimind.commands.models.evaluate_file", lambda *_, **reading: seen.update(reading) or {})
    more = ("--format", "text", "--skip-bad", "--max-bad-ratio", "0.5", "--allow-special", "--reasoning", "drop")
    assert run("evaluate", "model", "--file", "f.jsonl", "--encoding", "gb18030", *more) == 0
    expected = ReadingOptions("text", None, None, "gb18030", True, "drop", skip_bad=True, max_bad_ratio=0.5)
    assert seen == {"reading": expected, "tokenizer_path": None}


@pytest.mark.parametrize(
    "words",
    [
        ["evaluate", "--file", "f.jsonl"],
        ["generate", "--prompt", "river"],
        ["generate", "--prompts", "p", "--output", "a", "--chat"],
        ["chat"],
        ["chat", "--prompt", "river"],
        ["serve", "--port", "0"],
        ["export", "--output", "out"],
        ["export", "--output", "out", "--format", "pth"],
        ["export", "--output", "out", "--format", "gguf"],
    ],
    ids=lambda words: " ".join(words),
)
def test_every_command_that_loads_a_model_takes_a_tokenizer(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def load(path: Path, *_: object, tokenizer: Path | None = None) -> None:
        raise UserError(f"{path} with {tokenizer}")

    monkeypatch.setattr("minimind.inference.generation.load_model", load)
    assert run(words[0], "model", *words[1:], "--tokenizer", "other.model") == 2
    assert "model with other.model" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--prompts", "p"],
        ["--output", "a"],
        ["--prompt", "x", "--prompts", "p", "--output", "a"],
        ["--prompt", "x", "--chat"],
    ],
)
def test_generate_takes_one_prompt_or_two_files(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("generate", "model", *words) == 2
    assert "give --prompt TEXT, or --prompts FILE and --output FILE" in capsys.readouterr().err


def test_the_answers_of_a_file_are_counted(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("minimind.inference.terminal.files.answer_file", lambda *_, **__: 1234)
    assert run("generate", "model", "--prompts", "p", "--output", "a.txt") == 0
    assert capsys.readouterr().out == "1,234 answers -> a.txt\n"
