"""Room for checkpoints, on the right file system."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from minimind.base.errors import UserError
from minimind.training.checkpoint import space


def disk(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    monkeypatch.setattr(space, "free_bytes", lambda directory: free)


def test_a_save_needs_its_bytes_and_a_margin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk(monkeypatch, 107 * space.MB)
    space.require_space(tmp_path, 100 * space.MB)
    disk(monkeypatch, 107 * space.MB - 1)
    with pytest.raises(OSError, match="107 MB needed, 107 MB free"):
        space.require_space(tmp_path, 100 * space.MB)


def test_before_a_run_one_must_fit_and_two_should(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = 100 * space.MB
    disk(monkeypatch, 214 * space.MB)
    assert space.room_for_saves(tmp_path, size) == []
    disk(monkeypatch, 213 * space.MB)
    (finding,) = space.room_for_saves(tmp_path, size)
    assert finding.code == "disk-nearly-full" and "107 MB and 213 MB are free" in finding.message
    (tmp_path / "step-00000010").mkdir()  # one is there: only its successor must fit
    assert space.room_for_saves(tmp_path, size) == []
    disk(monkeypatch, 106 * space.MB)
    with pytest.raises(UserError, match="107 MB and 106 MB are free; free space"):
        space.room_for_saves(tmp_path, size)


def test_the_file_system_is_that_of_the_directory_behind_a_link(tmp_path: Path) -> None:
    memory = Path("/dev/shm")
    if not memory.is_dir() or shutil.disk_usage(memory).total == shutil.disk_usage(tmp_path).total:
        pytest.skip("needs a second file system")
    (tmp_path / "run").symlink_to(memory)
    seen = space.free_bytes(tmp_path / "run" / "not there yet" / "checkpoints")
    free = [shutil.disk_usage(place).free for place in (memory, tmp_path)]
    assert abs(seen - free[0]) < abs(seen - free[1])
