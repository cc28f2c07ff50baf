"""The ladder end to end: an injected illness, the lowest rung that heals it, and a run that ends well."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from minimind.base.errors import UserError
from minimind.commands.models import samples_of_step
from minimind.inference.generation import load_model
from minimind.text.tokenizer import Tokenizer
from minimind.training.checkpoint.directory import all_checkpoints, point
from minimind.training.engine.engine import Engine
from minimind.training.health.trouble import Trouble
from minimind.training.run import loop
from minimind.training.run.arguments import parse
from minimind.training.run.main import run
from minimind.training.run.rescue import go_back
from tests.support import DS_CONFIGS, run_ranks, save_steps
from tests.training.injections import POISON, dynamic_only, fp16_only, illness, overflowing, poisoned, spiking
from tests.training.run.test_main import SMALL, curve, launch, records
from tests.training.run.test_main import _one_rank_with_its_signals as _signals  # noqa: F401 (an autouse fixture)

QUICK = [
    word
    for setting in (
        "recovery.overflow_patience=4",
        "recovery.non_finite_patience=3",
        "recovery.spike_patience=12",
        "recovery.rewarmup_steps=4",
        "recovery.heal_steps=10",
        "lr_scheduler_type=constant",
        "eval_steps=1000",
        "save_steps=5",
        "save_total_limit=2",
    )
    for word in ("--set", setting)
]


@pytest.fixture
def poison(files: dict[str, Path], tmp_path: Path) -> tuple[dict[str, Path], int]:
    """The tiny corpus with one poisoned line, and the token that gives it away."""
    lines = files["pretrain"].read_text(encoding="utf-8").splitlines(keepends=True)
    lines.insert(60, json.dumps({"text": f"river {POISON} house"}, ensure_ascii=False) + "\n")
    path = tmp_path / "poisoned.jsonl"
    path.write_text("".join(lines), encoding="utf-8")
    token = Tokenizer.load(files["tokenizer"]).encode(POISON)[-1]
    return {**files, "pretrain": path}, token


def brisk(name: str, tmp_path: Path) -> str:
    """A shipped JSON with a learning rate that suits these tiny models."""
    config = json.loads((DS_CONFIGS / f"{name}.json").read_text())
    config["optimizer"]["params"]["lr"] = 1e-2
    path = tmp_path / f"{name}.json"
    path.write_text(json.dumps(config))
    return str(path)


def rungs(out: Path) -> list[str]:
    return [record["rung"] for record in records(out, "recovery")]


def end_loss(out: Path) -> float:
    """Mean of the last five steps, as they went the last time."""
    last = {record["step"]: record["loss"] for record in records(out)}
    assert sorted(last) == list(range(1, max(last) + 1))
    values = [last[step] for step in sorted(last)[-5:]]
    assert all(value is not None and math.isfinite(value) for value in values)
    return sum(values) / 5


def back(run_dir: Path, trouble: Trouble) -> int | None:
    good = go_back(SimpleNamespace(run_dir=run_dir, trouble=trouble))  # type: ignore[arg-type]
    return good and good.step


def test_the_last_checkpoint_before_the_trouble_becomes_the_runs_last(tmp_path: Path) -> None:
    save_steps(tmp_path, 4, 7, 8, 9, 12)
    point(tmp_path / "best", tmp_path / "checkpoints" / "step-00000008")
    assert back(tmp_path, Trouble("overflow", 14, 10, "")) == 9  # the step before its first is trusted ...
    assert back(tmp_path, Trouble("spike", 14, 10, "")) == 8  # ... before a spike's not
    assert [checkpoint.step for checkpoint in all_checkpoints(tmp_path)] == [8, 7, 4]
    for pointer in ("latest", "best"):
        assert (tmp_path / pointer).read_text().strip() == "checkpoints/step-00000008"
    (tmp_path / "checkpoints" / "step-00000007" / "zero_to_fp32.py").unlink()  # damaged: the one before it
    assert back(tmp_path, Trouble("parameters", 8, 8, "")) == 4
    assert not (tmp_path / "best").exists()
    assert back(tmp_path, Trouble("parameters", 8, 3, "")) is None
    assert all_checkpoints(tmp_path) == [] and not (tmp_path / "latest").exists()


@pytest.mark.parametrize("name", ["fp32.json", "bf16.json", "fp16.json", "fp16_zero3_offload.json"])
def test_a_poisoned_sample_costs_one_update_and_is_named(
    name: str, poison: tuple[dict[str, Path], int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, token = poison
    with poisoned(monkeypatch, token):
        assert launch("pretrain", name, files, tmp_path / "run", "--max-steps", "14", *QUICK) == 0
    assert rungs(tmp_path / "run") == ["skip"]
    step = next(record for record in records(tmp_path / "run", "recovery"))
    # one row of a step is named, not the step, and the poisoned line is in it
    assert [sample for sample in step["samples"] if sample.endswith("/poisoned.jsonl:61")]
    assert len(step["samples"]) < len(samples_of_step(tmp_path / "run", step["step"]))
    finding = next(f for f in records(tmp_path / "run", "finding") if f["code"] == "loss-not-finite")
    assert "the update was skipped; samples:" in finding["message"]
    assert [record["step"] for record in records(tmp_path / "run") if not record["applied"]] == [step["step"]]


def test_gradients_that_overflow_a_loss_scale_for_good_end_in_fp32(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    json_file = brisk("fp16", tmp_path)
    launch("pretrain", json_file, files, tmp_path / "well", "--max-steps", "80", *QUICK)
    with overflowing(monkeypatch, fp16_only):
        assert launch("pretrain", json_file, files, tmp_path / "ill", "--max-steps", "80", *QUICK) == 0
    assert rungs(tmp_path / "ill") == ["rollback", "fixed-scale", "fp32"]
    taken = json.loads((tmp_path / "ill" / "recovery.json").read_text())["rollbacks"]
    assert [rollback["to_step"] for rollback in taken] == [5, 5, 5]
    assert [rollback["onset"] for rollback in taken] == [9, 9, 9]
    assert end_loss(tmp_path / "ill") == pytest.approx(end_loss(tmp_path / "well"), rel=0.1)
    assert (tmp_path / "ill" / "final").exists()


@pytest.mark.parametrize("name", ["fp16.json", "fp16_zero3_offload.json"])
def test_the_ladder_stops_at_the_rung_that_heals(
    name: str, files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with overflowing(monkeypatch, dynamic_only):
        assert launch("pretrain", name, files, tmp_path, "--max-steps", "16", *QUICK) == 0
    assert rungs(tmp_path) == ["rollback", "fixed-scale"]
    assert records(tmp_path)[-1]["loss_scale"] == 1024.0


@pytest.mark.parametrize("name", ["fp32", "bf16_zero2"])
def test_a_spike_is_rolled_back_and_its_data_left_out(
    name: str, files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    json_file = brisk(name, tmp_path)
    options = ["--max-steps", "75", *QUICK, "--set", "health.spike_steps=64"]
    launch("pretrain", json_file, files, tmp_path / "well", *options)
    with spiking(monkeypatch):
        assert launch("pretrain", json_file, files, out, *options) == 0
    assert rungs(out) == ["rollback"]
    taken = json.loads((out / "recovery.json").read_text())["rollbacks"][0]
    assert (taken["trouble"], taken["onset"], taken["to_step"]) == ("spike", 46, 40)
    assert taken["skipped"] == [44, taken["trouble_step"] - 1]
    assert end_loss(out) == pytest.approx(end_loss(tmp_path / "well"), rel=0.1)
    # the record of samples knows what was left out
    assert samples_of_step(out, 44) == samples_of_step(tmp_path / "well", 44)
    width = taken["skipped"][1] - taken["skipped"][0] + 1
    assert samples_of_step(out, 45) == samples_of_step(tmp_path / "well", 45 + width)


def test_a_run_resumed_after_a_rollback_equals_the_one_that_went_on(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["--max-steps", "30", *QUICK]
    original = loop.save

    def stop_at_twenty(run: loop.Run, best: bool = False) -> None:
        original(run, best)
        run.stop.requested |= run.progress.step == 20

    with overflowing(monkeypatch, dynamic_only):
        launch("pretrain", "fp16.json", files, tmp_path / "whole", *options)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loop, "save", stop_at_twenty)
            launch("pretrain", "fp16.json", files, tmp_path / "parts", *options)
        assert records(tmp_path / "parts")[-1]["step"] == 21
        launch("pretrain", "fp16.json", files, tmp_path / "parts", *options, "--resume")
    whole = {row[0]: row for row in curve(tmp_path / "whole")}
    parts = {row[0]: row for row in curve(tmp_path / "parts")}
    assert parts == whole
    finals = [load_model(tmp_path / part)[0].state_dict() for part in ("whole", "parts")]
    assert all(torch.equal(finals[0][key], finals[1][key]) for key in finals[0])


def test_broken_weights_are_never_saved_and_the_run_begins_again(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    update, done = Engine.update, []

    def breaking(self: Engine) -> Any:
        result = update(self)
        if self.ds.global_steps == 3 and not done:
            done.append(True)
            with torch.no_grad():
                next(iter(self.module.parameters()))[0] = torch.nan
        return result

    monkeypatch.setattr(Engine, "update", breaking)
    options = ["--max-steps", "8", *QUICK, "--set", "recovery.parameter_check_steps=2"]
    assert launch("pretrain", "fp32.json", files, tmp_path, *options) == 0
    taken = json.loads((tmp_path / "recovery.json").read_text())["rollbacks"]
    assert [(r["trouble"], r["to_step"], r["trouble_step"]) for r in taken] == [("parameters", 0, 4)]
    assert "embed_tokens" in taken[0]["message"]
    assert end_loss(tmp_path) < 7


def test_when_nothing_helps_the_run_ends_with_a_report(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with overflowing(monkeypatch, lambda engine: True):
        assert launch("pretrain", "fp32.json", files, tmp_path, "--max-steps", "20", *QUICK) == 1
    report = json.loads((tmp_path / "post_mortem.json").read_text())
    assert report["step"] == 11 and report["trouble"]["onset"] == 9
    assert [rollback["rung"] for rollback in report["rollbacks"]] == ["rollback"]
    assert report["samples"] and report["remedies"] and report["history"]
    assert [f["code"] for f in records(tmp_path, "finding")][-1] == "run-failed"
    assert not (tmp_path / "final").exists()
    assert (tmp_path / (tmp_path / "latest").read_text().strip()).is_dir()


def test_a_damaged_record_of_rollbacks_is_refused(files: dict[str, Path], tmp_path: Path) -> None:
    launch("pretrain", "fp32.json", files, tmp_path, "--max-steps", "2")
    (tmp_path / "recovery.json").write_text("{")
    with pytest.raises(UserError, match="which data this run has left out"):
        launch("pretrain", "fp32.json", files, tmp_path, "--max-steps", "4", "--resume")


def test_a_new_run_sets_an_earlier_one_aside(files: dict[str, Path], tmp_path: Path) -> None:
    launch("pretrain", "fp32.json", files, tmp_path, "--max-steps", "4")
    launch("pretrain", "fp32.json", files, tmp_path, "--max-steps", "2")
    assert (tmp_path / "latest").read_text().strip() == "checkpoints/step-00000002"
    assert (tmp_path / "earlier-1" / "checkpoints" / "step-00000004").is_dir()
    assert (tmp_path / "earlier-1" / "final" / "config.json").is_file()
    codes = [finding["code"] for finding in records(tmp_path, "finding")]
    assert "earlier-run" in codes


ILLNESSES = {  # how many steps, the JSON, and the rungs that heal it
    "poison": ("10", "fp32.json", ["skip"]),
    "overflow": ("20", "fp16.json", ["rollback", "fixed-scale", "fp32"]),
    "spike": ("70", "fp32.json", ["rollback"]),
}


def fall_ill(files: dict[str, Path], token: int, directory: Path) -> list[int]:
    """On one of two ranks: a run for each illness, all in one pair of processes; the exit codes."""
    codes = []
    for name, (steps, config, _) in ILLNESSES.items():
        words = ["--deepspeed_config", str(DS_CONFIGS / config), "--output-dir", str(directory / name)]
        words += ["--emulate-fp16", "--train-file", str(files["pretrain"]), "--tokenizer", str(files["tokenizer"])]
        words += ["--max-steps", steps, *SMALL, *QUICK, "--set", "health.spike_steps=64"]
        words += ["--set", "heartbeat={enabled: false}"]  # which takes a run that has ended for its processes' end
        with pytest.MonkeyPatch.context() as patch, illness(name, patch, token):
            codes.append(run("pretrain", parse("pretrain", words)))
    return codes


def test_two_ranks_climb_the_ladder_together(poison: tuple[dict[str, Path], int], tmp_path: Path) -> None:
    files, token = poison
    assert run_ranks(2, fall_ill, files, token, tmp_path) == [[0, 0, 0]] * 2
    for name, (_, _, expected) in ILLNESSES.items():
        assert rungs(tmp_path / name) == expected
        assert math.isfinite(end_loss(tmp_path / name)) and (tmp_path / name / "final").exists()
