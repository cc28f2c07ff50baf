"""Numbers to text: ratios by round, a table, the machine."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.workers import Round
from minimind.base.hardware import detect


def ratios(ours: Sequence[Round], theirs: Sequence[Round], cpu: bool = False) -> list[float]:
    """Our trained tokens a second over theirs, round by round (``cpu``: a second of CPU)."""
    speeds = ((a.cpu_speed, b.cpu_speed) if cpu else (a.speed, b.speed) for a, b in zip(ours, theirs, strict=True))
    return [a / b for a, b in speeds]


def spread(values: Sequence[float], form: str = ".2f") -> str:
    """``1.02 (0.97..1.05)``: median, smallest, largest."""
    return f"{median(values):{form}} ({min(values):{form}}..{max(values):{form}})"


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table, columns padded to one width so that it reads well in a terminal too."""
    table = [list(header), *map(list, rows)]
    widths = [max(len(row[column]) for row in table) for column in range(len(header))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in table
    ]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])


def machine(threads: int) -> dict[str, Any]:
    """What the figures were measured on."""
    return {"machine": detect().describe(), "threads": threads, "load": os.getloadavg()[0], "cores": os.cpu_count()}


def write_json(path: Path | None, results: Mapping[str, Any]) -> None:
    """Write ``results`` if a path was given."""
    if path is not None:
        path.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
