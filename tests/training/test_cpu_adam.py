"""A compilation is announced, a dead lock is removed, a missing compiler is one clear error."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from minimind.errors import UserError
from minimind.training.cpu_adam import announce_build


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    directory = tmp_path / "py311_cpu" / "cpu_adam"
    directory.mkdir(parents=True)
    return directory


def said() -> list[str]:
    lines: list[str] = []
    announce_build(lines.append)
    return lines


def test_a_first_build_is_announced_with_its_length(cache: Path) -> None:
    assert [line for line in said() if "75 seconds" in line]


def test_a_cached_build_says_nothing(cache: Path) -> None:
    (cache / "cpu_adam.so").touch()
    assert said() == []


def test_a_dead_lock_is_removed_and_a_live_one_is_named(cache: Path) -> None:
    (cache / "cpu_adam.so").touch()
    lock = cache / "lock"
    lock.touch()
    assert str(lock) in said()[0] and lock.exists()
    hours_ago = time.time() - 3 * 3600
    os.utime(lock, (hours_ago, hours_ago))
    assert "removing" in said()[0] and not lock.exists()


def test_no_compiler_is_one_clear_error(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(UserError, match="no C\\+\\+ compiler"):
        announce_build(print)
