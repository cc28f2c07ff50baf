"""metrics.jsonl: strict JSON Lines that survive kill -9, a full disk and a resume.

Contract. A line is valid JSON: a number that is not finite is null, and its name and value stand in the
field ``non_finite`` ({"loss": "nan"}). A line reaches the operating system before `append` returns, so that
kill -9 loses at most a torn last line; readers leave torn lines out and `cut_back` removes them.

Known weakness: written is not fsynced. After a power failure the tail may be missing; resume cuts the file
back to the checkpoint as usual, and the lines between are written again.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from minimind.base.defaults import MAX_WEIGHT
from minimind.base.errors import UserError
from minimind.base.files import append_to, free_name, open_inside, read_inside, write_bytes_durably
from minimind.base.strict.json_text import brief, is_count, is_number, parse_json

FILE_NAME = "metrics.jsonl"
MAX_LINE = 1 << 20  # bytes; ours have some hundreds


def to_line(record: Mapping[str, Any]) -> bytes:
    """One line of strict JSON; non-finite top-level numbers become null and are named in ``non_finite``."""
    bad = {k: str(v) for k, v in record.items() if isinstance(v, float) and not math.isfinite(v)}
    clean = {k: None if k in bad else v for k, v in record.items()}
    if bad:
        clean["non_finite"] = bad
    # A file name that is no UTF-8 has lone surrogates; backslashreplace's form of them is JSON's escape, too.
    return json.dumps(clean, ensure_ascii=False, allow_nan=False).encode("utf-8", "backslashreplace") + b"\n"


def parse_line(line: bytes) -> dict[str, Any] | None:
    """The record of a whole line, or None for a torn or foreign one."""
    if not line.endswith(b"\n"):
        return None
    try:
        record = parse_json(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and isinstance(record.get("kind"), str) else None


def read_metrics(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a metrics.jsonl in order, without torn or foreign lines. OSError if it can't be read.

    Raises UserError with file:line for a record whose known fields are not of the type that this module's writers
    give them: what reads records computes with them.
    """
    yield from MetricsTail(path).new()


