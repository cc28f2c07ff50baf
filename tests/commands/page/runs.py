"""Run directories as trainings leave them, and the content of a page made of them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from minimind.training.record.file import to_line

START = 1.7e9  # seconds since 1970
Line = dict[str, Any]


def about(steps: int, step: int = 0, **more: Any) -> Line:
    record = {"kind": "run", "step": step, "task": "pretrain", "model": "tiny", "parameters": 1000, "time": START}
    resumed = {"resumed_step": step} if step else {}
    return record | {"total_steps": steps, "precision": "fp16", "zero_stage": 1} | resumed | more


def train(step: int, **more: Any) -> Line:
    record = {"kind": "train", "step": step, "tokens": step * 100, "loss": 0.6 + 6.4 * math.exp(-step / 5)}
    record |= {"grad_norm": 1.0 + 1 / step, "lr": 1e-3, "loss_scale": 1024.0, "skipped": 1}
    return record | {"tokens_per_second": None if step == 1 else 1000.0, "time": START + step} | more


def evaluation(step: int, loss: float, **more: Any) -> Line:
    return {"kind": "eval", "step": step, "loss": loss, "ppl": math.exp(loss), "bits_per_byte": loss / 2} | more


def finding(step: int | None, code: str, message: str) -> Line:
    return {"kind": "finding", "step": step, "code": code, "message": message, "advice": "look"}


def end(step: int, reason: str = "finished") -> Line:
    return {"kind": "end", "step": step, "reason": reason, "seconds": 61.0, "time": START + step + 1}


def rollback(trouble: int, back: int) -> list[Line]:
    record = {"kind": "recovery", "step": back, "rung": "rollback", "trouble": "spike", "message": "m", "number": 1}
    told = finding(trouble, "rolled-back", f"spike; rollback 1: back to step {back}")
    return [record | {"trouble_step": trouble, "to_step": back, "skipped": [back, trouble - 1]}, told]


def finished(steps: int = 30, **more: Any) -> list[Line]:
    evaluations = [evaluation(steps // 2, 1.2), evaluation(steps, 0.9)]
    return [about(steps, **more), *(train(step) for step in range(1, steps + 1)), *evaluations, end(steps)]


def write(directory: Path, records: Iterable[Line], settings: str = "learning_rate: 0.001\n") -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "metrics.jsonl").write_bytes(b"".join(map(to_line, records)))
    (directory / "config.yaml").write_text(settings)
    (directory / "ds_config.json").write_text('{"fp16": {"enabled": true}}')
    return directory


def add(directory: Path, records: Sequence[Line]) -> None:
    with (directory / "metrics.jsonl").open("ab") as file:
        file.write(b"".join(map(to_line, records)))


def content(page: str) -> Any:
    """What the page's code draws."""
    found = re.search(r'<script type="application/json" id="runs">(.*?)</script>', page, re.S)
    assert found is not None
    return json.loads(found[1])
