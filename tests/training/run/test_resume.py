"""Going on with other settings: accepted and listed, or refused and listed."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from minimind.base.errors import UserError
from minimind.training.checkpoint import directory as checkpoints
from minimind.training.run import loop
from minimind.training.run.resume import FIXED, agree, changes, find_start, require_one_run
from tests.support import DS_CONFIGS, run_ranks, save_steps
from tests.training.run.test_main import curve, launch, records

STEADY = ("--set", "lr_scheduler_type=constant", "--set", "warmup_steps=0", "--set", "eval_steps=100")


@pytest.fixture(autouse=True)
def _one_rank_with_its_signals(one_rank: None) -> Iterator[None]:
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


def json_with(tmp_path: Path, base: str = "fp32.json", **changes: Any) -> str:
    path = tmp_path / f"{abs(hash(str(changes)))}.json"
    path.write_text(json.dumps({**json.loads((DS_CONFIGS / base).read_text()), **changes}))
    return str(path)


def batch(micro: int, accumulation: int) -> tuple[str, ...]:
    return ("--set", f"per_device_train_batch_size={micro}", "--set", f"gradient_accumulation_steps={accumulation}")


def rows_of_run(name: str, files: dict[str, Path], out: Path, *more: str) -> list[list[int]]:
    """Run (in this process, as one of the ranks) and list the rows that this rank trained on, by step."""
    rows: list[list[int]] = []
    original = loop.train_step

    def noting(engine: Any, batches: Any, *more: Any, **options: Any) -> Any:
        rows.append([row for one in batches for row in one.rows])
        return original(engine, batches, *more, **options)

    loop.train_step = noting  # type: ignore[assignment]
    try:
        assert launch("pretrain", name, files, out, *STEADY, *more) == 0
    finally:
        loop.train_step = original
    return rows


def said(out: Path) -> list[str]:
    found = [finding for finding in records(out, "finding") if finding["code"] == "resumed-with-changes"]
    return [finding["message"] for finding in found]


def test_one_rank_to_two_to_one_trains_on_the_same_rows_with_the_same_loss(
    files: dict[str, Path], tmp_path: Path
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    expected = rows_of_run("fp32.json", files, whole, "--max-steps", "5", *batch(4, 1))
    rows = rows_of_run("fp32.json", files, parts, "--max-steps", "2", *batch(2, 2))
    sharded = json_with(tmp_path, zero_optimization={"stage": 2})
    two = ("--max-steps", "4", *batch(1, 2), "--resume")
    by_rank = run_ranks(2, rows_of_run, sharded, files, parts, *two)
    rows += [sorted(first + second) for first, second in zip(*by_rank, strict=True)]
    rows += rows_of_run("fp32.json", files, parts, "--max-steps", "5", *batch(4, 1), "--resume")
    assert [sorted(step) for step in rows] == [sorted(step) for step in expected]
    for ours, theirs in zip(curve(parts), curve(whole), strict=True):
        assert ours[:2] == theirs[:2] and ours[4:] == theirs[4:]  # tokens, rate; then loss and gradient norm
        assert ours[2:4] == pytest.approx(theirs[2:4], rel=2e-5)
    first, second = said(parts)
    assert first.endswith("ranks 1 -> 2; micro batch size 2 -> 1; ZeRO stage 0 -> 2; total steps 2 -> 4")
    assert "ranks 2 -> 1" in second and "accumulation 2 -> 1" in second


def test_new_rates_clipping_and_scaling_win_and_are_listed(files: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert launch("pretrain", "fp16.json", files, out, "--max-steps", "2", *STEADY) == 0
    params = {"lr": 5e-4, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.01}
    fp16 = {"enabled": True, "loss_scale": 1024}
    changed = json_with(
        tmp_path, "fp16.json", optimizer={"type": "AdamW", "params": params}, fp16=fp16, gradient_clipping=0.5
    )
    assert launch("pretrain", changed, files, out, "--max-steps", "3", *STEADY, "--resume") == 0
    assert [(record["lr"], record["loss_scale"]) for record in records(out)] == [
        (2e-3, 65536.0),
        (2e-3, 65536.0),
        (5e-4, 1024.0),
    ]
    (message,) = said(out)
    for part in (
        "learning rate 0.002 -> 0.0005",
        "betas [0.9, 0.999] -> [0.9, 0.95]",
        "gradient clipping 1.0 -> 0.5",
        "loss scale (0: dynamic) 0 -> 1024",
        "total steps 2 -> 3",
    ):
        assert part in message
    # and the same settings again say nothing
    assert launch("pretrain", changed, files, out, "--max-steps", "3", *STEADY, "--resume") == 0
    assert said(out) == [message]


def test_a_checkpoint_from_before_these_settings_were_recorded_resumes(files: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert launch("pretrain", "fp32.json", files, out, "--max-steps", "2", *STEADY) == 0
    path = out / "checkpoints" / "step-00000002" / "manifest.json"
    manifest = json.loads(path.read_text())
    old = (*FIXED, "world_size", "zero_stage", "offload", "precision")
    manifest["about"] = {name: manifest["about"][name] for name in old}
    del manifest["seal"]
    manifest["seal"] = checkpoints._seal(manifest)
    path.write_text(json.dumps(manifest))
    assert launch("pretrain", "bf16.json", files, out, "--max-steps", "3", *STEADY, "--resume") == 0
    (message,) = said(out)
    assert message.endswith("from here on: ZeRO stage 0 -> 1; precision fp32 -> bf16")
    assert [record["step"] for record in records(out)] == [1, 2, 3]


def test_another_run_is_refused_with_every_difference(files: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert launch("pretrain", "fp32.json", files, out, "--max-steps", "1", *STEADY) == 0
    before = (out / "metrics.jsonl").read_bytes()
    about = json.loads((out / "checkpoints" / "step-00000001" / "manifest.json").read_text())["about"]
    with pytest.raises(UserError, match=r"can't resume, these differ: tokenizer \(.*\); seed \(checkpoint 42, now 7\)"):
        agree(find_start("", out).checkpoint, {**about, "tokenizer": "another", "seed": 7, "precision": "bf16"})
    with pytest.raises(UserError, match=r"these differ: optimizer \(checkpoint adamw, now lion\)"):
        launch("pretrain", "lion.json", files, out, "--max-steps", "2", *STEADY, "--resume")
    assert (out / "metrics.jsonl").read_bytes() == before


def test_changes_are_named_in_words() -> None:
    theirs = {"seed": 1, "offload": False, "loss_scaling": {"loss_scale": 0}, "schedule": {"kind": "cosine"}}
    ours = {"seed": 2, "offload": True, "loss_scaling": None, "schedule": {"kind": "wsd", "warmup_steps": 3}, "new": 1}
    assert changes(theirs, ours) == [
        "offload off -> on",
        "schedule kind cosine -> wsd",
        "schedule warmup steps none -> 3",
    ]
    assert changes(ours, ours) == []


def test_resuming_an_earlier_checkpoint_sets_the_later_ones_aside(files: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert launch("pretrain", "fp32.json", files, out, "--max-steps", "6", *STEADY) == 0
    first = out / "checkpoints" / "step-00000002"
    assert (
        launch("pretrain", "fp32.json", files, out, "--max-steps", "3", *STEADY, "--resume", os.path.relpath(first))
        == 0
    )
    assert sorted(path.name for path in (out / "checkpoints").iterdir()) == ["step-00000002", "step-00000003"]
    assert (out / "latest").read_text().strip() == "checkpoints/step-00000003"
    assert sorted(path.name for path in (out / "earlier-1").iterdir()) == ["step-00000004", "step-00000006"]
    assert [record["step"] for record in records(out)] == [1, 2, 3]
    assert "earlier-run" in [finding["code"] for finding in records(out, "finding")]


def test_a_resume_points_latest_at_the_checkpoint_that_it_goes_on_from(files: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert launch("pretrain", "fp32.json", files, out, "--max-steps", "2", *STEADY) == 0
    (out / "latest").write_text("checkpoints/step-00000001\n")  # killed before the pointer was replaced
    assert launch("pretrain", "fp32.json", files, out, "--max-steps", "2", *STEADY, "--resume") == 0
    assert (out / "latest").read_text() == "checkpoints/step-00000002\n"


def test_auto_begins_without_a_checkpoint_and_goes_on_with_one(tmp_path: Path) -> None:
    (begun,) = find_start("auto", tmp_path).findings
    assert begun.code == "nothing-to-resume" and find_start("auto", tmp_path).checkpoint is None
    save_steps(tmp_path, 2, 4)
    start = find_start("auto", tmp_path)
    assert start.checkpoint is not None and start.checkpoint.step == 4 and start.findings == []


def test_auto_does_not_begin_beside_a_checkpoint_that_is_damaged(tmp_path: Path) -> None:
    save_steps(tmp_path, 2)
    (tmp_path / "checkpoints" / "step-00000002" / "manifest.json").unlink()
    with pytest.raises(UserError, match="no complete checkpoint to resume from"):
        find_start("auto", tmp_path)


def test_a_rank_with_other_settings_is_no_part_of_the_run() -> None:
    first = dict.fromkeys(FIXED, 1) | {"optimizer_params": {"lr": 1e-3}, "world_size": 2}
    require_one_run(first, dict(first))
    with pytest.raises(UserError, match=r"learning rate 0.001 -> 0.002; give all hosts the same files"):
        require_one_run(first, {**first, "optimizer_params": {"lr": 2e-3}})
    with pytest.raises(UserError, match=r"other settings than the first rank's: data 1 -> 2"):
        require_one_run(first, {**first, "data": 2})
