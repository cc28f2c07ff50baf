"""Compilations: announced, one at a time, never behind a dead lock, and never beside a living one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from torch.utils import cpp_extension
from torch.utils.file_baton import FileBaton

from minimind.base.errors import UserError
from minimind.training.engine import build_lock, builds
from minimind.training.engine.builds import clear, guard_builds, one_build

OPS = ("cpu_adam", "fused_adam", "cpu_lion", "cpu_adagrad", "pin_memory")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.setattr(builds, "PERIOD", 0.02)
    return tmp_path


def dead_lock(directory: Path) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "lock").touch()
    return directory / "lock"


def said(op: str = "cpu_adam") -> list[str]:
    lines: list[str] = []
    with one_build(op, lines.append):
        pass
    return lines


class Builder:
    """DeepSpeed's OpBuilder as far as it matters: torch's lock around a build."""

    name = "cpu_adam"
    built = 0

    def jit_load(self, verbose: bool = True) -> str:
        baton = FileBaton(str(builds.root() / self.name / "lock"))
        assert baton.try_acquire(), "somebody else builds at the same time, or torch would wait for ever"
        type(self).built += 1
        baton.release()
        return f"{self.name} loaded"


@pytest.mark.parametrize("op", OPS)
def test_a_dead_lock_of_any_op_is_said_and_removed_before_it_is_built(op: str, cache: Path) -> None:
    lines: list[str] = []
    builder = type("Builder", (Builder,), {"name": op, "jit_load": Builder.jit_load})
    guard_builds(builder, lines.append)
    guard_builds(builder, lines.append)  # once is enough
    lock = dead_lock(cache / op)
    assert builder().jit_load() == f"{op} loaded"
    assert lines[0] == f"removing {lock}: the build that left it is dead"
    assert len(lines) == 2 and "compiling" in lines[1] and op in lines[1]
    assert not lock.exists()


def test_the_real_builder_is_guarded() -> None:
    from deepspeed.ops.op_builder.builder import OpBuilder

    original = OpBuilder.jit_load
    try:
        guard_builds(OpBuilder)
        assert OpBuilder.jit_load.__wrapped__ is getattr(original, "__wrapped__", original)
    finally:
        OpBuilder.jit_load = original


def test_a_first_build_is_announced_with_its_length_and_a_cached_one_is_not(cache: Path) -> None:
    assert [line for line in said() if "75 seconds" in line]
    (cache / "cpu_adam" / "cpu_adam.so").touch()
    assert said() == []


def test_a_living_holder_is_waited_for_with_a_sentence(cache: Path) -> None:
    """The sentence itself lets it go: the test waits for that, not for a time."""
    directory = cache / "cpu_adam"
    directory.mkdir()
    baton = FileBaton(str(directory / "lock"))
    baton.try_acquire()
    lines: list[str] = []

    def hear(line: str) -> None:
        lines.append(line)
        baton.release()

    clear(directory, hear)
    assert lines == [f"waiting: {lines[0].split(' is ')[0][9:]} is compiling cpu_adam ({directory / 'lock'})"]
    assert f"process {os.getpid()} (" in lines[0]


def test_a_holder_that_dies_while_we_wait_does_not_keep_us(cache: Path) -> None:
    directory = cache / "cpu_adam"
    directory.mkdir()
    lock = directory / "lock"
    code = "import os,sys; os.open(sys.argv[1], os.O_CREAT|os.O_EXCL); print(flush=True); sys.stdin.read()"
    process = subprocess.Popen([sys.executable, "-c", code, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    lines: list[str] = []

    def hear(line: str) -> None:
        lines.append(line)
        process.kill()
        process.wait()

    clear(directory, hear)
    assert [line.split()[0] for line in lines] == ["waiting:", "removing"]
    assert not lock.exists()


def test_a_lock_that_is_let_go_between_two_looks_is_not_removed(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who releases it closes the file a moment before deleting it; then another one may have made its own."""
    lock = dead_lock(cache / "cpu_adam")
    states = [build_lock.LockState("dead", "nobody", 1), build_lock.LockState("dead", "nobody", 2), None]
    monkeypatch.setattr(builds.build_lock, "look_at", lambda path: states.pop(0))
    clear(lock.parent, lambda line: pytest.fail(line))
    assert lock.exists()


def test_a_lock_that_can_not_be_judged_is_never_removed_nor_waited_for_without_end(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = dead_lock(cache / "cpu_adam")
    monkeypatch.setattr(builds.build_lock, "file_system", lambda path: "nfs4")
    hour_ago = lock.stat().st_mtime - 3600
    os.utime(lock, (hour_ago, hour_ago))
    lines: list[str] = []
    with pytest.raises(UserError, match=r"nfs4.*30 minutes.*delete it \(rm .*TORCH_EXTENSIONS_DIR"):
        clear(lock.parent, lines.append)
    assert lock.exists()
    os.utime(lock)  # fresh: another machine may be compiling; its end ends the wait
    clear(lock.parent, lambda line: (lines.append(line), lock.unlink()))  # type: ignore[func-returns-value]
    assert len(lines) == 1 and f"rm {lock}" in lines[0]


def test_processes_take_turns(cache: Path) -> None:
    """Threads with files of their own, which the kernel's lock keeps apart as it does processes."""
    builder = type("Builder", (Builder,), {"jit_load": Builder.jit_load})
    guard_builds(builder, lambda line: None)
    dead_lock(cache / "cpu_adam")
    failures: list[BaseException] = []

    def load() -> None:
        try:
            builder().jit_load()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=load) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures and builder.built == 4


def test_waiting_for_a_turn_is_said_and_a_killed_process_gives_it_up(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builds, "SILENT", 0.0)
    (cache / "cpu_adam").mkdir()
    code = (
        "import sys; from minimind.training.engine.builds import one_build\n"
        "with one_build('cpu_adam', lambda line: None): print(flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    lines: list[str] = []

    def hear(line: str) -> None:
        lines.append(line)
        process.kill()

    with one_build("cpu_adam", hear):
        process.wait()
    assert f"waiting: process {process.pid} on {os.uname().nodename} is compiling cpu_adam" in lines[0]


@pytest.mark.parametrize("given", [None, "extensions"])
def test_the_directory_is_torchs(given: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.delenv("TORCH_EXTENSIONS_DIR", raising=False)
    if given:
        monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / given))
    theirs = Path(cpp_extension._get_build_directory("cpu_adam", False))
    assert builds.root() / "cpu_adam" == theirs
    lock = dead_lock(theirs)
    assert builds.all_locks() == [lock]


def test_a_directory_that_can_not_be_written_is_one_line(cache: Path) -> None:
    (cache / "cpu_adam").write_text("a file in the way")
    with pytest.raises(UserError, match="TORCH_EXTENSIONS_DIR"):
        said()


@pytest.mark.parametrize("another", [False, True])
def test_the_ninja_beside_python_builds_whatever_is_on_path(
    another: bool, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two versions in turn compile anew each time: they don't read each other's log."""
    beside = Path(sys.executable).parent / "ninja"
    if not beside.exists():
        pytest.skip("ninja is not installed in this environment")
    if another:
        (tmp_path / "ninja").write_text("#!/bin/sh\n")
        (tmp_path / "ninja").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert said() and shutil.which("ninja") == str(beside)
