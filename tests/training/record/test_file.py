"""metrics.jsonl survives what a run survives."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from minimind.training.record.file import MetricsFile, cut_back, read_metrics, to_line


def _train(step: int, loss: float = 1.0) -> dict[str, object]:
    return {"kind": "train", "step": step, "loss": loss}


def _write(path: Path, *records: dict[str, object]) -> None:
    path.write_bytes(b"".join(to_line(record) for record in records))


def _steps(path: Path) -> list[tuple[str, int]]:
    return [(r["kind"], r["step"]) for r in read_metrics(path)]


@pytest.mark.parametrize(("value", "name"), [(float("nan"), "nan"), (float("inf"), "inf"), (float("-inf"), "-inf")])
def test_non_finite_is_null_and_named(value: float, name: str) -> None:
    line = to_line({"kind": "train", "loss": value, "lr": 0.5})

    def refuse(literal: str) -> None:
        raise AssertionError(f"{literal} is not JSON")

    record = json.loads(line, parse_constant=refuse)
    assert record == {"kind": "train", "loss": None, "lr": 0.5, "non_finite": {"loss": name}}


def test_text_stays_readable() -> None:
    assert "损失" in to_line({"kind": "finding", "message": "损失"}).decode()


def test_torn_and_foreign_lines_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(to_line(_train(1)) + b"\xff\xfe\n" + b"[1]\n" + b"\n" + to_line(_train(2)) + b'{"kind": "tra')
    assert _steps(path) == [("train", 1), ("train", 2)]


def test_resume_continues_the_uninterrupted_file(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole.jsonl", tmp_path / "cut.jsonl"
    records = [{"kind": "run", "step": 0}]
    for step in range(1, 7):
        records.append(_train(step))
        if step % 2 == 0:
            records.append({"kind": "eval", "step": step, "loss": 2.0})
    _write(whole, *records)
    cut.write_bytes(whole.read_bytes()[:-20])  # killed while the last line was written
    file = MetricsFile(cut, resumed_step=4)
    for record in records[-3:]:
        file.append(record)
    file.close()
    assert cut.read_bytes() == whole.read_bytes()


def test_cut_back_keeps_findings_before_the_run_and_at_the_step(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    early, at, late = ({"kind": "finding", "step": step} for step in (None, 2, 3))
    _write(path, {"kind": "run", "step": 0}, early, _train(1), _train(2), at, _train(3), late)
    assert cut_back(path, 2) == 2
    assert [r["kind"] for r in read_metrics(path)] == ["run", "finding", "train", "train", "finding"]


def test_cut_back_keeps_the_losses_by_source_of_the_step(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    at, late = ({"kind": "source", "step": step, "source": "a", "loss": 1.0} for step in (2, 3))
    _write(path, _train(1), _train(2), at, _train(3), late)
    cut_back(path, 2)
    assert _steps(path) == [("train", 1), ("train", 2), ("source", 2)]


def test_cut_back_to_the_start(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    _write(path, {"kind": "run", "step": 0}, _train(1), _train(2))
    cut_back(path, 0)
    assert _steps(path) == [("run", 0)]


def test_cut_back_after_a_rollback_keeps_the_second_pass(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    _write(path, *(_train(s) for s in (1, 2, 3, 4)), {"kind": "finding", "step": 4}, *(_train(s) for s in (3, 4, 5)))
    cut_back(path, 4)
    assert [s for kind, s in _steps(path) if kind == "train"] == [1, 2, 3, 4, 3, 4]


def test_cut_back_keeps_good_lines_after_a_torn_one(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(to_line(_train(1)) + b'{"kind": "tr\n' + to_line(_train(2)) + to_line(_train(3)))
    cut_back(path, 2)
    assert _steps(path) == [("train", 1), ("train", 2)]


def test_a_kill_inside_cut_back_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "metrics.jsonl"
    _write(path, _train(1), _train(2))
    before = path.read_bytes()
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        cut_back(path, 1)
    assert path.read_bytes() == before


def test_a_new_run_keeps_the_old_file_aside(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    for step in (1, 2, 3):
        file = MetricsFile(path, resumed_step=None)
        file.append(_train(step))
        file.close()
    assert _steps(path) == [("train", 3)]
    assert _steps(tmp_path / "metrics.1.jsonl") == [("train", 1)]
    assert _steps(tmp_path / "metrics.2.jsonl") == [("train", 2)]


def test_kill_9_loses_nothing_that_was_appended(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    code = (
        "import os, signal\nfrom pathlib import Path\nfrom minimind.training.record.file import MetricsFile\n"
        f"file = MetricsFile(Path({str(path)!r}), None)\n"
        "for step in range(50): file.append({'kind': 'train', 'step': step})\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
    assert [step for _, step in _steps(path)] == list(range(50))


def test_a_short_write_loses_only_its_own_line(tmp_path: Path) -> None:
    class ShortOnce:
        def __init__(self, file: object) -> None:
            self.file, self.calls = file, 0

        def write(self, data: bytes) -> int:
            self.calls += 1
            return self.file.write(data[:7] if self.calls == 2 else data)  # type: ignore[attr-defined]

        def close(self) -> None:
            self.file.close()  # type: ignore[attr-defined]

    path = tmp_path / "metrics.jsonl"
    file = MetricsFile(path, None)
    file._file = ShortOnce(file._file)  # type: ignore[assignment]
    file.append(_train(1))
    with pytest.raises(OSError, match="only 7 of"):
        file.append(_train(2))
    file.append(_train(3))
    file.close()
    assert _steps(path) == [("train", 1), ("train", 3)]


def test_a_name_that_is_no_utf8_is_written_and_read(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(to_line({"kind": "finding", "message": "中 \udcff"}))
    assert [record["message"] for record in read_metrics(file)] == ["中 \udcff"]
