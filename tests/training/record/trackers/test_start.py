"""Several trackers of one run: begun with its settings, and under the same ids after a resume."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from minimind.base.findings import Finding
from minimind.config.run import TRACKERS, load_run_config
from minimind.training.record.metrics import Metrics
from minimind.training.record.trackers.start import start_trackers
from minimind.training.record.trackers.tracker import Beginning
from tests.training.record.test_metrics import STEP, Held


class Kept:
    """A tracker that keeps what it hears."""

    def __init__(self, beginning: Beginning) -> None:
        self.beginning = beginning
        self.rows: list[tuple[int, Mapping[str, float]]] = []
        self.failed: bool | None = None

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        self.rows.append((step, numbers))

    def alert(self, finding: Finding) -> None: ...

    def findings(self) -> list[Finding]:
        return []

    def finish(self, failed: bool = False) -> None:
        self.failed = failed


@pytest.fixture(autouse=True)
def _table(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "two"):
        monkeypatch.setitem(TRACKERS, name, f"{__name__}:Kept")


def _config(directory: Path, names: str) -> Any:
    return load_run_config(None, [f"report_to={names}"], {"output_dir": directory})


def test_each_hears_the_same_numbers_and_the_memory(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path, 0, _config(tmp_path, "one,two"), 40)
    metrics.step(STEP)
    metrics.evaluation(Held(2.5), 10)
    metrics.close(None, reason="failed")
    first, second = trackers = metrics._trackers
    assert isinstance(first, Kept) and isinstance(second, Kept) and len(trackers) == 2
    assert first.rows == second.rows and first.failed
    assert first.rows[0][1]["train/loss"] == 2.0 and first.rows[1][1]["eval/loss"] == 2.5


def test_a_resume_goes_on_under_the_same_ids_and_a_new_run_does_not(tmp_path: Path) -> None:
    def ids(names: str, resumed: int | None) -> list[str]:
        return [t.beginning.id for t in start_trackers(tmp_path, _config(tmp_path, names), resumed)]  # type: ignore[attr-defined]

    first = ids("one,two", None)
    assert len(set(first)) == 2
    assert ids("two", 5) == first[1:]
    assert ids("one,two", 5) == first
    (tmp_path / "trackers.json").write_text(json.dumps({"one": "../../x", "two": first[1]}))
    damaged = ids("one,two", 5)
    assert damaged[1] == first[1] and damaged[0] not in ("../../x", first[0])
    assert not set(ids("one,two", None)) & {*first, *damaged}


def test_they_are_told_of_the_json_the_hardware_and_the_revision_without_secrets(tmp_path: Path) -> None:
    (tmp_path / "ds_config.json").write_text('{"fp16": {"enabled": true}, "api_key": "s3cret"}')
    (tmp_path / "environment.json").write_text('{"git_revision": "abc", "hardware": "1 x CPU"}')
    (tracker,) = start_trackers(tmp_path, _config(tmp_path, "one"), None)
    assert isinstance(tracker, Kept)
    facts = tracker.beginning.facts
    assert facts["ds_config"] == {"fp16": {"enabled": True}, "api_key": "***"}
    assert facts["environment"] == {"git_revision": "abc", "hardware": "1 x CPU"} and facts["logging_steps"] == 10


def test_none_starts_nothing(tmp_path: Path) -> None:
    assert start_trackers(tmp_path, _config(tmp_path, "none"), None) == []
    assert not (tmp_path / "trackers.json").exists()
