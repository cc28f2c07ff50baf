"""The loop's own decisions, in whole runs on tiny data: what is evaluated, saved, called best, and refused."""

from __future__ import annotations

import json
import math
import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from minimind.config.health import HealthConfig
from minimind.config.recovery import RecoveryConfig
from minimind.inference.generation import load_model
from minimind.training.checkpoint.directory import all_checkpoints
from minimind.training.engine.engine import Engine
from minimind.training.health.trouble import Watch
from minimind.training.record.recorder import Recorder
from minimind.training.run import loop
from minimind.training.run.evaluation import Evaluation
from tests.training.injections import overflowing
from tests.training.run.test_main import _one_rank_with_its_signals as _signals  # noqa: F401 (an autouse fixture)
from tests.training.run.test_main import evaluations, launch, records


def settings(*words: str) -> list[str]:
    return [part for word in words for part in ("--set", word)]


def go(files: dict[str, Path], out: Path, steps: int, *words: str, more: tuple[str, ...] = ()) -> int:
    """An fp32 run that saves and evaluates only where ``words`` say so."""
    rare = settings("save_steps=50", "eval_steps=50", "recovery.rewarmup_steps=2", *words)
    return launch("pretrain", "fp32.json", files, out, "--max-steps", str(steps), *rare, *more)


def scripted(patch: pytest.MonkeyPatch, losses: dict[int, float]) -> list[int]:
    """Held-out losses by step instead of real ones; the steps that were evaluated."""
    seen: list[int] = []

    def evaluate(model: Any, batches: Any, device: Any, step: int, *rest: Any, **options: Any) -> Evaluation:
        seen.append(step)
        return Evaluation(step, losses[step], 100, None)

    patch.setattr(loop, "evaluate", evaluate)
    return seen


def best_step(out: Path) -> int:
    return int((out / "best").read_text().strip()[-8:])


