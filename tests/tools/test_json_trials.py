"""The trial of JSONs trains for real, and tells a run from a refusal and from a wrong loss."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tools.json_trials import Trial, _compared

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_each_json_is_trained_or_has_its_reason(tmp_path: Path) -> None:
    optimizer = {"type": "SGD", "params": {"lr": 0.1}}
    (tmp_path / "deep").mkdir()
    batches = {
        "train_batch_size": 6,
        "train_micro_batch_size_per_gpu": 3,
    }  # other rows than fp32's run, and the same loss
    half = {"bf16": {"enabled": True}, "zero_optimization": {"stage": 2}, "optimizer": optimizer, **batches}
    (tmp_path / "deep" / "half.json").write_text(json.dumps(half))
    (tmp_path / "old.json").write_text(json.dumps({"amp": {"enabled": True}}))
    command = [sys.executable, str(ROOT / "tools" / "json_trials.py"), str(tmp_path), "--steps", "2"]
    table = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path).stdout
    _, _, ran, refused, _, summary = table.splitlines()
    assert ran.startswith("| deep/half.json | runs | ") and "(" in ran
    assert refused.startswith("| old.json | refused |") and "old.json:1: amp" in refused
    assert summary == "1 runs, 1 refused"


@pytest.mark.parametrize(
    ("losses", "verdict", "problem"),
    [
        ((5.0, 4.02), "runs", ""),
        ((5.0, 4.2), "wrong", "5.0% off"),
        ((5.0, float("nan")), "wrong", "off fp32's"),
        ((5.0,), "wrong", "only 1 updates"),
    ],
)
def test_a_run_must_have_its_updates_and_fp32s_loss(losses: tuple[float, ...], verdict: str, problem: str) -> None:
    found = _compared(Trial("a.json", "runs", "", losses, (5.0, 4.0)), "bf16", 2)
    assert found.verdict == verdict and problem in found.problem
