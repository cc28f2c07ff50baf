"""Checkpoints with a fake engine: complete or ignored, never the wrong one deleted."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from minimind.errors import UserError
from minimind.training import checkpoints
from minimind.training.checkpoints import (
    BEST,
    LATEST,
    all_checkpoints,
    clean_up,
    find_checkpoint,
    point,
    pointed,
    problem,
    read_about,
    resolve_resume,
    save_checkpoint,
)


class FakeEngine:
    """One rank that writes two files; ``fail_after`` bytes of the second raise as a full disk would."""

    rank = 0

    def __init__(self, fail: bool = False) -> None:
        self.fail = fail

    def save(self, directory: Path, state: dict[str, Any]) -> None:
        (directory / "engine").mkdir()
        (directory / "engine" / "model.pt").write_bytes(b"m" * 1000)
        if self.fail:
            raise OSError(28, "No space left on device")
        (directory / "engine" / "optim.pt").write_text(json.dumps(state))

    def load(self, directory: Path) -> dict[str, Any]:
        raise AssertionError("not used")

    def barrier(self) -> None:
        pass


def save(run: Path, *steps: int) -> None:
    for step in steps:
        save_checkpoint(FakeEngine(), run, step, {"step": step}, {"world_size": 1})


def test_a_checkpoint_is_complete_and_latest_names_it(tmp_path: Path) -> None:
    save(tmp_path, 10)
    path = tmp_path / "checkpoints" / "step-00000010"
    assert problem(path) is None
    assert pointed(tmp_path / LATEST) == path
    assert read_about(path) == {"world_size": 1}
    assert set(json.loads((path / "manifest.json").read_text())["files"]) == {
        "engine/model.pt",
        "engine/optim.pt",
    }


def test_a_failed_save_leaves_the_last_one_and_latest(tmp_path: Path) -> None:
    save(tmp_path, 10)
    with pytest.raises(OSError, match="No space"):
        save_checkpoint(FakeEngine(fail=True), tmp_path, 20, {}, {})
    assert [checkpoint.step for checkpoint in all_checkpoints(tmp_path)] == [10]
    assert pointed(tmp_path / LATEST) == tmp_path / "checkpoints" / "step-00000010"
    save(tmp_path, 20)  # and the debris is in nobody's way
    assert resolve_resume(tmp_path)[0].step == 20


@pytest.mark.parametrize("damage", ["cut", "flip", "remove", "manifest", "no manifest"])
def test_damage_is_found_and_the_one_before_is_used(tmp_path: Path, damage: str) -> None:
    save(tmp_path, 10, 20)
    newest = tmp_path / "checkpoints" / "step-00000020"
    file = newest / "engine" / "model.pt"
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:-1])
    elif damage == "flip":
        file.write_bytes(b"M" + file.read_bytes()[1:])
    elif damage == "remove":
        file.unlink()
    elif damage == "manifest":
        (newest / "manifest.json").write_text("{")
    else:
        (newest / "manifest.json").unlink()
    checkpoint, findings = find_checkpoint(tmp_path)
    assert checkpoint is not None and checkpoint.step == 10
    assert [finding.code for finding in findings] == ["checkpoint-damaged"]
    assert "step-00000020 is not used" in findings[0].message
    with pytest.raises(UserError, match="step-00000020: this checkpoint can't be used"):
        resolve_resume(newest)


def test_nothing_to_resume_is_an_error_not_a_fresh_start(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no complete checkpoint"):
        resolve_resume(tmp_path)


def test_clean_up_spares_newest_best_and_protected(tmp_path: Path) -> None:
    save(tmp_path, 1, 2, 3, 4, 5)
    directory = tmp_path / "checkpoints"
    point(tmp_path / BEST, directory / "step-00000002")
    removed = clean_up(tmp_path, keep=1, protected={directory / "step-00000003"})
    assert [checkpoint.step for checkpoint in all_checkpoints(tmp_path)] == [5, 3, 2]
    assert {path.name for path in removed} == {"step-00000004", "step-00000001"}


def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    save(tmp_path, 10)
    save_checkpoint(FakeEngine(), tmp_path, 10, {"again": True}, {})
    path = tmp_path / "checkpoints" / "step-00000010"
    assert problem(path) is None and "again" in (path / "engine" / "optim.pt").read_text()


def test_killed_between_files_and_rename_is_not_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, 10)

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoints.os, "rename", killed)
    with pytest.raises(KeyboardInterrupt):
        save(tmp_path, 20)
    assert resolve_resume(tmp_path)[0].step == 10


def test_pointers_are_relative_so_a_run_can_be_moved(tmp_path: Path) -> None:
    save(tmp_path / "a", 10)
    shutil.move(tmp_path / "a", tmp_path / "b")
    assert pointed(tmp_path / "b" / LATEST) == tmp_path / "b" / "checkpoints" / "step-00000010"
