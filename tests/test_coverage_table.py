"""The table of modules with little coverage, and that coverage never ends a run of the tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def file(covered: int, branches: int) -> dict[str, object]:
    """Of ten lines and ten branches."""
    return {
        "summary": {
            "percent_covered": 5.0 * (covered + branches),
            "covered_lines": covered,
            "num_statements": 10,
            "covered_branches": branches,
            "num_branches": 10,
        }
    }


def test_modules_below_the_limit_are_named_worst_first() -> None:
    pytest.importorskip("coverage")
    from tests.coverage_table import lines

    files = {"a.py": file(8, 8), "b.py": file(9, 8), "c.py": file(10, 2)}
    total = {"percent_covered": 75.0, "covered_lines": 27, "num_statements": 30, "covered_branches": 18}
    first, *table = lines({"totals": {**total, "num_branches": 30}, "files": files})
    assert first == "coverage: 75.0% (27 of 30 lines, 18 of 30 branches)"
    assert table[2:] == ["| c.py | 60% | 10 of 10 | 2 of 10 |", "| a.py | 80% | 8 of 10 | 8 of 10 |"]
    assert lines({"totals": {**total, "num_branches": 30}, "files": {"b.py": file(9, 8)}}) == [first]


KILLED = """
import signal, subprocess, sys

WHOLE = "import package"
WRITING = (
    "import coverage, os, signal, sqlite3, sys\\n"
    "coverage.CoverageData(sys.argv[1]).add_arcs({'a.py': {(1, 2)}})\\n"
    "database = sqlite3.connect(sys.argv[1], isolation_level=None)\\n"
    "database.execute('PRAGMA cache_size = 1')\\n"
    "for line in sys.argv[2:]: database.execute(line)\\n"
    "os.kill(os.getpid(), signal.SIGKILL)"
)
MANY = "WITH RECURSIVE n(i) AS (SELECT 5 UNION ALL SELECT i + 1 FROM n WHERE i < 2999) " \\
    "INSERT INTO context SELECT i, i || printf('%.1000c', 'x') FROM n"

def test_processes_that_are_killed_while_they_write():
    assert subprocess.run([sys.executable, "-c", WHOLE]).returncode == 0
    for name, *lines in ((".coverage.half", "BEGIN", MANY), (".coverage.tables", "DROP TABLE arc")):
        assert subprocess.run([sys.executable, "-c", WRITING, name, *lines]).returncode == -signal.SIGKILL
    assert open(".coverage.half-journal", "rb").read()
    open(".coverage.torn", "w").write("SQLite format 3" + "x" * 5000)
"""
FULL = """
import coverage

def test_a_full_disk():
    def fail(*_, **__):
        raise coverage.exceptions.DataError("the disk is full")
    coverage.Coverage.combine = fail
"""


def run_with_coverage(directory: Path, test: str, *options: str) -> str:
    """The output of a green run of this one test, with the coverage of ``package``."""
    (directory / "package.py").write_text("answer = 42\n")
    (directory / "test_it.py").write_text(test)
    (directory / "pyproject.toml").write_text(
        '[tool.coverage.run]\nbranch = true\nparallel = true\npatch = ["subprocess"]\n'
    )
    command = [sys.executable, "-m", "pytest", "--cov=package", "--cov-report=", "-p", "tests.coverage_table"]
    environment = {**os.environ, "PYTHONPATH": f"{directory}{os.pathsep}{ROOT}"}
    run = subprocess.run([*command, *options], cwd=directory, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "1 passed" in run.stdout.splitlines()[-1]
    return run.stdout


@pytest.mark.parametrize("workers", [[], ["-n", "1"]], ids=["one process", "a worker"])
def test_data_of_killed_processes_are_left_out_and_counted(tmp_path: Path, workers: list[str]) -> None:
    pytest.importorskip("pytest_cov")
    printed = run_with_coverage(tmp_path, KILLED, *workers)
    assert "coverage: without 3 data files of processes that were killed" in printed
    assert "coverage: 100.0% (1 of 1 lines" in printed


def test_what_cant_be_put_together_does_not_make_green_tests_red(tmp_path: Path) -> None:
    pytest.importorskip("pytest_cov")
    printed = run_with_coverage(tmp_path, FULL)
    assert "coverage: not put together: the disk is full" in printed