class MetricsTail:
    """Reads a metrics.jsonl as it grows. A torn last line is read again when it has its end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: tuple[int, int] | None = None  # device and inode of what was read
        self._read, self._number = 0, 0  # bytes and lines of it

    def restarted(self) -> bool:
        """Whether another file is there than was read, or a shorter one (a resume cuts it back); OSError for none.

        Then `new` gives all its records.
        """
        with open_inside(self.path.parent, self.path.name) as file:
            status = os.fstat(file.fileno())
        same = self._file == (status.st_dev, status.st_ino) and status.st_size >= self._read
        restarted = self._file is not None and not same
        if restarted:
            self._file, self._read, self._number = None, 0, 0
        return restarted

    def new(self) -> Iterator[dict[str, Any]]:
        """The records that were not read yet; errors as for `read_metrics`."""
        with open_inside(self.path.parent, self.path.name) as file:
            status = os.fstat(file.fileno())
            self._file = (status.st_dev, status.st_ino)
            file.seek(self._read)
            for number, line in enumerate(_lines(file), self._number + 1):
                if line.endswith(b"\n"):
                    self._read, self._number = file.tell(), number
                record = parse_line(line)
                if record is None:
                    continue
                reason = misfit(record)
                if reason is not None:
                    raise UserError(f"{self.path}:{number}: {reason}")
                yield record


def _lines(file: IO[bytes]) -> Iterator[bytes]:
    """Lines of at most ``MAX_LINE`` bytes; a longer one comes without its end, as a torn one."""
    while line := file.readline(MAX_LINE):
        yield line
        while line and not line.endswith(b"\n"):
            line = file.readline(MAX_LINE)


def misfit(record: Mapping[str, Any]) -> str | None:
    """Which field of a record is not of its type, or None. One that is missing or null is wrong in ``REQUIRED`` only.

    Records of other kinds are read by nothing.
    """
    if record["kind"] not in REQUIRED:
        return None
    for name in (*REQUIRED[record["kind"]], *(name for name in record if name in TYPES and record[name] is not None)):
        value = record.get(name)
        fits, what = TYPES[name]
        if not fits(value):
            return f"{name} is {brief(value)}, {what} belongs there"
    return None


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _are_sources(value: object) -> bool:
    """What a "run" line says of weighted sources."""
    return isinstance(value, list) and all(
        isinstance(part, dict)
        and _is_text(part.get("path"))
        and is_number(part.get("weight"))
        and 0 < part["weight"] <= MAX_WEIGHT
        and is_count(part.get("files"))
        for part in value
    )


def _is_positive(value: object) -> bool:
    return is_count(value, least=1)


_COUNTS = (
    "step tokens skipped host_memory device_memory parameters total_steps seed zero_stage vocab_size rows epoch_tokens"
)
_POSITIVE = "micro_batch_size accumulation world_size row_length"
_NUMBERS = "loss ppl bits_per_byte grad_norm lr loss_scale tokens_per_second seconds epoch time nats_per_byte_floor"
_TEXTS = "task model precision store code message advice reason rung trouble"
TYPES: dict[str, tuple[Callable[[object], bool], str]] = {
    **dict.fromkeys(_COUNTS.split(), (is_count, "a whole number")),
    **dict.fromkeys(_POSITIVE.split(), (_is_positive, "a whole number from 1")),
    **dict.fromkeys(_NUMBERS.split(), (is_number, "a number")),
    **dict.fromkeys(_TEXTS.split(), (_is_text, "a text")),
    "applied": (_is_flag, "true or false"),
    "source": (_is_text, "a text"),
    "sources": (_are_sources, "a list of paths, weights and numbers of files"),
}
REQUIRED = {
    "train": ("step",),
    "eval": ("step",),
    "source": ("step", "source"),
    "end": ("reason", "seconds"),
    "run": (),
    "finding": (),
}


def cut_back(path: Path, step: int) -> int:
    """Keep what was written up to optimizer step `step`, atomically; returns how many lines were dropped.

    Kept: everything up to the last training line at or before `step`, and what follows it at that step (its
    evaluation, its findings). The *last* one: after a rollback inside a run the same steps stand there twice.
    Written beside the file, fsynced and renamed: a kill in here leaves the old file or the new one.
    """
    lines = read_inside(path.parent, path.name).splitlines(keepends=True)
    whole = [(line, record) for line in lines if (record := parse_line(line)) is not None]
    steps = [record.get("step") or 0 for _, record in whole]
    trained = [i for i, (_, r) in enumerate(whole) if r["kind"] == "train" and steps[i] <= step]
    end = trained[-1] + 1 if trained else 0
    while end < len(whole) and whole[end][1]["kind"] != "train" and steps[end] <= step:
        end += 1
    write_bytes_durably(path, b"".join(line for line, _ in whole[:end]))
    return len(lines) - end


class MetricsFile:
    """The open metrics.jsonl of a run that is going on."""

    def __init__(self, path: Path, resumed_step: int | None) -> None:
        """Cut back to `resumed_step`, or with None start a new file.

        A file that a new run finds in its place is renamed to metrics.1.jsonl (2, 3, ...), never deleted.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        if os.path.lexists(path) and resumed_step is not None:
            cut_back(path, resumed_step)
        elif os.path.lexists(path):
            os.rename(path, free_name(path, lambda n: f"{path.stem}.{n}.jsonl"))
        self.path = path
        self._file = append_to(path)  # unbuffered: what is written survives kill -9
        self._torn = False

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one line. OSError when the disk does not take it; later lines are whole again when it does."""
        line = (b"\n" if self._torn else b"") + to_line(record)  # end a torn line, so that only that one is lost
        self._torn = True
        written = self._file.write(line)
        if written != len(line):
            raise OSError(f"{self.path}: only {written} of {len(line)} bytes were written")
        self._torn = False

    def close(self) -> None:
        self._file.close()
