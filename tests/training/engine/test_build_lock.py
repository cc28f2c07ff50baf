"""torch's build lock: held by a process that lives, dead, or not to be judged from here."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch.utils.file_baton import FileBaton

from minimind.training.engine import build_lock
from minimind.training.engine.build_lock import file_system, look_at

HOLD = """
import sys
from torch.utils.file_baton import FileBaton
FileBaton(sys.argv[1]).try_acquire()
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    path = tmp_path / "cpu_adam" / "lock"
    path.parent.mkdir()
    return path


@pytest.fixture
def holder(lock: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def state(lock: Path) -> str | None:
    found = look_at(lock)
    return found.state if found else None


def test_a_living_holder_is_named_and_a_killed_ones_lock_is_dead_at_once(
    lock: Path, holder: subprocess.Popen[str]
) -> None:
    found = look_at(lock)
    assert found is not None and found.state == "held"
    assert f"process {holder.pid} (" in found.who
    holder.kill()
    holder.wait()
    assert lock.exists() and state(lock) == "dead"


def test_a_baton_of_this_very_process_is_held_until_it_is_released(lock: Path) -> None:
    baton = FileBaton(str(lock))
    baton.try_acquire()
    assert state(lock) == "held"
    baton.release()
    assert look_at(lock) is None


def test_the_age_of_a_lock_decides_nothing(lock: Path, holder: subprocess.Popen[str]) -> None:
    os.utime(lock, (1, 1))
    assert state(lock) == "held"
    holder.kill()
    holder.wait()
    os.utime(lock)
    assert state(lock) == "dead"


def test_a_holder_that_proc_does_not_show_is_known_to_the_kernel(
    lock: Path, holder: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container, or where the holder is another user's."""
    monkeypatch.setattr(build_lock, "_holders", lambda status, directory: iter(()))
    found = look_at(lock)
    assert found is not None and found.state == "held"
    assert "another user or container" in found.who


def test_a_ninja_that_outlives_its_killed_builder_still_holds_the_directory(lock: Path, tmp_path: Path) -> None:
    lock.touch()
    ninja = tmp_path / "ninja"
    ninja.symlink_to(sys.executable)
    process = subprocess.Popen(
        [ninja, "-c", "print('there', flush=True); input()"],
        cwd=lock.parent,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "there\n"
    assert state(lock) == "held"
    process.communicate("\n")
    assert state(lock) == "dead"


def test_a_lock_that_other_machines_may_hold_is_never_dead(lock: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock.touch()
    for kind, expected in (("nfs4", "unseen"), ("fuse.sshfs", "unseen"), ("unknown", "unseen"), ("ext4", "dead")):
        monkeypatch.setattr(build_lock, "file_system", lambda path, kind=kind: kind)
        assert state(lock) == expected, kind


@pytest.mark.parametrize(
    ("patch", "expected"),
    [
        ({}, "dead"),
        ({"FIRST_PID_NAMESPACE": "pid:[1]"}, "unseen"),  # a container: /proc shows its own processes only
        ({"_unreadable_users": lambda: iter([os.geteuid()])}, "unseen"),
        ({"_unreadable_users": lambda: iter([os.geteuid() + 1])}, "dead"),  # not who made the lock
    ],
)
def test_without_leases_a_lock_is_dead_only_if_proc_shows_all(
    patch: dict[str, object], expected: str, lock: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock.touch()
    here = str(Path("/proc/self/ns/pid").readlink())  # the tests themselves may run in a container
    everything = {"_open_anywhere": lambda path: None, "FIRST_PID_NAMESPACE": here, **patch}
    for name, value in everything.items():
        monkeypatch.setattr(build_lock, name, value)
    assert state(lock) == expected


def test_another_users_lock_is_left_alone(lock: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock.touch()
    monkeypatch.setattr(build_lock, "_open_anywhere", lambda path: None)
    monkeypatch.setattr(build_lock.os, "geteuid", lambda: lock.stat().st_uid + 1)
    found = look_at(lock)
    assert found is not None and found.state == "unseen" and "another user" in found.who


@pytest.mark.parametrize(
    ("path", "kind"), [("/home/a b/x", "nfs4"), ("/home/other", "ext4"), ("/", "ext4"), ("/mnt/deep/x", "xfs")]
)
def test_the_file_system_is_that_of_the_deepest_mount(path: str, kind: str, tmp_path: Path) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(
        "1 0 8:1 / / rw - ext4 /dev/sda rw\n"
        "2 1 0:5 / /home/a\\040b rw,relatime shared:1 - nfs4 server:/a rw\n"
        "3 1 0:6 / /mnt rw - tmpfs t rw\n4 3 0:7 / /mnt/deep rw - tmpfs t rw\n5 3 0:8 / /mnt/deep rw - xfs /dev/b rw\n"
    )
    assert file_system(Path(path), table) == kind


def test_without_a_table_of_mounts_the_file_system_is_unknown(tmp_path: Path) -> None:
    assert file_system(tmp_path, tmp_path / "none") == "unknown"
