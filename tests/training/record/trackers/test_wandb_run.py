"""wandb never stops a run and never holds it up; offline mode is run for real."""

import builtins
import json
import socket
import struct
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from minimind.base.findings import Finding
from minimind.config.run import RunConfig, load_run_config
from minimind.training.record.metrics import Metrics
from minimind.training.record.trackers import tracker as tracking
from minimind.training.record.trackers import wandb_run
from minimind.training.record.trackers.tracker import Beginning
from minimind.training.record.trackers.wandb_run import WandbRun
from tests.training.record.test_metrics import STEP, SUMMARY, Held
from tests.waiting import PATIENCE


@pytest.fixture(autouse=True)
def no_login(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """No key, no settings of the person who runs the tests, and no way out of this machine."""
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setattr(wandb_run, "INIT_SECONDS", 3.0)
    yield
    if "wandb" in sys.modules:  # its settings live as long as the process: forget this test's environment
        sys.modules["wandb"].teardown()


@pytest.fixture
def dead_server() -> Iterator[str]:
    """Accepts connections and never answers, like a network that swallows everything."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(64)
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def _config(directory: Path, mode: str) -> RunConfig:
    return load_run_config(None, [], {"report_to": "wandb", "wandb_mode": mode, "output_dir": directory})


def _begun(directory: Path, mode: str) -> WandbRun:
    return WandbRun(Beginning(directory, _config(directory, mode), "abcd1234", None, {"learning_rate": 0.1}))


def _rows(run_dir: Path) -> list[dict[str, Any]]:
    """The history rows in the run's binary file, as `wandb sync` would send them."""
    import wandb
    from wandb.proto import wandb_internal_pb2

    wandb.teardown()  # waits for its service process to end; the file is complete only then
    (path,) = run_dir.glob("wandb/offline-run-*/*.wandb")
    rows = []
    for data in _leveldb_records(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.HasField("history"):
            rows.append({i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in record.history.item})
    return rows


def _leveldb_records(content: bytes) -> Iterator[bytes]:
    """LevelDB's log format in 32 KiB blocks; a header of 7 bytes: ":W&B", magic, version. Type 1 whole, 2-4 parts."""
    block, at, parts = 32768, 7, b""
    while at + 7 <= len(content):
        if block - at % block < 7:  # too little room for a header: padding
            at += block - at % block
            continue
        _, length, kind = struct.unpack_from("<IHB", content, at)
        parts += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield parts
            parts = b""


def test_offline_has_the_numbers_of_metrics_jsonl(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("wandb")
    metrics = Metrics(tmp_path, 0, _config(tmp_path, "offline"), 40)
    metrics.header(SUMMARY)
    for step in (1, 2, 3):
        metrics.step(replace(STEP, step=step, loss=3.0 - step / 10))
    metrics.evaluation(Held(2.5), 3)
    metrics.close(tmp_path / "final")
    rows = _rows(tmp_path)
    assert [row["train/loss"] for row in rows if "train/loss" in row] == [2.9, 2.8, 2.7]
    assert [row["step"] for row in rows if "train/loss" in row] == [1, 2, 3]
    assert [row["eval/loss"] for row in rows if "eval/loss" in row] == [2.5]
    assert "wandb" not in capsys.readouterr().out


def test_disabled_starts_nothing(tmp_path: Path) -> None:
    log = _begun(tmp_path, "disabled")
    log.log({"train/loss": 1.0}, 1)
    log.finish()
    assert log.findings() == []
    assert not (tmp_path / "wandb").exists()


def test_without_a_login_it_logs_offline_and_says_so(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    log = _begun(tmp_path, "online")
    log.log({"train/loss": 1.5}, 1)
    log.alert(Finding("loss-spike", "the loss jumped", "look at the samples", 1))
    log.finish()
    (finding,) = log.findings()
    assert finding.code == "wandb-not-online"
    assert "no login" in finding.message
    assert [row["train/loss"] for row in _rows(tmp_path)] == [1.5]


def test_a_server_that_never_answers_does_not_hold_the_run_up(
    tmp_path: Path, dead_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_BASE_URL", dead_server)
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    go_on, begin = threading.Event(), WandbRun.begin
    monkeypatch.setattr(WandbRun, "begin", lambda self: go_on.wait(PATIENCE) and begin(self))
    log = _begun(tmp_path, "online")
    for step in range(100):
        log.log({"train/loss": 1.0}, step)  # returns though wandb has not even started
    go_on.set()
    log.finish()
    assert [finding.code for finding in log.findings()] == ["wandb-not-online"]
    assert len(_rows(tmp_path)) == 100  # what was queued meanwhile is in the offline run


def test_a_missing_package_is_one_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *rest: Any) -> Any:
        if name == "wandb":
            raise ModuleNotFoundError("No module named 'wandb'")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", missing)
    log = _begun(tmp_path, "online")
    log.log({"train/loss": 1.0}, 1)
    log.finish()
    assert [finding.code for finding in log.findings()] == ["wandb-missing"]


def test_a_failure_while_logging_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def log(self, row: object) -> None:
            raise RuntimeError("broken pipe\nand more")

    monkeypatch.setattr(WandbRun, "begin", lambda self: Broken())
    log = _begun(tmp_path, "online")
    for step in range(3):
        log.log({"train/loss": 1.0}, step)
    log.finish()
    assert [finding.message for finding in log.findings()] == ["wandb stopped logging: broken pipe"]


def test_a_stuck_wandb_drops_rows_and_lets_the_run_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "QUEUE_SIZE", 2)
    monkeypatch.setattr(tracking, "FINISH_SECONDS", 0.2)
    go_on = threading.Event()
    monkeypatch.setattr(WandbRun, "begin", lambda self: go_on.wait(PATIENCE) and None)
    log = _begun(tmp_path, "online")
    for step in range(10):
        log.log({"train/loss": 1.0}, step)
    log.finish()  # returns though wandb is still stuck
    assert not go_on.is_set()
    go_on.set()
    assert [finding.code for finding in log.findings()] == ["wandb-behind", "wandb-slow"]


def test_a_secret_of_the_command_line_is_not_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb

    monkeypatch.setattr(sys, "argv", ["pretrain.py", "--set", "api_key=s3cret-4711"])
    log = _begun(tmp_path, "offline")
    log.log({"loss": 1.0}, 1)
    log.finish()
    wandb.teardown()  # waits for its service process
    files = [path for path in (tmp_path / "wandb").rglob("*") if path.is_file()]
    assert files and all(b"s3cret-4711" not in path.read_bytes() for path in files)


def test_what_wandb_says_is_told_without_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef-local")
    assert tracking.first_line(ValueError("bad key 0123456789abcdef-local")) == "bad key ***"
