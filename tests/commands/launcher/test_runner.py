"""What the `deepspeed` script raises is one line; what it exits with stays."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("body", "code", "line"),
    [
        ("import sys; assert sys.argv[1:] == ['a', '--b'], sys.argv", 0, ""),
        ("raise ValueError('No slot\\n  here')", 2, "error: the deepspeed launcher: ValueError: No slot here\n"),
        ("assert False", 2, "error: the deepspeed launcher: AssertionError: no reason given\n"),
        ("open('/no/such/program')", 2, "error: the deepspeed launcher: FileNotFoundError: "),
        ("import sys; sys.exit(7)", 7, ""),
        ("import sys; sys.exit()", 0, ""),
        ("import sys; sys.exit('said')", 1, "error: said\n"),
        ("import os, sys; assert sys.path[0] == os.path.dirname(__file__)", 0, ""),
    ],
)
def test_runner(body: str, code: int, line: str, tmp_path: Path) -> None:
    script = tmp_path / "deepspeed"
    script.write_text(body)
    command = [sys.executable, "-m", "minimind.commands.launcher.runner", str(script), "a", "--b"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == code, result.stderr
    assert result.stderr.startswith(line) and "Traceback" not in result.stderr
