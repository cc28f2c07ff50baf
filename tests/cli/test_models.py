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
        ["chat"],
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
