"""The ops that DeepSpeed compiles at their first use, DeepSpeedCPUAdam above all: announced, and never a hang.

Every build goes through ``one_build``. Processes of this trainer take turns by a lock of the kernel's
(``minimind.lock`` in the build directory), which the death of its holder releases. Only who has it looks at torch's
own lock: a dead one (build_lock.py) is removed, a living holder is waited for, and both are said. What is compiled is
cached below ``$TORCH_EXTENSIONS_DIR`` (default ``~/.cache/torch_extensions``).

Known weakness: a build by other software that takes torch's lock between our look and our own build, and is then
killed, is still waited for by torch.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from minimind.base.display import complain
from minimind.base.errors import UserError
from minimind.base.files import lock_file
from minimind.training.engine import build_lock

PERIOD = 0.5  # seconds between two looks at a lock
SILENT = 2.0  # seconds of waiting for another process of ours before it is said: a cached op loads in less
QUIET_MINUTES = 30  # no write beside a lock whose holder can't be seen for so long: it is not waited for

TURN = "minimind.lock"

Say = Callable[[str], None]


def say_on_first(line: str) -> None:
    """Print on rank 0 only."""
    if os.environ.get("RANK", "0") == "0":
        complain(line)


def guard_builds(builder: Any, say: Say = say_on_first) -> None:
    """Make all that ``builder`` (DeepSpeed's OpBuilder) compiles go through ``one_build``. Once is enough."""
    original = builder.jit_load
    if hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def jit_load(self: Any, verbose: bool = True) -> Any:
        with one_build(self.name, say):
            return original(self, verbose)

    builder.jit_load = jit_load


@contextlib.contextmanager
def one_build(op: str, say: Say) -> Iterator[None]:
    """The only process of ours that compiles or loads ``op``, with no dead lock in its way.

    Raises UserError for a directory that can't be written, and for a lock whose holder can't be seen and beside which
    nothing happens.
    """
    directory = root() / op
    with _open_turn(directory / TURN) as turn:
        _take_turn(turn, directory / TURN, op, say)
        clear(directory, say)
        _put_ninja_on_path()
        if not any(directory.glob("*.so")):
            say(f"compiling DeepSpeed's {op}: about 75 seconds, once; cached in {directory} for later runs")
        yield


def root() -> Path:
    """What holds a build directory an op, as torch chooses it (cpp_extension ``_get_build_directory``)."""
    if (given := os.environ.get("TORCH_EXTENSIONS_DIR")) is not None:
        return Path(given)
    import torch

    cuda, hip = torch.version.cuda, torch.version.hip
    device = f"rocm{hip.replace('.', '')}" if hip else f"cu{cuda.replace('.', '')}" if cuda else "cpu"
    return _cache() / f"py{sys.version_info.major}{sys.version_info.minor}{sys.abiflags}_{device}"


def _cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home).resolve() / "torch_extensions"


def all_locks() -> list[Path]:
    """The locks of all ops' build directories, of every version of Python and torch."""
    given = os.environ.get("TORCH_EXTENSIONS_DIR")
    if given is None:
        return sorted(_cache().glob(f"*/*/{build_lock.NAME}"))
    return sorted(Path(given).glob(f"*/{build_lock.NAME}"))


def cached(op: str) -> bool:
    """Whether the op has been compiled here before."""
    return any((root() / op).glob("*.so"))


def find_ninja() -> str | None:
    """The ninja that builds: the one beside this Python, though the environment may not be on PATH, else PATH's."""
    return shutil.which("ninja", path=str(Path(sys.executable).parent)) or shutil.which("ninja")


def _put_ninja_on_path() -> None:
    """torch runs ``ninja`` by its bare name. It must be the same one however this Python was called: two versions take
    each other's log for another one's and compile anew in turn (1.11 of Debian and 1.13 did, 75 seconds each time)."""
    ninja = find_ninja()
    if ninja is not None and shutil.which("ninja") != ninja:
        os.environ["PATH"] = os.pathsep.join(filter(None, (str(Path(ninja).parent), os.environ.get("PATH"))))


def _open_turn(path: Path) -> BinaryIO:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return lock_file(path)
    except OSError as error:
        raise UserError(
            f"{path}: {error.strerror}, and DeepSpeed compiles an op there: "
            "set TORCH_EXTENSIONS_DIR to a directory that you can write"
        ) from error


def _take_turn(turn: BinaryIO, path: Path, op: str, say: Say) -> None:
    """Wait until no other process of ours has the file locked, and write who has it now."""
    try:
        if not _locked_within(turn, SILENT):
            turn.seek(0)
            holder = turn.read(1000).decode("utf-8", "replace").strip() or "another process"
            say(f"waiting: {holder} is compiling {op} ({path})")
            fcntl.flock(turn, fcntl.LOCK_EX)
    except OSError:  # a network file system without locks: torch's own lock must do
        return
    turn.seek(0)
    turn.truncate()
    turn.write(f"process {os.getpid()} on {os.uname().nodename}".encode())


def _locked_within(turn: BinaryIO, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(PERIOD / 5)


def clear(directory: Path, say: Say) -> None:
    """Return when nobody holds the lock of this build directory; a dead one is removed.

    Only a lock that is dead at two looks is: who releases it closes the file a moment before deleting it.
    Raises UserError for one that can't be judged, after ``QUIET_MINUTES`` without a write beside it.
    """
    lock, last, told = directory / build_lock.NAME, None, ""
    while (found := build_lock.look_at(lock)) is not None:
        if not _is_torchs(lock):
            raise UserError(f"{lock}: holds what torch did not write, and torch would wait for it: {advice(lock)}")
        if found.state == "dead" and found == last:
            say(f"removing {lock}: the build that left it is dead")
            lock.unlink(missing_ok=True)
            return
        sentence = _sentence(found, lock)
        if found == last and sentence != told:  # a cached op is loaded, and its lock gone, between two looks
            say(told := sentence)
        if found.state == "unseen" and _minutes_since_a_write(directory) > QUIET_MINUTES:
            raise UserError(
                f"{lock}: {found.who}, and nothing was written beside it for {QUIET_MINUTES} minutes; {advice(lock)}"
            )
        last = found
        time.sleep(PERIOD)


def _is_torchs(lock: Path) -> bool:
    """Whether torch may have made it: empty, and no link. One that is gone by now was."""
    try:
        status = lock.lstat()
    except FileNotFoundError:
        return True
    return stat.S_ISREG(status.st_mode) and status.st_size == 0


def _sentence(found: build_lock.LockState, lock: Path) -> str:
    if found.state == "held":
        return f"waiting: {found.who} is compiling {lock.parent.name} ({lock})"
    return f"waiting for {lock}, whose holder can't be seen from here ({found.who}): {advice(lock)}"


def advice(lock: Path) -> str:
    """What to do about a lock that can't be judged."""
    return f"if nobody is compiling there, delete it (rm {lock}), or set TORCH_EXTENSIONS_DIR to a local directory"


def _minutes_since_a_write(directory: Path) -> float:
    """By the clock of the file system, which may be another machine's."""
    with tempfile.TemporaryFile(dir=directory) as probe:
        now = os.fstat(probe.fileno()).st_mtime
    written = []
    for path in directory.iterdir():
        if path.name != TURN:
            with contextlib.suppress(FileNotFoundError):
                written.append(path.stat().st_mtime)
    return (now - max(written, default=now)) / 60
