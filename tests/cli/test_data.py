"""Commands on data: files are read as their options say, and bad ones are named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.test_entry import run


def test_from_texts_to_a_store(texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer, store = tmp_path / "tokenizer", tmp_path / "store"
    assert run("train-tokenizer", str(texts), "--vocab-size", "320", "--output", str(tokenizer)) == 0
    assert run("prepare", str(texts), "--tokenizer", str(tokenizer), "--output", str(store), "--workers", "1") == 0
    assert (store / "manifest.json").exists()
    assert run("check", str(texts), "--tokenizer", str(tokenizer)) == 0
    assert "200" in capsys.readouterr().out


def test_check_ends_with_1_on_a_bad_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"text": "good"}\n{"text": \n')
    assert run("check", str(bad)) == 1
    assert f"{bad}:2" in capsys.readouterr().out
    assert run("check", str(bad), "--json") == 1
    assert json.loads(capsys.readouterr().out)["ok"] is False


def write_lines(path: Path, *values: object, encoding: str = "utf-8") -> Path:
    path.write_text("".join(json.dumps(v, ensure_ascii=False) + "\n" for v in values), encoding=encoding)
    return path


TURNS = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
READING = [
    ("pretrain", {"body": "The river 河水"}, ["--text-field", "body"]),
    ("sft", {"q": "Where?", "a": "Past the hill."}, ["--map", "prompt=q,answer=a"]),
    ("sft", {"text": "x", "question": "Where?", "answer": "There."}, ["--format", "qa"]),
    ("sft", {"dialog": TURNS}, ["--map", "turns=dialog"]),
]


@pytest.mark.parametrize(("kind", "record", "options"), READING)
def test_prepare_and_check_read_files_as_told(
    kind: str, record: object, options: list[str], tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, store = str(write_lines(tmp_path / "f.jsonl", record, record)), tmp_path / "store"
    common = ("--tokenizer", str(tokenizer), "--kind", kind)
    assert run("prepare", file, *common, "--output", str(store), *options) == 0
    assert json.loads((store / "manifest.json").read_text())["counts"]["used"] == 2
    capsys.readouterr()
    assert run("check", file, *common, "--json", *options) == 0
    assert json.loads(capsys.readouterr().out)["files"][0]["used"] == 2


def test_files_with_marks_and_in_a_named_encoding(
    tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = {"text": "<|im_start|>河水<|im_end|> <|im_start|>小山<|im_end|>"}
    file = str(write_lines(tmp_path / "f.jsonl", text, encoding="gb18030"))
    options = ("--encoding", "gb18030", "--tokenizer", str(tokenizer))
    for more, documents in (((), 1), (("--allow-special",), 2)):
        store = tmp_path / f"store{documents}"
        assert run("prepare", file, *options, "--output", str(store), *more) == 0
        assert json.loads((store / "manifest.json").read_text())["counts"]["documents"] == documents
        capsys.readouterr()
        assert run("check", file, *options, "--json", *more) == 0
        report = json.loads(capsys.readouterr().out)["files"][0]
        assert report["encoding"] == "gb18030"
        assert len([1 for piece, _ in report["sample"] if "<|im" in piece]) == (documents == 1)


@pytest.mark.parametrize("command", ["prepare", "check"])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--format", "xml"], "--format xml: unknown; one of text"),
        (["--map", "prompt"], "--map prompt: write it as"),
        (["--map", "question=q"], "--map question=...: unknown field"),
    ],
)
def test_wrong_ways_of_reading_are_named(
    command: str, options: list[str], message: str, texts: Path, tokenizer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = ["--output", "nowhere"] if command == "prepare" else []
    capsys.readouterr()
    assert run(command, str(texts), "--tokenizer", str(tokenizer), *output, *options) == 2
    assert message in capsys.readouterr().err


def test_prepare_leaves_bad_lines_out_up_to_a_limit(
    tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, store = write_lines(tmp_path / "f.jsonl", *[{"text": "hill"}] * 3, {"text": None}), tmp_path / "s"
    command = ("prepare", str(file), "--tokenizer", str(tokenizer), "--output", str(store))
    assert run(*command) == 2
    assert f"{file}:4" in capsys.readouterr().err
    assert run(*command, "--skip-bad", "--max-bad-ratio", "0.2") == 2
    assert not store.exists()
    assert run(*command, "--skip-bad", "--max-bad-ratio", "0.25") == 0
    assert json.loads((tmp_path / "s.rejected.jsonl").read_text())["line"] == 4


def test_fetch_passes_hub_and_endpoint_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls: list[object] = []
    monkeypatch.setattr("minimind.data.fetch.fetch", lambda *arguments: calls.append(arguments))
    options = ("--hub", "modelscope", "--endpoint", "http://mirror")
    assert run("fetch", "pretrain_hq", "--output", str(tmp_path), *options) == 0
    assert run("fetch", "pretrain_hq", "--output", str(tmp_path)) == 0
    name = "pretrain_hq"
    assert calls == [(name, tmp_path, "modelscope", "http://mirror", None), (name, tmp_path, None, None, None)]


def test_an_unknown_data_set_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("fetch", "pretrain", "--output", str(tmp_path)) == 2
    assert "pretrain: no such data set; one of pretrain_t2t_mini" in capsys.readouterr().err


def test_demo_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []
    monkeypatch.setattr("minimind.corpus.corpus.write_demo", lambda directory, seed: seeds.append(seed))
    assert run("demo-data", str(tmp_path), "--seed", "3") == 0
    assert seeds == [3]


def test_train_tokenizer_reads_files_as_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [*({"body": f"The river {n} runs past the hill. 河水"} for n in range(150)), {"body": None}]
    file = str(write_lines(tmp_path / "f.jsonl", *rows, encoding="gb18030"))
    options = ("--text-field", "body", "--encoding", "gb18030")
    output = ("--output", str(tmp_path / "t"), "--vocab-size", "300")
    assert run("train-tokenizer", file, *output, *options) == 2
    assert f'{file}:151: "body" is null' in capsys.readouterr().err
    assert run("train-tokenizer", file, *output, *options, "--skip-bad") == 0
    assert "learned from 150 of 151 records" in capsys.readouterr().err
