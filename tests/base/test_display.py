"""What a terminal gets to see of text that a stranger wrote."""

from __future__ import annotations

import ast
import io
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from rich.table import Table
from rich.text import Text

import minimind
from minimind import cli
from minimind.base.display import Shown, console, shown
from minimind.base.findings import Finding
from minimind.training.record.console import ConsoleLog

ATTACK = "a\x1b]0;title\x07b\x9b31mc\x7fd\re\x08f\u202eg\u2066h\udc80i"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_control_characters_are_shown() -> None:
    assert shown(ATTACK) == ("a\\x1b]0;title\\x07b\\u009b31mc\\u007fd\\x0de\\x08f\\u202eg\\u2066h\\udc80i")
    plain = "line\n\ttab 你好 é \U0001f600 \u200d"
    assert shown(plain) == plain
    harmful = [chr(code) for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"]
    assert not set(harmful) & set(shown("".join(harmful)))


def test_a_stream_is_shown_on_a_terminal_only() -> None:
    for stream, expected in ((Terminal(), "\\x1b[2J"), (io.StringIO(), "\x1b[2J")):
        Shown(stream).write("\x1b[2J")
        assert stream.getvalue() == expected


@pytest.mark.parametrize("terminal", [True, False])
def test_a_console_sends_no_character_of_a_stranger(terminal: bool) -> None:
    out = io.StringIO()
    screen = console(file=out, force_terminal=terminal, color_system=None, width=100)
    table = Table(title=f"t{ATTACK}")
    table.add_row(f"[link=http://x]y[/link]{ATTACK}", Text(ATTACK))
    for item in (table, ATTACK, Text(ATTACK), "[bold]x[/bold] :smile:"):
        screen.print(item)
    text = out.getvalue()
    assert not set(text) & set("\x1b\x07\x9b\x7f\r\x08\u202e\u2066\udc80")
    assert "[link=http://x]y[/link]a\\x1b]0;title\\x07b" in text and "[bold]x[/bold] :smile:" in text


def test_findings_are_shown() -> None:
    out = io.StringIO()
    log = ConsoleLog(1, 1, console(file=out, soft_wrap=True))
    log.finding(Finding("code", "file \x1b[2J[red]x", "open \x1b]8;;http://x\x07"))
    assert "file \\x1b[2J[red]x" in out.getvalue() and "\x1b" not in out.getvalue()


def test_a_commands_error_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["check", "no\x1b[2Jfile"]) == 2
    error = capsys.readouterr().err
    assert "no\\x1b[2Jfile" in error and "\x1b" not in error


def test_check_on_a_terminal_sends_nothing_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "a\x1b]0;x\x07[red].jsonl"
    file.write_text('{"text": "one \\u001b[31mtwo"}\n{"te\\u001b[2J": 1}\n')
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "minimind.cli", "check", str(file)]
    with subprocess.Popen(command, stdout=follower, stderr=follower, env={**os.environ, "TERM": "dumb"}) as process:
        os.close(follower)
        text = _all(leader)
    os.close(leader)
    assert process.returncode in (1, 2)
    assert b"\x1b" not in text and b"\x07" not in text
    assert b"one \\x1b[31m" in text or b"te\\x1b[2J" in text
    assert b"\\x1b]0;x\\x07[red]" in text


def _all(descriptor: int) -> bytes:
    parts = []
    try:
        while part := os.read(descriptor, 65536):
            parts.append(part)
    except OSError:  # Linux: the other end is closed
        pass
    return b"".join(parts)


def test_text_reaches_a_terminal_through_display_only() -> None:
    """A print() or a console of one's own would be a way round it."""
    root = Path(minimind.__file__).parent
    found = [
        f"{path.relative_to(root)}:{node.lineno}"
        for path in root.rglob("*.py")
        if path.name != "display.py"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and _prints(node.func)
    ]
    assert found == []


def _prints(function: ast.expr) -> bool:
    if isinstance(function, ast.Name):
        return function.id in ("print", "Console")
    owner = function.value if isinstance(function, ast.Attribute) else None
    return isinstance(owner, ast.Attribute) and owner.attr in ("stdout", "stderr") and function.attr == "write"  # type: ignore[attr-defined]


ASCII = {"LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": ""}


def in_a_shell(words: list[str], folder: Path, *options: str, **variables: str) -> subprocess.CompletedProcess[bytes]:
    code = "from minimind.cli import main; main()"
    environment = os.environ | {"PYTHONPATH": str(Path(minimind.__file__).parents[1])} | variables
    command = [sys.executable, *options, "-c", code, *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True)


def test_the_locale_c_takes_and_prints_every_language(tmp_path: Path) -> None:
    (tmp_path / "文.jsonl").write_text('{"text": "海很平静。"}\n{"坏": 1}\n', encoding="utf-8")
    found = in_a_shell(["check", "文.jsonl"], tmp_path, **ASCII)
    assert (found.returncode, b"Traceback" in found.stderr) == (1, False), found.stderr.decode()
    assert "文.jsonl" in found.stdout.decode() and "坏" in found.stdout.decode()
    assert found.stdout == in_a_shell(["check", "文.jsonl"], tmp_path, PYTHONUTF8="1").stdout


def test_an_encoding_that_lacks_a_character_shows_its_escape(tmp_path: Path) -> None:
    variables = {"PYTHONIOENCODING": "latin-1:strict", "PYTHONUTF8": "1"}
    (tmp_path / "text.jsonl").write_text('{"坏": 1}\n', encoding="utf-8")
    found = in_a_shell(["check", "text.jsonl"], tmp_path, **variables)
    assert found.returncode == 1 and rb"\u574f" in found.stdout and b"Traceback" not in found.stderr


def test_a_utf8_mode_that_is_forbidden_is_no_endless_start(tmp_path: Path) -> None:
    (tmp_path / "text.jsonl").write_text('{"坏": 1}\n', encoding="utf-8")
    found = in_a_shell(["check", "text.jsonl"], tmp_path, "-X", "utf8=0", **ASCII | {"PYTHONUTF8": "1"})
    assert found.returncode == 1 and rb"\u574f" in found.stdout and b"Traceback" not in found.stderr
