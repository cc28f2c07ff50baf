"""SwanLab: offline for real where it is installed, and a package of its API elsewhere."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from minimind.base.findings import Finding
from minimind.config.run import load_run_config
from minimind.training.record.trackers.swanlab_run import SwanlabRun
from minimind.training.record.trackers.tracker import Beginning


def _run(directory: Path, mode: str) -> SwanlabRun:
    config = load_run_config(None, [f"swanlab_mode={mode}", "run_name=mine"])
    tracker = SwanlabRun(Beginning(directory, config, "abcd1234", 2, {"learning_rate": 0.25}))
    tracker.log({"train/loss": 2.5}, 3)
    tracker.alert(Finding("loss-spike", "it rose", "look", 3))
    tracker.finish(failed=True)
    return tracker


class Package:
    """The parts of swanlab 0.10 that are used; ``refuses``: the modes that can't begin."""

    def __init__(self, refuses: tuple[str, ...] = ()) -> None:
        self.refuses, self.told = refuses, []  # type: ignore[var-annotated]

    def Settings(self, **options: Any) -> dict[str, Any]:
        return options

    def init(self, **options: Any) -> Any:
        if options["mode"] in self.refuses:
            raise AssertionError("API key is required.")
        self.told.append(options)
        return SimpleNamespace(
            log=lambda numbers, step: self.told.append((step, numbers)),
            log_text=lambda key, data, step: self.told.append((step, data)),
            finish=lambda **state: self.told.append(state),
        )


def test_a_run_is_begun_told_and_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["pretrain.py", "--set", "api_key=s3cret-4711"])
    monkeypatch.setitem(sys.modules, "swanlab", package := Package())  # type: ignore[arg-type]
    assert _run(tmp_path, "online").findings() == []
    begun, *rest = package.told
    assert (begun["id"], begun["resume"], begun["mode"], begun["name"]) == ("abcd1234", "allow", "online", "mine")
    assert begun["config"] == {"learning_rate": 0.25} and begun["log_dir"] == str(tmp_path / "swanlab")
    settings = begun["settings"]
    assert not settings["interactive"] and not settings["probe"]["runtime"]  # the command line holds a secret
    assert rest[0] == (3, {"train/loss": 2.5}) and rest[1][1].startswith("loss-spike") and rest[2]["state"] == "crashed"


def test_without_a_key_it_goes_offline_and_then_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "swanlab", package := Package(("online",)))  # type: ignore[arg-type]
    (found,) = _run(tmp_path, "online").findings()
    assert found.code == "swanlab-not-online" and "API key is required" in found.message
    assert package.told[0]["mode"] == "offline"
    monkeypatch.setitem(sys.modules, "swanlab", Package(("online", "offline")))  # type: ignore[arg-type]
    codes = [finding.code for finding in _run(tmp_path, "online").findings()]
    assert codes == ["swanlab-not-online", "swanlab-not-offline"]


def test_disabled_starts_nothing(tmp_path: Path) -> None:
    assert _run(tmp_path, "disabled").findings() == []
    assert not (tmp_path / "swanlab").exists()


def test_offline_for_real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("swanlab")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("SWANLAB_API_KEY", raising=False)
    hook = sys.excepthook
    codes = [finding.code for finding in _run(tmp_path, "online").findings()]  # no key: offline
    assert codes == ["swanlab-not-online"]
    (file,) = (tmp_path / "swanlab").glob("run-*/run-abcd1234.swanlab")
    assert b"train/loss" in file.read_bytes()
    (text,) = file.parent.glob("media/text/*.txt")
    assert text.read_text().startswith("loss-spike") and "0.25" in (file.parent / "files" / "config.yaml").read_text()
    assert sys.excepthook is hook
    assert "swanlab" not in capfd.readouterr().out
