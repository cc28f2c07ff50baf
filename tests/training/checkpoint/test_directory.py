"""Checkpoints on disk, of a fake engine: complete or ignored, never the wrong one deleted."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from minimind.base.errors import UserError
from minimind.training.checkpoint import directory as checkpoints
from minimind.training.checkpoint.directory import (
    BEST,
    LATEST,
    all_checkpoints,
    clean_up,
    directories,
    find_checkpoint,
    is_ours,
    point,
    point_back,
    pointed,
    problem,
    publish,
    read_about,
    remove_debris,
    resolve_resume,
    restore_best,
)
from tests.support import save_steps

FILES = {"engine/mp_rank_00_model_states.pt", "engine/zero_pp_rank_0_mp_rank_00_optim_states.pt", "zero_to_fp32.py"}


def test_a_checkpoint_is_complete_and_latest_names_it(tmp_path: Path) -> None:
    save_steps(tmp_path, 10)
    path = tmp_path / "checkpoints" / "step-00000010"
    assert problem(path) is None
    assert pointed(tmp_path / LATEST) == path
    assert read_about(path) == {"world_size": 1}
    assert set(json.loads((path / "manifest.json").read_text())["files"]) == FILES


def damage_file(file: Path, damage: str) -> None:
    content = bytearray(file.read_bytes())
    if damage == "cut":
        file.write_bytes(content[:-1])
    elif damage == "empty":
        file.write_bytes(b"")
    elif damage == "remove":
        file.unlink()
    else:
        content[len(content) // 2] ^= 1
        file.write_bytes(content)


@pytest.mark.parametrize("name", sorted(FILES | {"manifest.json"}))
@pytest.mark.parametrize("damage", ["cut", "empty", "flip", "remove"])
def test_damage_is_found_and_the_one_before_is_used(tmp_path: Path, name: str, damage: str) -> None:
    save_steps(tmp_path, 10, 20)
    newest = tmp_path / "checkpoints" / "step-00000020"
    damage_file(newest / name, damage)
    checkpoint, findings = find_checkpoint(tmp_path)
    assert checkpoint is not None and checkpoint.step == 10
    assert [finding.code for finding in findings] == ["checkpoint-damaged"]
    assert "step-00000020 is not used" in findings[0].message
    assert ("manifest" if name == "manifest.json" else name) in findings[0].message
    with pytest.raises(UserError, match="step-00000020: this checkpoint can't be used"):
        resolve_resume(newest)


def test_a_flipped_bit_anywhere_in_the_manifest_is_found_or_harmless(tmp_path: Path) -> None:
    save_steps(tmp_path, 10)
    path = tmp_path / "checkpoints" / "step-00000010"
    text = (path / "manifest.json").read_bytes()
    for place in range(len(text)):
        flipped = bytearray(text)
        flipped[place] ^= 1 << (place % 8)
        (path / "manifest.json").write_bytes(flipped)
        if problem(path) is None:  # white space for white space
            assert json.loads(flipped) == json.loads(text)


def test_nothing_to_resume_is_an_error_not_a_fresh_start(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no complete checkpoint"):
        resolve_resume(tmp_path)


def test_clean_up_spares_newest_best_and_protected(tmp_path: Path) -> None:
    save_steps(tmp_path, 1, 2, 3, 4, 5)
    directory = tmp_path / "checkpoints"
    point(tmp_path / BEST, directory / "step-00000002")
    removed = clean_up(tmp_path, keep=1, protected={directory / "step-00000003"})
    assert [checkpoint.step for checkpoint in all_checkpoints(tmp_path)] == [5, 3, 2]
    assert {path.name for path in removed} == {"step-00000004", "step-00000001"}
    (tmp_path / LATEST).unlink()
    clean_up(tmp_path, keep=0, protected=set())
    assert [checkpoint.step for checkpoint in all_checkpoints(tmp_path)] == [5, 2]


def test_clean_up_spares_latest_where_it_is_not_the_newest_by_step(tmp_path: Path) -> None:
    save_steps(tmp_path, 10, 20, 30)  # then the run was resumed from step 10, and saved at 15
    save_steps(tmp_path, 15, keep=1)
    assert [checkpoint.step for checkpoint in all_checkpoints(tmp_path)] == [30, 15]


def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    save_steps(tmp_path, 10)
    path = tmp_path / "checkpoints" / "step-00000010"
    damage_file(path / "engine" / "mp_rank_00_model_states.pt", "flip")
    save_steps(tmp_path, 10)
    assert problem(path) is None
    assert [child.name for child in path.parent.iterdir()] == ["step-00000010"]


def test_a_step_that_can_not_be_replaced_keeps_its_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_steps(tmp_path, 10)
    rename, path = os.rename, tmp_path / "checkpoints" / "step-00000010"

    def failing(at: int) -> Callable[[Path, Path], None]:
        calls = count(1)

        def rename_or_fail(source: Path, target: Path) -> None:
            if next(calls) == at:
                raise OSError(errno.EIO, "Input/output error")
            rename(source, target)

        return rename_or_fail

    for at in (1, 2):
        monkeypatch.setattr(checkpoints.os, "rename", failing(at))
        ready = directories(tmp_path, 10)[0]
        ready.mkdir()
        with pytest.raises(OSError, match="Input/output error"):
            publish(ready, path, {"files": {}})
        assert problem(path) is None and read_about(path) == {"world_size": 1}
        remove_debris(tmp_path)


def test_no_pointer_names_what_is_about_to_go(tmp_path: Path) -> None:
    save_steps(tmp_path, 1, 2, 3)
    found = {checkpoint.step: checkpoint for checkpoint in all_checkpoints(tmp_path)}

    def after(best: int, good: int | None) -> list[str | None]:
        point(tmp_path / LATEST, found[3].path)
        point(tmp_path / BEST, found[best].path)
        point_back(tmp_path, found[good] if good else None)
        targets = (pointed(tmp_path / name) for name in (LATEST, BEST))
        return [target and target.name for target in targets]

    names = {step: checkpoint.path.name for step, checkpoint in found.items()}
    assert after(best=1, good=2) == [names[2], names[1]]
    assert after(best=2, good=2) == [names[2], names[2]]  # the one that is gone back to
    assert after(best=3, good=2) == [names[2], None]
    assert after(best=3, good=3) == [names[3], names[3]]
    assert after(best=1, good=None) == [None, None]


def test_best_is_what_the_run_says_it_is(tmp_path: Path) -> None:
    save_steps(tmp_path, 1, 2)
    first = all_checkpoints(tmp_path)[-1].path
    restore_best(tmp_path, 1)
    assert pointed(tmp_path / BEST) == first
    restore_best(tmp_path, 9)  # its checkpoint was never finished
    assert pointed(tmp_path / BEST) == first
    restore_best(tmp_path, None)
    assert pointed(tmp_path / BEST) is None


def test_pointers_are_relative_so_a_run_can_be_moved(tmp_path: Path) -> None:
    save_steps(tmp_path / "a", 10)
    shutil.move(tmp_path / "a", tmp_path / "b")
    assert pointed(tmp_path / "b" / LATEST) == tmp_path / "b" / "checkpoints" / "step-00000010"


@pytest.mark.parametrize("kind", ["model", "optim"])
@pytest.mark.parametrize("prefix", ["", "bf16_"])
def test_the_files_of_every_stage_are_a_saves_own(kind: str, prefix: str) -> None:
    """At stage 3 each rank writes model states too; such a name elsewhere, or a likeness of it, is not ours."""
    rank = f"zero_pp_rank_11_mp_rank_00_{kind}_states.pt"
    assert is_ours(f"engine/{rank}") and is_ours(f"engine/{prefix}zero_pp_rank_0_mp_rank_00_optim_states.pt")
    assert not any(map(is_ours, (rank, f"engine/a/{rank}", f"engine/{rank}.bak", f"engine/x{rank}")))
