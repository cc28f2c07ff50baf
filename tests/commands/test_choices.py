"""``minimind evaluate --task`` on a tiny random model."""

import json
from pathlib import Path
from typing import Any

import pytest

from minimind import cli
from minimind.config.model import ModelConfig
from minimind.interop.huggingface import save_pretrained
from minimind.model.transformer import Transformer
from minimind.text.tokenizer import Tokenizer

ROWS = [{"question": f"river {n}", "choices": ["stone", "little house", "小猫"], "answer": n % 3} for n in range(9)]


@pytest.fixture(scope="module")
def model(files: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer = Tokenizer.load(files["tokenizer"])
    config = ModelConfig(vocab_size=tokenizer.vocab_size, hidden_size=32, num_hidden_layers=1, num_attention_heads=4)
    directory = tmp_path_factory.mktemp("task") / "model"
    save_pretrained(Transformer(config).state_dict(), config, tokenizer, directory)
    return directory


def written(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def evaluate(capsys: pytest.CaptureFixture[str], model: Path, *words: str | Path) -> tuple[int, str, str]:
    code = cli.run(["evaluate", str(model), *map(str, words)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_files_of_several_formats_are_subjects(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = written(tmp_path / "own.jsonl", ROWS)
    exam = tmp_path / "anatomy.csv"
    exam.write_text(",Question,A,B,C,D,Answer\n0,几？,一,二,三,四,B\n1,谁？,你,我,他,她,A\n", encoding="utf-8")
    items = tmp_path / "items.jsonl"
    code, out, _ = evaluate(capsys, model, "--task", own, "--task", exam, "--json", "--items", items)
    result = json.loads(out)
    assert code == 0
    assert {name: own["questions"] for name, own in result["subjects"].items()} == {"own": 9, "anatomy": 2}
    assert (result["questions"], result["cut"]) == (11, 0)
    assert result["chance"] == pytest.approx((9 / 3 + 2 / 4) / 11, abs=1e-6)
    rows = [json.loads(line) for line in items.read_text(encoding="utf-8").splitlines()]
    assert [Path(row["file"]).name for row in rows] == ["own.jsonl"] * 9 + ["anatomy.csv"] * 2
    assert sum(row["acc"] == row["answer"] for row in rows) / 11 == pytest.approx(result["acc"], abs=1e-6)
    assert rows[-1]["line"] == 3
    assert all(value < 0 for row in rows for value in row["log_likelihoods"])


def test_the_table_is_for_people(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = evaluate(capsys, model, "--task", written(tmp_path / "own.jsonl", ROWS))
    assert code == 0
    assert out.splitlines()[0].split() == [
        "subject",
        "questions",
        "chance",
        "acc",
        "acc_norm",
        "acc_bytes",
        "acc_tokens",
    ]
    assert out.splitlines()[1].split()[:3] == ["own", "9", "33.3%"]


def test_bad_rows_are_named_or_left_out(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(tmp_path / "own.jsonl", [*ROWS, {"question": "Q", "choices": ["a", "b"], "answer": "C"}, "text"])
    code, _, err = evaluate(capsys, model, "--task", file)
    assert code == 2
    assert f"{file}:10: answer is 'C': expected an index from 0 to 1" in err
    assert f"{file}:11: a record is an object" in err
    code, out, err = evaluate(capsys, model, "--task", file, "--skip-bad", "--max-bad-ratio", "0.2", "--json")
    assert (code, json.loads(out)["questions"]) == (0, 9)
    assert "2 bad rows left out" in err


def test_what_does_not_go_together_is_refused(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(tmp_path / "own.jsonl", ROWS)
    for words in ([], ["--task", file, "--file", file], ["--file", file, "--items", file]):
        code, _, err = evaluate(capsys, model, *words)
        assert code == 2
        assert "--task FILE for multiple choice" in err
    code, _, err = evaluate(capsys, model, "--task", file, "--text-field", "question")
    assert code == 2
    assert "--text-field is for --file" in err


def test_a_choice_beyond_the_models_positions_is_named(
    files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = Tokenizer.load(files["tokenizer"])
    config = ModelConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        max_position_embeddings=16,
    )
    save_pretrained(Transformer(config).state_dict(), config, tokenizer, tmp_path / "model")
    short = written(tmp_path / "cut.jsonl", [{"question": "river " * 40, "choices": ["a", "b"], "answer": 0}])
    code, out, _ = evaluate(capsys, tmp_path / "model", "--task", short)
    assert code == 0
    assert "1 contexts are longer" in out
    long = written(tmp_path / "long.jsonl", [{"question": "Q", "choices": ["river " * 40, "b"], "answer": 0}])
    code, _, err = evaluate(capsys, tmp_path / "model", "--task", long)
    assert code == 2
    assert "long.jsonl:1: a choice has" in err


def test_examples_stand_before_the_questions(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task, more = written(tmp_path / "own.jsonl", ROWS[:4]), written(tmp_path / "own_dev.jsonl", ROWS[4:])
    plain = json.loads(evaluate(capsys, model, "--task", task, "--json")[1])
    code, out, _ = evaluate(capsys, model, "--task", task, "--json", "--shots", "2", "--examples", more)
    assert code == 0 and json.loads(out)["questions"] == plain["questions"] == 4
    for words in (["--shots", "2"], ["--examples", more]):
        code, _, errors = evaluate(capsys, model, "--task", task, *words)
        assert code == 2 and "--shots N and --examples FILE go together" in errors
