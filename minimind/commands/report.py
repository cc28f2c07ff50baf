"""A run directory, or several, as one HTML page that needs nothing else: no network, no other files.

Contract. Works on a run that is going on, was killed, or has torn lines: what can be read is shown and what is
missing is said. Steps that a rollback or a resume repeated are shown as they went the last time, what was taken back
faintly beside them.

Known weakness: the whole metrics.jsonl is read into memory (records.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from minimind.base.errors import UserError
from minimind.base.files import open_inside, write_durably
from minimind.commands.page.html import MARK, page
from minimind.commands.page.records import load_records


def write_report(runs: Sequence[Path], output: Path | None = None) -> Path:
    """Write the page and return its path: RUN/report.html, for several runs report.html beside the first.

    Raises UserError for a path without metrics.jsonl, and when the page can't be written.
    """
    records = [load_records(path) for path in runs]
    first = records[0].directory
    target = output or (first if len(records) == 1 else first.resolve().parent) / "report.html"
    try:
        if output is None:
            _require_report(target)
        write_durably(target, page(records))
    except OSError as error:
        raise UserError(f"{target}: can't write the report: {error.strerror}") from None
    return target


def _require_report(target: Path) -> None:
    """UserError where a page that is no report of ours has the name that nobody chose. A link is replaced."""
    if target.is_symlink() or not target.exists():
        return
    with open_inside(target.parent, target.name) as file:
        start = file.read(1 << 16)
    if MARK.encode() not in start:
        raise UserError(f"{target}: is there and is no report of this program; name another with --output")
