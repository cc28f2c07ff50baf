"""What to do about rejects: count, show, quarantine, or end the run.

Contract: strict by default, so the first 20 bad records end it; with ``skip_bad`` a share above
``max_bad_ratio`` of a source does. Records that are only too long are quarantined and counted, and never end
it by themselves.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from minimind.base.errors import UserError
from minimind.base.files import create, open_inside
from minimind.data.records.encoding import Counts, Encoded, Reject

_SHOWN = 20
_FIELDS = ("file", "line", "reason", "too_long", "excerpt")  # of a quarantined record
_HOPELESS = 1000  # rejects after which a source that is mostly rejects is given up


@dataclass
class Tally:
    """One run's counts and rejects. A context manager: it owns the quarantine file, made at the first reject."""

    skip_bad: bool
    max_bad_ratio: float
    quarantine: Path
    total: Counts = field(default_factory=Counts)
    sources: list[Counts] = field(default_factory=list)
    first: list[Reject] = field(default_factory=list)
    _file: BinaryIO | None = None

    def __enter__(self) -> Tally:
        """Raises UserError where something else than an earlier run's rejects has the name of the quarantine file."""
        if os.path.lexists(self.quarantine):
            _require_rejects(self.quarantine)
            self.quarantine.unlink()
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, encoded: Encoded, counts: Counts) -> None:
        """``counts`` are those of the source so far, this chunk included."""
        for reject in encoded.rejects:
            self._write(reject)
        self.first += [reject for reject in encoded.rejects if not reject.too_long][: _SHOWN - len(self.first)]
        bad = counts.rejected - counts.too_long
        if not self.skip_bad and len(self.first) >= _SHOWN:
            raise self._error(f"at least {bad:,}", counts)
        if bad > _HOPELESS and bad > max(0.5, self.max_bad_ratio) * counts.records:
            raise self._error(f"{bad:,}", counts)

    def finish_source(self, name: str, counts: Counts) -> None:
        self.sources.append(counts)
        self.total.add(counts)
        bad = counts.rejected - counts.too_long
        if bad > (self.max_bad_ratio * counts.records if self.skip_bad else 0):
            raise self._error(f"{bad:,}", counts)
        if not counts.records:
            raise UserError(f"{name}: holds no record (only white space)")
        if not counts.used:
            why = "are too long; raise max_seq_length" if counts.too_long else f"are rejected, see {self.quarantine}"
            raise UserError(f"{name}: nothing to train on: all {counts.records:,} records {why}")

    def _write(self, reject: Reject) -> None:
        if self._file is None:
            self.quarantine.parent.mkdir(parents=True, exist_ok=True)
            self._file = create(self.quarantine)
        values = (reject.file, reject.line, reject.told_apart, reject.too_long, reject.excerpt)
        self._file.write(json.dumps(dict(zip(_FIELDS, values, strict=True))).encode() + b"\n")

    def _error(self, number: str, counts: Counts) -> UserError:
        where = f"{number} of {counts.records:,} records read are bad"
        if not counts.used and len({reject.reason for reject in self.first}) == 1:
            return UserError(f"{self.first[0]} (and so for all of the {counts.records:,} records read)")
        advice = f"the limit is {self.max_bad_ratio:.1%}" if self.skip_bad else "--skip-bad leaves them out"
        return UserError(f"{where} ({advice}):\n  " + "\n  ".join(str(reject) for reject in self.first))


def _require_rejects(path: Path) -> None:
    """UserError unless the file is empty (a run that was killed) or begins as a list of rejects does."""
    try:
        with open_inside(path.parent, path.name) as file:
            first = file.readline(1 << 20)
        ours = not first or set(json.loads(first)) == set(_FIELDS)
    except (OSError, ValueError, TypeError, RecursionError):
        ours = False
    if not ours:
        raise UserError(f"{path}: is there and is no list of rejects of an earlier run; move it away")
