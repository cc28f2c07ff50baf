"""What a process can tell of itself."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from minimind.training.process.host import anonymous_memory, settled_garbage, timed


def test_anonymous_memory_is_read_in_bytes_or_not_at_all(tmp_path: Path) -> None:
    status = tmp_path / "status"
    status.write_text("VmRSS:\t  900 kB\nRssAnon:\t  123 kB\n")
    assert anonymous_memory(status) == 123 * 1024
    assert anonymous_memory(tmp_path / "none") is None


def test_waits_are_counted_from_the_first_step() -> None:
    times = iter([0.0, 1.0, 5.0, 5.5, 9.0])
    waits: dict[int, float] = {}
    assert list(timed("ab", waits, 7, lambda: next(times))) == ["a", "b"]
    assert waits == {7: 1.0, 8: 0.5}


def test_what_exists_is_frozen_during_the_run_only() -> None:
    frozen = []

    @settled_garbage()
    def failing_run() -> None:
        frozen.append(gc.get_freeze_count())
        assert gc.isenabled()
        raise KeyError

    with pytest.raises(KeyError):
        failing_run()
    assert frozen[0] > 1000
    assert gc.get_freeze_count() == 0  # a run that fails is thawed too
