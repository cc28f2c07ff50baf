"""One run a directory: who holds it is named, and nobody does once that process is gone, however it went."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minimind.base.errors import UserError
from minimind.training.process import run_lock
from minimind.training.process.ending import exit_with
from minimind.training.process.run_lock import FILE_NAME, RunLock
from minimind.training.process.signals import StopRequest
from tests.training.run.test_main import _one_rank_with_its_signals as _signals  # noqa: F401 (an autouse fixture)
from tests.training.run.test_main import launch, records

ROOT = Path(__file__).parents[3]
HOLD = (
    "import os, sys\n"
    "from pathlib import Path\n"
    "from minimind.training.process.run_lock import RunLock\n"
    "lock = RunLock()\n"
    "assert lock.take(Path(sys.argv[1])) == []\n"
)
WAIT = "print('held', flush=True)\nsys.stdin.read()\n"


def holding(run_dir: Path, code: str = WAIT) -> subprocess.Popen[str]:
    """Another process that holds ``run_dir`` until it is killed."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD + code, str(run_dir)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout and process.stdout.readline().startswith("held")
    return process


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()


def test_the_second_is_refused_by_name_until_the_first_is_killed(tmp_path: Path) -> None:
    run_dir = tmp_path / "deep" / "run"
    first, second = holding(run_dir), RunLock()
    with pytest.raises(UserError) as refused:
        second.take(run_dir)
    message = str(refused.value)
    assert message.startswith(f"{run_dir}: process {first.pid} on host {socket.gethostname()} (since 20")
    assert message.endswith("is writing there; wait for its end, or give another --output-dir")
    assert "\n" not in message
    second.release()  # holds nothing, and takes nothing from the first
    with pytest.raises(UserError, match=f"process {first.pid} "):
        RunLock().take(run_dir)
    kill(first)
    with second:
        assert second.take(run_dir) == []
        with pytest.raises(UserError, match=f"process {os.getpid()} "):  # nor twice in one process
            RunLock().take(run_dir)
    with RunLock() as third:
        assert third.take(run_dir) == []


def test_another_name_of_the_directory_is_the_same_directory(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "link").symlink_to("run")
    with RunLock() as first, RunLock() as second:
        first.take(tmp_path / "run")
        with pytest.raises(UserError, match="is writing there"):
            second.take(tmp_path / "link")


def test_a_forked_child_that_outlives_a_killed_run_holds_nothing(tmp_path: Path) -> None:
    child = (
        "pid = os.fork()\n"
        "if pid == 0:\n    print('held', flush=True)\n    sys.stdin.read()\n    os._exit(0)\n"
        "os.waitpid(pid, 0)\n"
    )
    first = holding(tmp_path, child)
    first.send_signal(signal.SIGKILL)
    first.wait()
    with RunLock() as lock:
        assert lock.take(tmp_path) == []
    first.communicate()  # the child reads the end of its input


@pytest.mark.parametrize("there", ["symlink", "dangling", "hard link", "directory", "pipe"])
def test_the_lock_is_a_plain_file_of_its_own(there: str, tmp_path: Path) -> None:
    run_dir, precious = tmp_path / "run", tmp_path / "precious"
    run_dir.mkdir()
    precious.write_text("keep me")
    make: dict[str, Callable[[Path], Any]] = {
        "symlink": lambda path: path.symlink_to(precious),
        "dangling": lambda path: path.symlink_to(tmp_path / "new"),
        "hard link": lambda path: os.link(precious, path),
        "directory": Path.mkdir,
        "pipe": os.mkfifo,
    }
    make[there](run_dir / FILE_NAME)
    with pytest.raises(UserError, match=r"run/\.lock: a link, or no plain file, where .* delete it"):
        RunLock().take(run_dir)
    assert precious.read_text() == "keep me" and not (tmp_path / "new").exists()


