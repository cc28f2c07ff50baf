"""kill -9 at a chosen event: the nth time that a process is about to do, is doing or has just done something.

Events are hooked where Python's own functions are called (torch.save, os.replace, ...) as far as possible, so that they
happen in whichever thread writes a checkpoint. A fault that is never reached leaves the run alone.
"""

from __future__ import annotations

import io
import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

# What can be interrupted, and at most how often each happens before it is worth a kill.
POINTS = {
    "step:before": 7,
    "step:after": 7,
    "evaluation:before": 4,
    "evaluation:after": 4,
    "metrics:before": 9,
    "metrics:torn": 9,
    "metrics:after": 9,
    "file:before": 5,
    "file:torn": 5,
    "file:after": 5,
    "fsync:before": 20,
    "manifest.json:before": 3,
    "manifest.json:after": 3,
    "publish:before": 3,
    "publish:after": 3,
    "latest:before": 3,
    "latest:after": 3,
    "best:before": 2,
    "best:after": 2,
    "delete:before": 2,
    "delete:torn": 2,
    "metrics.jsonl:before": 1,  # cutting back at a resume
    "metrics.jsonl:after": 1,
    "load:after": 1,
    "export:before": 1,
    "export:after": 1,
    "clock": 300,  # milliseconds from the first step; ten of them take about that long
}


def kill_now() -> None:
    """SIGKILL to this process, from any of its threads."""
    os.kill(os.getpid(), signal.SIGKILL)


class Fuse:
    """Kills at the ``count``-th event ``point``."""

    def __init__(self, point: str, count: int) -> None:
        self.point, self.count = point, count

    def reached(self, point: str) -> bool:
        """Count one event; whether it is the one."""
        self.count -= point == self.point
        return point == self.point and self.count == 0

    def event(self, point: str) -> None:
        if self.reached(point):
            kill_now()


def install(fuse: Fuse) -> None:
    """Hook everything that a fuse can wait for."""
    from minimind.interop import huggingface
    from minimind.training.checkpoint import directory as checkpoints
    from minimind.training.engine.engine import Engine
    from minimind.training.record.file import MetricsFile
    from minimind.training.run import evaluation, loop, rescue

    if fuse.point == "clock":
        _start_clock(fuse.count / 1000)
    _around(fuse, loop, "train_step", lambda *_: "step")
    _around(fuse, evaluation, "_inputs", lambda *_: "evaluation")
    _around(fuse, Engine, "load", lambda *_: "load")
    _around(fuse, huggingface, "save_pretrained", lambda *_: "export")
    _around(fuse, os, "fsync", lambda *_: "fsync")
    _around(fuse, os, "rename", lambda _, target: "publish" if Path(target).name.startswith("step-") else "other")
    _around(fuse, os, "replace", lambda _, target: Path(target).name)
    _around(fuse, MetricsFile, "append", lambda *_: "metrics", _half_a_line)
    _around(fuse, _torch(), "save", lambda *_: "file", _half_a_file)
    for owner in (checkpoints, rescue):
        _around(fuse, owner, "delete", lambda *_: "delete", _one_file)


def _start_clock(seconds: float) -> None:
    """Kill that long after the first step has begun; before it, it could leave the lock of torch's C++ cache behind."""
    from minimind.training.run import loop

    step, timer = loop.train_step, threading.Timer(seconds, kill_now)
    timer.daemon = True

    def timed_step(*arguments: Any, **options: Any) -> Any:
        if timer.ident is None:
            timer.start()
        return step(*arguments, **options)

    loop.train_step = timed_step


def _torch() -> Any:
    import torch

    return torch


def _around(
    fuse: Fuse, owner: Any, name: str, label: Callable[..., str], torn: Callable[..., None] | None = None
) -> None:
    """Replace ``owner.name``: events before and after each call, and ``torn`` in its place."""
    original = getattr(owner, name)

    def hooked(*arguments: Any, **options: Any) -> Any:
        point = label(*arguments)
        fuse.event(f"{point}:before")
        if torn is not None and fuse.reached(f"{point}:torn"):
            torn(original, *arguments, **options)
            kill_now()
        result = original(*arguments, **options)
        fuse.event(f"{point}:after")
        return result

    setattr(owner, name, hooked)


def _half_a_line(original: Any, metrics_file: Any, record: dict[str, Any]) -> None:
    from minimind.training.record.file import to_line

    line = to_line(record)
    metrics_file._file.write(line[: len(line) // 2])


def _half_a_file(original: Any, value: Any, target: Any, *arguments: Any, **options: Any) -> None:
    memory = io.BytesIO()
    original(value, memory, *arguments, **options)
    half = memory.getvalue()[: memory.tell() // 2]
    if hasattr(target, "write"):
        target.write(half)
        target.flush()
    else:
        Path(target).write_bytes(half)


def _one_file(original: Any, path: Any, *arguments: Any, **options: Any) -> None:
    next(file for file in sorted(Path(path).rglob("*")) if file.is_file()).unlink()


def record_samples(path: Path) -> None:
    """Append the packed rows of each step to ``path``, once the step is done."""
    from minimind.training.record.recorder import Recorder
    from minimind.training.run import loop

    step, add = loop.train_step, Recorder.add
    seen: list[tuple[int, ...]] = []

    def watched_step(engine: Any, micro_batches: Any, *arguments: Any, **options: Any) -> Any:
        seen[:] = [batch.rows for batch in micro_batches]
        return step(engine, micro_batches, *arguments, **options)

    def watched_add(recorder: Any, result: Any, progress: Any, *arguments: Any) -> None:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": progress.step, "rows": seen}) + "\n")
        add(recorder, result, progress, *arguments)

    loop.train_step = watched_step
    Recorder.add = watched_add  # type: ignore[method-assign]
