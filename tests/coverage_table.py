"""Line and branch coverage of the package in pytest's summary, with a table of the modules that have little.

A pytest plugin for ``make coverage``; pytest-cov has measured and put the processes' data together by then. The table
is in Markdown, as docs/testing.md has it.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import coverage
import pytest

LEAST = 85.0  # percent of a module's lines and branches; below it docs/testing.md says why


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in lines(measured()):
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
