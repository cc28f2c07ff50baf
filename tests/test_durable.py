"""A durable write: the old content or the new, on the disk before it has the name."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from minimind.durable import write_durably


def test_content_is_synced_then_named_then_the_name_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "latest"
    events: list[tuple[Any, ...]] = []
    fsync, replace = os.fsync, os.replace

    def watched_fsync(descriptor: int) -> None:
        status = os.fstat(descriptor)
        events.append(("sync", status.st_ino, None if stat.S_ISDIR(status.st_mode) else status.st_size))
        fsync(descriptor)

    def watched_replace(source: Path, target: Path) -> None:
        events.append(("name", source.stat().st_ino, target))
        replace(source, target)

    path.write_text("old")
    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(os, "replace", watched_replace)
    write_durably(path, "new 山")
    inode, directory = path.stat().st_ino, tmp_path.stat().st_ino
    assert events == [("sync", inode, 7), ("name", inode, path), ("sync", directory, None)]
    assert path.read_text(encoding="utf-8") == "new 山"
    assert [entry.name for entry in tmp_path.iterdir()] == ["latest"]


def test_a_failure_leaves_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "latest"
    path.write_text("old")

    def full(_: int) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_durably(path, "new")
    assert path.read_text() == "old"
