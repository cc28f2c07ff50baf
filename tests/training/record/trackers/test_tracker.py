"""What all trackers have in common: whatever a package does, a run goes on and hears of it once."""

import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from minimind.base.findings import Finding
from minimind.config.run import load_run_config
from minimind.training.record.trackers.tracker import Background, Beginning


class Notes(Background):
    """A package that does as the test says."""

    name, folder, left = "notes", "notes", ""

    def __init__(self, directory: Path, broken: str = "") -> None:
        self.broken, self.told, self.go_on = broken, [], threading.Event()  # type: ignore[var-annotated]
        super().__init__(Beginning(directory, load_run_config(None, []), "id", None, {}))

    def _say(self, what: str) -> Any:
        if self.broken == what:
            raise {"begin": SystemExit("no home")}.get(what, RuntimeError(f"{what} is broken\nand more"))
        self.told.append(what)
        return self

    def begin(self) -> Any:
        return self._say("begin")

    def send(self, run: Any, numbers: Mapping[str, float], step: int) -> None:
        self._say("send")

    def send_alert(self, run: Any, finding: Finding) -> None:
        self._say("alert")

    def end(self, run: Any, failed: bool) -> None:
        self._say(f"end {failed}")


def _use(notes: Notes) -> list[str]:
    for step in range(3):
        notes.log({"loss": 1.0}, step)
    notes.alert(Finding("a", "b", "c"))
    notes.finish()
    return [f"{finding.code}: {finding.message}" for finding in notes.findings()]


def test_all_is_told_in_order(tmp_path: Path) -> None:
    notes = Notes(tmp_path)
    assert _use(notes) == []
    assert notes.told == ["begin", "send", "send", "send", "alert", "end False"]


@pytest.mark.parametrize(
    ("broken", "finding", "told"),
    [
        ("begin", "notes-failed: not logging to notes: no home", []),
        ("send", "notes-failed: notes stopped logging: send is broken", ["begin"]),
        ("alert", "notes-failed: notes stopped logging: alert is broken", ["begin", "send", "send", "send"]),
        ("end False", "notes-failed: notes stopped logging: end False is broken", None),
    ],
)
def test_whatever_breaks_is_one_finding(tmp_path: Path, broken: str, finding: str, told: list[str] | None) -> None:
    notes = Notes(tmp_path, broken)
    assert _use(notes) == [finding]
    assert told is None or notes.told == told


def test_a_link_in_the_folders_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "notes").symlink_to(tmp_path / "elsewhere")
    (found,) = _use(notes := Notes(tmp_path))
    assert "link" in found and notes.told == []


@pytest.mark.parametrize(
    ("module", "maker"),
    [("swanlab", "swanlab_run:SwanlabRun"), ("torch.utils.tensorboard", "tensorboard_run:TensorboardRun")],
)
def test_a_missing_package_is_one_finding(
    tmp_path: Path, module: str, maker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pkgutil

    monkeypatch.setitem(sys.modules, module, None)
    made = pkgutil.resolve_name(f"minimind.training.record.trackers.{maker}")
    tracker = made(Beginning(tmp_path, load_run_config(None, []), "id", None, {}))
    assert [line.split(":")[0] for line in _use(tracker)] == [f"{tracker.name}-missing"]