def test_an_evaluation_without_a_result_disables_nothing(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(monkeypatch, {1: math.nan, 2: 5.0, 3: math.inf, 4: 4.0, 5: 4.5})
    assert go(files, tmp_path, 5, "eval_steps=1", "early_stopping_patience=2") == 0
    assert [record["best"] for record in records(tmp_path, "eval")] == [False, True, False, True, False]
    assert best_step(tmp_path) == 4
    assert [record["reason"] for record in records(tmp_path, "end")] == ["finished"]
    assert "evaluation-not-finite" in [finding["code"] for finding in records(tmp_path, "finding")]
    assert [checkpoint.step for checkpoint in all_checkpoints(tmp_path)] == [5, 4, 2]


def test_a_gain_starts_the_count_for_the_early_stop_again(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = scripted(monkeypatch, {1: 5.0, 2: 6.0, 3: 4.0, 4: 4.5, 5: 4.5, 6: 1.0})
    assert go(files, tmp_path, 6, "eval_steps=1", "early_stopping_patience=2") == 0
    assert seen == [1, 2, 3, 4, 5] and best_step(tmp_path) == 3


def test_there_is_an_evaluation_at_the_end_wherever_it_falls(files: dict[str, Path], tmp_path: Path) -> None:
    assert go(files, tmp_path, 5, "eval_steps=2") == 0
    assert [record["step"] for record in records(tmp_path, "eval")] == [2, 4, 5]
    assert (tmp_path / "latest").read_text().strip() == "checkpoints/step-00000005"


def break_weights(engine: Engine) -> None:
    with torch.no_grad():
        next(iter(engine.module.parameters()))[0] = torch.nan


@pytest.fixture
def snapshots(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The steps of which a snapshot was taken; none of them may be of broken weights."""
    steps: list[int] = []
    original = Engine.snapshot

    def watched(self: Engine, state: dict[str, Any]) -> Any:
        assert not self.broken_parameters()
        steps.append(self.ds.global_steps)
        return original(self, state)

    monkeypatch.setattr(Engine, "snapshot", watched)
    return steps


def after_update(patch: pytest.MonkeyPatch, step: int) -> None:
    """Once, the weights are broken when ``step`` has been applied."""
    update, done = Engine.update, []

    def breaking(self: Engine) -> Any:
        result = update(self)
        if self.ds.global_steps == step and not done:
            done.append(step)
            break_weights(self)
        return result

    patch.setattr(Engine, "update", breaking)


def in_evaluation(patch: pytest.MonkeyPatch, step: int, stop: bool) -> None:
    """Once, the weights are broken during the evaluation at ``step``, whose loss shows nothing of it."""
    until_stop, evaluate, done = loop.until_stop, loop.evaluate, []

    def breaking(run: loop.Run) -> Any:
        if run.progress.step == step and not done:
            done.append(step)
            break_weights(run.engine)
            if stop:
                os.kill(os.getpid(), signal.SIGTERM)
        return until_stop(run)

    def falling(*arguments: Any, **options: Any) -> Evaluation:
        result = evaluate(*arguments, **options)
        return Evaluation(result.step, 5.0 - result.step / 10, result.num_tokens, None)

    patch.setattr(loop, "until_stop", breaking)
    patch.setattr(loop, "evaluate", falling)


PATHS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], list[str], list[int], str]] = {
    # how they break, settings, steps saved, how the run ends
    "planned": (lambda patch: after_update(patch, 4), ["save_steps=2"], [2, 4, 5], "finished"),
    "improved": (lambda patch: in_evaluation(patch, 4, False), ["eval_steps=2"], [2, 4, 5], "finished"),
    "a stop": (lambda patch: in_evaluation(patch, 3, True), ["eval_steps=3"], [1], "stopped"),
    "the end": (lambda patch: in_evaluation(patch, 5, False), ["save_steps=2"], [2, 4, 5], "finished"),
    "no cadence": (lambda patch: after_update(patch, 5), ["save_steps=2", "eval_file=[]"], [2, 4, 5], "finished"),
}


@pytest.mark.parametrize("path", PATHS)
def test_no_checkpoint_is_made_of_broken_weights(
    path: str, files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshots: list[int]
) -> None:
    break_them, words, saved, reason = PATHS[path]
    break_them(monkeypatch)
    assert go(files, tmp_path, 5, "recovery.parameter_check_steps=1000", *words) == 0
    assert snapshots == saved
    taken = json.loads((tmp_path / "recovery.json").read_text())["rollbacks"]
    assert [rollback["trouble"] for rollback in taken] == ["parameters"]
    assert "embed_tokens" in taken[0]["message"]
    assert [record["reason"] for record in records(tmp_path, "end")] == [reason]
    assert (tmp_path / "latest").read_text().strip() == f"checkpoints/step-{saved[-1]:08d}"
    assert all(record["best"] for record in records(tmp_path, "eval")) or path != "improved"
    if reason == "finished":
        assert all(weight.isfinite().all() for weight in load_model(tmp_path)[0].state_dict().values())


def test_with_no_rung_left_broken_weights_end_the_run_and_nothing_is_called_good(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshots: list[int]
) -> None:
    in_evaluation(monkeypatch, 4, stop=False)
    assert go(files, tmp_path, 5, "eval_steps=2", "recovery.enabled=false") == 1
    assert snapshots == [2] and best_step(tmp_path) == 2
    assert (tmp_path / "latest").read_text().strip() == "checkpoints/step-00000002"
    assert [finding["code"] for finding in records(tmp_path, "finding")][-1] == "run-failed"
    assert not (tmp_path / "final").exists()


def test_broken_weights_in_a_checkpoint_of_an_earlier_version_are_left_behind(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:  # the last check was at step 2
        after_update(patch, 4)
        sound = loop.check_weights
        patch.setattr(loop, "check_weights", lambda run: run.progress.step > 2 or sound(run))
        scripted(patch, {4: math.nan})
        assert go(files, tmp_path, 4, "save_steps=2") == 0
    newest = tmp_path / "checkpoints" / "step-00000004"
    assert not load_model(newest)[0].output_weight.isfinite().all()
    assert go(files, tmp_path, 4, "save_steps=2", more=("--resume",)) == 0
    taken = json.loads((tmp_path / "recovery.json").read_text())["rollbacks"]
    assert [(rollback["trouble"], rollback["to_step"]) for rollback in taken] == [("parameters", 2)]
    for path in (newest, tmp_path):
        assert all(weight.isfinite().all() for weight in load_model(path)[0].state_dict().values())


def test_all_ranks_learn_of_weights_that_are_broken_on_one() -> None:
    def gather(mine: list[str]) -> list[list[str]]:
        assert mine == []
        return [mine, ["a.weight", "b.weight"], ["a.weight"]]

    engine = SimpleNamespace(broken_parameters=list, control=SimpleNamespace(gather=gather))
    watch = Watch(RecoveryConfig(), HealthConfig(), dynamic_scale=False)
    run: Any = SimpleNamespace(engine=engine, watch=watch, progress=SimpleNamespace(step=7))
    assert not loop.check_weights(run)
    assert watch.trouble.code == "parameters" and watch.trouble.message == "not finite: a.weight, b.weight"


def test_an_evaluation_that_is_cut_short_twice_is_made_up_for_all_the_same(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert go(files, tmp_path / "whole", 4, "eval_steps=2") == 0
    original = loop.until_stop

    def stopping(run: loop.Run) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return original(run)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "until_stop", stopping)
        assert go(files, tmp_path / "parts", 4, "eval_steps=2") == 0
        assert go(files, tmp_path / "parts", 4, "eval_steps=2", more=("--resume",)) == 0
    assert [record["step"] for record in records(tmp_path / "parts")] == [1, 2]
    assert go(files, tmp_path / "parts", 4, "eval_steps=2", more=("--resume",)) == 0
    assert evaluations(tmp_path / "parts") == evaluations(tmp_path / "whole") != []


def test_an_early_stop_that_an_evaluation_missed_is_not_a_step_late(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(monkeypatch, {1: 5.0, 2: 6.0})
    original = loop.evaluate

    def stopping(*arguments: Any, **options: Any) -> Evaluation:
        if arguments[3] == 2:
            raise loop.Interrupted
        return original(*arguments, **options)

    words = ("eval_steps=1", "early_stopping_patience=1")
    with monkeypatch.context() as patch:
        patch.setattr(loop, "evaluate", stopping)
        assert go(files, tmp_path, 4, *words) == 0
    assert go(files, tmp_path, 4, *words, more=("--resume",)) == 0
    assert [record["step"] for record in records(tmp_path)] == [1, 2]
    assert records(tmp_path, "end")[-1]["reason"] == "early-stop"


def test_while_a_spike_is_open_the_checkpoint_from_before_it_is_kept(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_onset(self: Watch) -> int | None:
        return 4 if len(self.losses) >= 4 else None

    monkeypatch.setattr(Watch, "open_onset", open_onset)
    assert go(files, tmp_path, 6, "save_steps=1", "save_total_limit=2", "eval_file=[]") == 0
    assert [checkpoint.step for checkpoint in all_checkpoints(tmp_path)] == [6, 5, 2]


def test_skips_in_a_row_are_not_left_until_the_next_log_line(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with overflowing(monkeypatch, lambda engine: True):  # from step 9 on
        words = ("logging_steps=50", "recovery.non_finite_patience=3", "recovery.enabled=false")
        assert go(files, tmp_path, 20, *words, "eval_file=[]") == 1
    report = json.loads((tmp_path / "post_mortem.json").read_text())
    assert (report["step"], report["trouble"]["onset"]) == (11, 9)


def test_evaluations_and_saves_are_left_out_of_the_pace(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    for owner, name in ((loop, "train_step"), (loop, "evaluate_now"), (loop, "save"), (Recorder, "restart_clock")):
        original = getattr(owner, name)

        def watched(*arguments: Any, name: str = name, original: Any = original, **options: Any) -> Any:
            events.append(name)
            return original(*arguments, **options)

        monkeypatch.setattr(owner, name, watched)
    assert go(files, tmp_path, 5, "logging_steps=50", "save_steps=2", "eval_steps=3") == 0
    steps = " ".join(events).split("train_step")[1:]
    assert [step.split() for step in steps] == [
        ["restart_clock"],  # the first step is reported at once
        ["restart_clock", "save", "restart_clock"],
        ["restart_clock", "evaluate_now", "save", "restart_clock"],  # the first evaluation is the best
        ["restart_clock", "save", "restart_clock"],
        ["restart_clock", "evaluate_now", "save", "restart_clock"],
    ]


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("by_time", [True, False])
def test_rank_0_alone_asks_for_a_planned_checkpoint(rank: int, by_time: bool) -> None:
    clock = SimpleNamespace(due=lambda planned, writing: planned and not writing)
    run: Any = SimpleNamespace(
        rank=rank,
        plan=SimpleNamespace(save_steps=10, save_by_time=by_time),
        save_clock=clock,
        saver=SimpleNamespace(writing=by_time),  # which the clock heeds, and an explicit save_steps does not
    )
    assert not loop.save_wanted(run, 9)
    assert loop.save_wanted(run, 10) == (rank == 0 and not by_time)
