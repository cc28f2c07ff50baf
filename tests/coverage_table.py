"""Line and branch coverage of the package in pytest's summary, with a table of the modules that have little.

A pytest plugin for ``make coverage``. pytest-cov measures and puts the processes' data together; this prints a table in
Markdown, as docs/testing.md has it. Tests kill processes, also one that is writing its data: a file that can't be put
together with the others is left out and counted. And nothing about coverage ends a run of the tests or makes it red.
"""

from __future__ import annotations

import json
import sqlite3
import tempfile
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import coverage
import pytest

LEAST = 85.0  # percent of a module's lines and branches; below it docs/testing.md says why
TROUBLE = (coverage.CoverageException, sqlite3.Error, OSError)


REMARKS = pytest.StashKey[list[str]]()  # what is to be said of the measurement, beside its figures


def pytest_configure(config: pytest.Config) -> None:
    config.stash[REMARKS] = []
    if not hasattr(config, "workerinput"):  # in the one process that puts the data together
        config.pluginmanager.register(_BeforePuttingTogether())
        config.pluginmanager.register(_AfterPuttingTogether())


class _BeforePuttingTogether:
    """Inside pytest-cov's part of the hook."""

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        result = yield
        unusable = leave_out_unusable(Path(coverage.Coverage().config.data_file))
        if unusable:
            session.config.stash[REMARKS].append(f"without {unusable} data files of processes that were killed")
        return result


class _AfterPuttingTogether:
    """Around pytest-cov's part of the hook, which raises what it can't put together."""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        try:
            return (yield)
        except TROUBLE as error:
            session.config.stash[REMARKS].append(f"not put together: {error}")
            return True


def leave_out_unusable(data_file: Path) -> int:
    """Delete the processes' data files (``data_file`` and a suffix) that can't be combined. Returns how many."""
    paths = [path for path in data_file.parent.glob(f"{data_file.name}.*") if not path.name.endswith("-journal")]
    unusable = [path for path in paths if not _can_be_combined(path)]
    for path in unusable:
        path.unlink(missing_ok=True)
        path.with_name(f"{path.name}-journal").unlink(missing_ok=True)
    return len(unusable)


def _can_be_combined(path: Path) -> bool:
    """Tried, not guessed: some fail only then (no table ``arc`` yet). To be written, for that asks for no rollback."""
    whole, part = coverage.CoverageData(no_disk=True), coverage.CoverageData(str(path))
    try:
        part.read()
        whole.update(part)
    except TROUBLE:
        return False
    finally:
        part.close()
        whole.close()
    return True


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    try:
        found = lines(measured())
    except TROUBLE as error:
        found = [f"coverage: none to be read: {error}"]
    for line in [*found, *(f"coverage: {remark}" for remark in config.stash[REMARKS])]:
        terminalreporter.write_line(line)


def measured() -> dict[str, Any]:
    """coverage.py's JSON report of the data in the working directory."""
    data = coverage.Coverage()
    data.load()
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "coverage.json"
        data.json_report(outfile=str(report))
        loaded: dict[str, Any] = json.loads(report.read_text())
    return loaded


def lines(report: Mapping[str, Any]) -> list[str]:
    """The totals in one line, and the table, worst module first."""
    total = report["totals"]
    found = [
        f"coverage: {total['percent_covered']:.1f}% "
        f"({total['covered_lines']:,} of {total['num_statements']:,} lines, "
        f"{total['covered_branches']:,} of {total['num_branches']:,} branches)"
    ]
    low = {
        name: file["summary"] for name, file in report["files"].items() if file["summary"]["percent_covered"] < LEAST
    }
    if low:
        found += [f"| below {LEAST:.0f}% | covered | lines | branches |", "|---|---|---|---|"]
    for name, of in sorted(low.items(), key=lambda item: item[1]["percent_covered"]):
        found.append(
            f"| {name} | {of['percent_covered']:.0f}% | {of['covered_lines']} of {of['num_statements']} "
            f"| {of['covered_branches']} of {of['num_branches']} |"
        )
    return found