def failing(code: int) -> Callable[..., None]:
    def flock(descriptor: int, operation: int) -> None:
        raise OSError(code, os.strerror(code))

    return flock


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_said(code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", failing(code))
    (finding,) = RunLock().take(tmp_path)
    assert finding.code == "run-not-locked" and os.strerror(code) in finding.message


@pytest.mark.parametrize("code", [errno.EAGAIN, errno.EACCES])  # NFS may say either
def test_a_holder_that_has_not_written_its_name_is_another_run(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_lock, "PAUSE", 0.0)
    monkeypatch.setattr(fcntl, "flock", failing(code))
    with pytest.raises(UserError, match="another run is writing there"):
        RunLock().take(tmp_path)
    (tmp_path / FILE_NAME).write_text("no JSON")
    with pytest.raises(UserError, match="another run is writing there"):
        RunLock().take(tmp_path)


def test_a_directory_that_can_not_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="run: can't write there: Not a directory; give another"):
        RunLock().take(tmp_path / "file" / "run")


def test_a_file_that_its_last_holder_removes_meanwhile_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock, removed = fcntl.flock, []

    def too_late(descriptor: int, operation: int) -> None:
        if not removed:
            removed.append((tmp_path / "run" / FILE_NAME).unlink())
            (tmp_path / "run").rmdir()
        flock(descriptor, operation)

    monkeypatch.setattr(run_lock, "PAUSE", 0.0)
    monkeypatch.setattr(fcntl, "flock", too_late)
    with RunLock() as first, RunLock() as second:
        assert first.take(tmp_path / "run") == []
        with pytest.raises(UserError, match="is writing there"):
            second.take(tmp_path / "run")


def test_what_stays_behind(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("new", "empty", "used"):
        with RunLock() as lock:
            lock.take(tmp_path / name)
            if name == "used":
                (tmp_path / name / "config.yaml").touch()
    assert not (tmp_path / "new").exists()  # made for a run that then wrote nothing
    assert (tmp_path / "empty" / FILE_NAME).read_bytes() == b""
    assert (tmp_path / "used" / FILE_NAME).read_bytes() == b""  # names nobody who is gone


def test_two_runs_in_one_directory(files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def tree() -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    two, other = ("--max-steps", "2"), RunLock()
    assert launch("pretrain", "fp32.json", files, tmp_path / "run", *two) == 0
    with other:
        other.take(tmp_path / "run")
        before = tree()
        for more in ((), ("--resume",)):
            capsys.readouterr()
            with pytest.raises(SystemExit) as ended:
                exit_with(
                    lambda more=more: launch("pretrain", "fp32.json", files, tmp_path / "run", *two, *more),
                    debug=False,
                    stop=StopRequest(),
                )
            (line,) = capsys.readouterr().err.splitlines()
            assert ended.value.code == 2 and tree() == before
            assert f"run: process {os.getpid()} on host {socket.gethostname()} " in line
        assert launch("pretrain", "fp32.json", files, tmp_path / "run", *two, "--dry-run") == 0
        assert tree() == before
    assert launch("pretrain", "fp32.json", files, tmp_path / "run", "--max-steps", "3", "--resume") == 0


def test_a_lock_file_is_no_earlier_run_and_a_refused_run_leaves_nothing(files: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / FILE_NAME).write_text('{"pid": 1}')  # of a run that was killed before it wrote anything
    assert launch("pretrain", "fp32.json", files, tmp_path / "run", "--max-steps", "1") == 0
    assert not [f for f in records(tmp_path / "run", "finding") if f["code"] == "earlier-run"]
    assert launch("pretrain", "fp32.json", files, tmp_path / "run", "--max-steps", "1") == 0
    assert not (tmp_path / "run" / "earlier-1" / FILE_NAME).exists()
    for more in (["--resume"], ["--train-file", "no/such.jsonl"]):
        with pytest.raises(UserError):
            launch("pretrain", "fp32.json", files, tmp_path / "typo", "--max-steps", "1", *more)
        assert not (tmp_path / "typo").exists()
