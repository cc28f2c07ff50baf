"""A run as its metrics.jsonl tells it, folded: each step as it went the last time, and what was taken back beside it.

Contract. `RunRecords.read` takes what has been written since the last call. A step that stands in the file once more,
and a rollback, take back the steps from there on; their losses are kept as a branch. Each row knows the number of the
record that it came with, so that a page can be given what is new since a number (`Rows.since`). Where the file was
replaced or cut back, everything is read again and `generation` counts up.

Known weakness: a whole run is kept in memory, about 0.5 kB a step.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from minimind.base.errors import UserError
from minimind.base.strict.json_text import is_count, is_number
from minimind.training.record.file import FILE_NAME, MetricsTail

Line = dict[str, Any]
BRANCHES = 12  # taken back, and shown: the last ones
MOST_FINDINGS = 1000  # different ones, kept: the first
TRAIN = (
    "step",
    "tokens",
    "elapsed",
    "loss",
    "grad_norm",
    "lr",
    "loss_scale",
    "tokens_per_second",
    "skipped",
    "host_memory",
    "device_memory",
)
EVALUATION = ("step", "loss", "ppl", "bits_per_byte")
SOURCE = ("step", "source", "loss")


@dataclass
class Rows:
    """Rows of named columns in the order of their steps; the first column is the step."""

    names: tuple[str, ...]
    rows: list[tuple[Any, ...]] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)  # of the record that each came with, rising

    def append(self, record: Line, number: int) -> None:
        self.rows.append(tuple(record.get(name) for name in self.names))
        self.numbers.append(number)

    def take_back(self, step: int) -> list[tuple[Any, ...]]:
        """Remove the rows from ``step`` on, and return them."""
        at = bisect_left(self.rows, step, key=lambda row: row[0])
        taken = self.rows[at:]
        del self.rows[at:], self.numbers[at:]
        return taken

    def since(self, number: int) -> list[tuple[Any, ...]]:
        """The rows that came after record ``number``."""
        return self.rows[bisect_right(self.numbers, number) :]

    def column(self, name: str) -> list[Any]:
        at = self.names.index(name)
        return [row[at] for row in self.rows]


@dataclass(frozen=True)
class Mark:
    """Something on the axis: a finding, a rollback, a resume. ``step`` None: before the first one."""

    kind: str
    step: int | None
    code: str
    message: str
    advice: str = ""


class RunRecords:
    """The records of one run directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.generation = 0
        self._tail = MetricsTail(directory / FILE_NAME)
        self._clear()

    def _clear(self) -> None:
        self.number = 0  # records read
        self.about: Line = {}  # the last "run" line
        self.train, self.evaluations, self.sources = Rows(TRAIN), Rows(EVALUATION), Rows(SOURCE)
        self.marks: dict[Mark, None] = {}  # each once, in order
        self.branches: list[list[tuple[int, float | None]]] = []  # (step, loss) that were taken back
        self.taken_back: list[tuple[int, int]] = []  # (number, step): from that step on, at that record
        self.end: Line | None = None
        self.times: deque[float] = deque(maxlen=64)  # when the last lines were written, as seconds since 1970
        self._begun: float | None = None  # this session's start
        self._before = 0.0  # seconds of the sessions before it
        self._rollbacks: set[tuple[int, int]] = set()  # from step, to step

    def read(self) -> None:
        """Take what is new. Raises OSError without a metrics.jsonl, UserError for a record that is none of ours."""
        if self._tail.restarted():
            self._clear()
            self.generation += 1
        for record in self._tail.new():
            self.number += 1
            self._take(record)

    def _take(self, record: Line) -> None:
        if is_number(record.get("time")):
            self.times.append(float(record["time"]))
        takers = {
            "run": self._take_run,
            "train": self._take_train,
            "eval": self._take_eval,
            "source": self._take_source,
            "finding": self._take_finding,
            "recovery": self._take_recovery,
            "end": self._take_end,
        }
        if record["kind"] in takers:
            takers[record["kind"]](record)

    def _take_run(self, record: Line) -> None:
        self.about, self.end = record, None
        step = record.get("resumed_step") or record.get("step") or 0
        if not is_count(step):
            return
        if step:
            self._mark(Mark("resume", step, "resumed", ""))
        self._before = self.elapsed
        self._begun = record.get("time")

    def _take_train(self, record: Line) -> None:
        self.end = None
        self._rewind(record["step"])
        last = self.train.rows[-1] if self.train.rows else (0, 0, 0.0)
        row = {**record, "elapsed": self._elapsed(record, last[2]), "tokens": max(record.get("tokens") or 0, last[1])}
        self.train.append(row, self.number)

    def _elapsed(self, record: Line, least: float | None) -> float | None:
        """Seconds of training up to this record, the time between two sessions left out; None in older runs."""
        if record.get("time") is None or self._begun is None:
            return None
        return max(self._before + float(record["time"]) - self._begun, least or 0.0)

    def _take_eval(self, record: Line) -> None:
        self.end = None
        self.evaluations.take_back(record["step"])
        self.evaluations.append(record, self.number)

    def _take_source(self, record: Line) -> None:
        self.sources.take_back(record["step"] + 1)
        self.sources.append(record, self.number)

    def _take_end(self, record: Line) -> None:
        self.end = record

    def _take_finding(self, record: Line) -> None:
        kind = "rollback" if record.get("code") == "rolled-back" else "finding"
        texts = (record.get(name) or "" for name in ("code", "message", "advice"))
        self._mark(Mark(kind, record.get("step"), *texts))

    def _take_recovery(self, record: Line) -> None:
        """A rollback takes its steps back at once. A resume writes the rollbacks that it lives with again."""
        trouble, back = record.get("trouble_step"), record.get("to_step")
        if is_count(back) and is_count(trouble) and (trouble, back) not in self._rollbacks:
            self._rollbacks.add((trouble, back))
            self._rewind(back + 1)

    @property
    def elapsed(self) -> float:
        """Seconds of training up to the last step, all sessions together; 0 where that is not known."""
        return (self.train.rows[-1][2] or 0.0) if self.train.rows else 0.0

    def _mark(self, mark: Mark) -> None:
        if len(self.marks) < MOST_FINDINGS:
            self.marks.setdefault(mark)

    def _rewind(self, step: int) -> None:
        """Take back the steps from ``step`` on, if there are any."""
        taken = self.train.take_back(step)
        if not taken:
            return
        self.evaluations.take_back(step)
        self.sources.take_back(step)
        self.taken_back.append((self.number, step))
        self.branches = [*self.branches, [(row[0], row[3]) for row in taken]][-BRANCHES:]

    def kept_since(self, number: int) -> int | None:
        """Up to before which step the rows of record ``number`` still stand; None: all of them."""
        return min((step for at, step in self.taken_back if at > number), default=None)


def load_records(path: Path) -> RunRecords:
    """Read a run directory (or the metrics.jsonl in it). Raises UserError when there is no metrics.jsonl."""
    records = RunRecords(path.parent if path.name == FILE_NAME else path)
    try:
        records.read()
    except OSError as error:
        raise UserError(
            f"{records.directory / FILE_NAME}: {error.strerror}: give the output directory of a training run"
        ) from None
    return records
