"""The command line: exit codes, one-line errors, and an answer at once."""

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from minimind import cli
from minimind.base.errors import UserError
from minimind.data.records.options import ReadingOptions

COMMANDS = sorted(command.name or command.callback.__name__ for command in cli.app.registered_commands)  # type: ignore[union-attr]


def run(*arguments: str, debug: bool = False) -> int:
    return cli.run(list(arguments), debug)


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "texts.jsonl"
    lines = [{"text": f"The river {n} runs past the hill. 河水流过小山{n}。"} for n in range(200)]
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")
    return path


def test_help_answers_at_once() -> None:
    """CPU time, not wall time: the machine may be busy."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "minimind.cli", "--help"], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.5


def test_nothing_heavy_is_imported_before_a_command_runs() -> None:
    code = "import sys, minimind.cli; print([m for m in ('torch', 'numpy', 'pydantic') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "[]\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command, "--help") == 0
    assert command in capsys.readouterr().out


def test_the_commands_of_the_design_exist() -> None:
    assert set(COMMANDS) >= {
        "chat",
        "check",
        "demo",
        "demo-data",
        "doctor",
        "evaluate",
        "export",
        "generate",
        "plan",
        "prepare",
        "report",
        "samples",
        "serve",
        "train-tokenizer",
    }


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--version") == 0
    assert capsys.readouterr().out.startswith("minimind 0.")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["frobnicate"], "No such command"),
        (["check"], "Missing argument"),
        (["samples", "x", "--step", "0"], "--step"),
        (["samples", "x", "--step", "one"], "--step"),
        (["export", "x", "--output", "y", "--format", "onnx"], "onnx"),
        (["export", "x", "--output", "y", "--dtype", "f32"], "--dtype is for --format gguf"),
        (["export", "x", "--output", "y", "--format", "pth", "--dtype", "f32"], "MiniMind's .pth is f16"),
        (["serve", "x", "--port", "70000"], "--port"),
        (["report", "/nothing/there"], "/nothing/there/metrics.jsonl"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert text in captured.err


def test_debug_anywhere_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["minimind", "report", "/nothing/there", "--debug"])
    with pytest.raises(UserError):
        cli.main()


def test_an_unforeseen_error_is_one_line_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("line one\nline two")

    monkeypatch.setattr("minimind.commands.report.write_report", broken)
    assert run("report", "x") == 1
    assert capsys.readouterr().err.startswith("error: ZeroDivisionError: line one line two (a bug")
    with pytest.raises(ZeroDivisionError):
        run("report", "x", debug=True)


def test_ctrl_c_is_130_without_a_word(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("minimind.commands.report.write_report", interrupted)
    assert run("report", "x") == 130
    assert capsys.readouterr().err == ""


def test_a_closed_pipe_is_no_traceback(texts: Path) -> None:
    command = f"{sys.executable} -m minimind.cli check {texts} --json | head -c 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.stdout == "{"
    assert "Traceback" not in done.stderr


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


@pytest.fixture
def tokenizer(files: dict[str, Path]) -> Path:
    return files["tokenizer"]


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
    assert calls == [(name, tmp_path, "modelscope", "http://mirror"), (name, tmp_path, None, None)]


def test_an_unknown_data_set_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("fetch", "pretrain", "--output", str(tmp_path)) == 2
    assert "pretrain: no such data set; one of pretrain_hq" in capsys.readouterr().err


def test_demo_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []
    monkeypatch.setattr("minimind.corpus.corpus.write_demo", lambda directory, seed: seeds.append(seed))
    assert run("demo-data", str(tmp_path), "--seed", "3") == 0
    assert seeds == [3]


def test_train_tokenizer_and_evaluate_read_files_as_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [*({"body": f"The river {n} runs past the hill. 河水"} for n in range(150)), {"body": None}]
    file = str(write_lines(tmp_path / "f.jsonl", *rows, encoding="gb18030"))
    options = ("--text-field", "body", "--encoding", "gb18030")
    output = ("--output", str(tmp_path / "t"), "--vocab-size", "300")
    assert run("train-tokenizer", file, *output, *options) == 2
    assert f'{file}:151: "body" is null' in capsys.readouterr().err
    assert run("train-tokenizer", file, *output, *options, "--skip-bad") == 0
    assert "learned from 150 of 151 records" in capsys.readouterr().err

    seen: dict[str, object] = {}
    monkeypatch.setattr("minimind.commands.models.evaluate_file", lambda *_, **reading: seen.update(reading) or {})
    more = ("--format", "text", "--skip-bad", "--max-bad-ratio", "0.5", "--allow-special", "--reasoning", "drop")
    assert run("evaluate", "model", "--file", file, "--encoding", "gb18030", *more) == 0
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
