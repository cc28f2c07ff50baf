"""Two runs that must be the same run: curves, evaluations, samples, weights, optimizer, bit for bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

CURVE = ("step", "tokens", "loss", "grad_norm", "lr", "loss_scale", "skipped", "applied", "epoch")
EVALUATION = ("step", "loss", "bits_per_byte", "tokens", "best")


def records(out: Path, kind: str, names: tuple[str, ...]) -> list[tuple[Any, ...]]:
    """These fields of the lines of one kind. Every line must be whole: a resume cuts torn ones off."""
    lines = map(json.loads, (out / "metrics.jsonl").read_bytes().splitlines())
    return [tuple(line[name] for name in names) for line in lines if line["kind"] == kind]


def samples(out: Path) -> dict[int, list[list[int]]]:
    """Rows of each step. A step that was done again after a kill must have taken the same rows again."""
    rows: dict[int, list[list[int]]] = {}
    for line in out.with_name(f"{out.name}.samples.jsonl").read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        assert rows.setdefault(record["step"], record["rows"]) == record["rows"], record["step"]
    return rows


def assert_same_run(out: Path, whole: Path, steps: int) -> None:
    """``out``, killed and resumed, against the uninterrupted ``whole``."""
    curve = records(out, "train", CURVE)
    assert [row[0] for row in curve] == list(range(1, steps + 1))
    assert curve == records(whole, "train", CURVE)
    assert records(out, "eval", EVALUATION) == records(whole, "eval", EVALUATION)
    assert samples(out) == samples(whole)
    for pointer in ("latest", "best"):
        assert (out / pointer).read_text() == (whole / pointer).read_text()
    latest = (whole / "latest").read_text().strip()
    assert_same_state(state(out / latest), state(whole / latest), latest)
    final = "final/model.safetensors"
    assert (out / final).read_bytes() == (whole / final).read_bytes()


def state(checkpoint: Path) -> dict[str, Any]:
    """Everything that torch wrote below a checkpoint, by file."""
    files = sorted(path for path in checkpoint.rglob("*.pt"))
    assert files
    return {
        str(path.relative_to(checkpoint)): torch.load(path, map_location="cpu", weights_only=False) for path in files
    }


def assert_same_state(ours: Any, theirs: Any, where: str) -> None:
    """Equal down to the last bit and the last object; memory and waiting times of health are the machine's."""
    assert type(ours) is type(theirs), where
    if isinstance(ours, torch.Tensor):
        assert ours.dtype == theirs.dtype and torch.equal(ours, theirs), where
    elif isinstance(ours, dict):
        assert ours.keys() == theirs.keys(), where
        for key in ours.keys() - {"health"}:
            assert_same_state(ours[key], theirs[key], f"{where} > {key}")
    elif isinstance(ours, (list, tuple)):
        assert len(ours) == len(theirs), where
        for index, pair in enumerate(zip(ours, theirs, strict=True)):
            assert_same_state(*pair, f"{where} > {index}")
    elif hasattr(ours, "__dict__") and not isinstance(ours, type):
        assert_same_state(vars(ours), vars(theirs), f"{where} > {type(ours).__name__}")
    else:
        assert ours == theirs, where
