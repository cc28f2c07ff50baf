"""The command line: exit codes, one-line errors, and an answer at once; ``python -m`` by minimind.cli.__main__."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from minimind import cli
from minimind.base.errors import UserError

COMMANDS = sorted(command.name or command.callback.__name__ for command in cli.app.registered_commands)  # type: ignore[union-attr]


def run(*arguments: str, debug: bool = False) -> int:
    return cli.run(list(arguments), debug)


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
        (["export", "x", "--output", "y", "--format", "pth", "--dtype", "f32"], "--dtype is for --format hf and gguf"),
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


def test_a_shell_completes_commands_and_options() -> None:
    """As the functions that --install-completion installs ask, in two shells."""

    def asked(**variables: str) -> str:
        environment = {**os.environ, **variables}
        words = [sys.executable, "-m", "minimind.cli"]
        return subprocess.run(words, env=environment, check=True, capture_output=True, text=True).stdout

    bash = asked(_MINIMIND_COMPLETE="complete_bash", COMP_WORDS="minimind ch", COMP_CWORD="1")
    assert bash.split() == ["check", "chat"]
    zsh = asked(_MINIMIND_COMPLETE="complete_zsh", _TYPER_COMPLETE_ARGS="minimind generate --pr")
    assert "--prompt" in zsh and "--prompts" in zsh and "--top-p" not in zsh
