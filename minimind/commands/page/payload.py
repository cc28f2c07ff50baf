"""Runs as the JSON that the page draws: whole for a page that is written or opened, or what is new since a record.

Contract. A curve of any length has at most `ROWS` points: longer ones come as buckets with mean, lowest and highest
value. Numbers have five digits, counts all of theirs. What no chart can show is null. Bounded, whatever a stranger's
run holds: `MOST_SOURCES` sources, findings as records.py keeps them, samples by `MOST_SAMPLES`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from minimind.base.charts import COLOURS, Buckets, drawable
from minimind.base.defaults import SAMPLES
from minimind.base.files import open_inside
from minimind.base.strict.json_text import is_count, parse_json
from minimind.commands.page.facts import FILES, differences, facts, settings_of
from minimind.commands.page.records import RunRecords
from minimind.commands.page.state import ask

ROWS = 6000  # of a curve, as they are; more become buckets
MOST_SOURCES = 64  # lines of a chart: as many as can be told apart, and more
MOST_SAMPLES = 2000  # the last ones
LARGEST_SAMPLES = 16 << 20  # bytes
EXACT = ("step", "tokens", "skipped")
Value = dict[str, Any]


def whole(runs: Sequence[RunRecords]) -> list[Value]:
    """Everything of every run, its settings too."""
    labels = _labels([run.directory for run in runs])
    return [
        {
            "label": labels[i],
            "colour": COLOURS[i % len(COLOURS)],
            "files": (files := settings_of(run.directory)),
            "missing": [name for name in FILES if name not in files],
            **changes(run, None),
        }
        for i, run in enumerate(runs)
    ]


def compared(values: Sequence[Value]) -> list[Value]:
    """Which settings differ between the runs of `whole`."""
    found = differences([value["files"] for value in values]) if len(values) > 1 else []
    return [{"name": name, "values": row} for name, row in found]


def changes(run: RunRecords, since: int | None) -> Value:
    """What came after record ``since``; None: all (``whole``). ``keep``: the page's rows before this step still stand;
    None: all of them.
    """
    value: Value = {"generation": run.generation, "number": run.number, "state": ask(run)}
    if since is not None and since >= run.number:
        return value
    after = -1 if since is None else since
    floor = run.about.get("nats_per_byte_floor")
    return value | {
        "whole": since is None,
        "keep": None if since is None else run.kept_since(after),
        "train": _columns(run.train.names, run.train.since(after), buckets=since is None),
        "evaluations": _columns(run.evaluations.names, run.evaluations.since(after)),
        "sources": _sources(run, after),
        "facts": facts(run),
        "total": run.about.get("total_steps"),
        "floor": floor if floor and floor > 0 else None,
        "marks": [vars(mark) for mark in run.marks],
        "branches": [_branch(branch) for branch in run.branches],
        "samples": samples(run.directory),
    }


def _columns(names: Sequence[str], rows: Sequence[tuple[Any, ...]], buckets: bool = False) -> Value:
    """Name -> numbers; in buckets also name.low and name.high."""
    columns = {name: [row[at] for row in rows] for at, name in enumerate(names)}
    if not buckets or len(rows) <= ROWS:
        return {name: [_plain(name, y) for y in ys] for name, ys in columns.items()}
    size = math.ceil(len(rows) / (ROWS // 2))
    found: Value = {}
    for name, ys in columns.items():
        if name in (*EXACT, "elapsed"):  # where a bucket ends
            found[name] = [_plain(name, y) for y in _ends(ys, size)]
            continue
        bucket = Buckets.of(ys, size)
        for suffix, values in (("", bucket.mean), (".low", bucket.low), (".high", bucket.high)):
            found[name + suffix] = [_plain(name, y) for y in values]
    return found


def _plain(name: str, y: Any) -> Any:
    """A number as JSON has it."""
    if not drawable(y):
        return None
    return y if name in EXACT else float(f"{y:.5g}")


def _sources(run: RunRecords, after: int) -> Value:
    """Source -> its steps and losses."""
    names = list(dict.fromkeys(run.sources.column("source")))[:MOST_SOURCES]
    found: Value = {name: {"step": [], "loss": []} for name in names}
    for step, name, loss in run.sources.since(after):
        if name in found:
            found[name]["step"].append(step)
            found[name]["loss"].append(_plain("loss", loss))
    return {name: _thinned(columns) for name, columns in found.items()}


def _thinned(columns: Value) -> Value:
    """At most `ROWS` points of a source's losses: means."""
    size = math.ceil(len(columns["step"]) / ROWS) or 1
    return {"step": _ends(columns["step"], size), "loss": Buckets.of(columns["loss"], size).mean}


def _ends(values: Sequence[Any], size: int) -> list[Any]:
    """The last value of each bucket."""
    return [values[min(i + size, len(values)) - 1] for i in range(0, len(values), size)]


def _branch(rows: Sequence[tuple[int, float | None]]) -> Value:
    """Steps that were taken back. A long branch keeps its end, where the trouble was."""
    rows = rows[-ROWS:]
    return {"step": [step for step, _ in rows], "loss": [_plain("loss", loss) for _, loss in rows]}


def samples(directory: Path) -> list[Value]:
    """The rows ``{"step", "prompt", "text"}`` of samples.jsonl, the last of each step and prompt; others are passed
    over. None there, or not readable: an empty list.
    """
    try:
        with open_inside(directory, SAMPLES) as file:
            content = file.read(LARGEST_SAMPLES)
    except OSError:
        return []
    found: dict[tuple[int, str], str] = {}
    for line in content.splitlines(keepends=True):
        row = _sample(line)
        if row is not None:
            found[row["step"], row["prompt"]] = row["text"]
    rows = [{"step": step, "prompt": prompt, "text": text} for (step, prompt), text in sorted(found.items())]
    return rows[-MOST_SAMPLES:]


def _sample(line: bytes) -> Value | None:
    try:
        row = parse_json(line) if line.endswith(b"\n") else None
    except ValueError:
        return None
    texts = isinstance(row, dict) and all(isinstance(row.get(name), str) for name in ("prompt", "text"))
    return row if texts and isinstance(row, dict) and is_count(row.get("step")) else None


def _labels(directories: Sequence[Path]) -> list[str]:
    """The directories' names; where two are alike, with the directory above them."""
    whole_paths = [path.resolve() for path in directories]
    names = [path.name for path in whole_paths]
    return [
        name if names.count(name) == 1 else f"{path.parent.name}/{name}"
        for path, name in zip(whole_paths, names, strict=True)
    ]
