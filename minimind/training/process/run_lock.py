"""One run a directory: a lock that the kernel holds for rank 0, and releases with the process however that ends.

Contract. ``take`` comes before anything in the run directory is moved or written. It is flock(2) on the file ``.lock``,
which names its holder; the file stays, empty, and means nothing without the lock. On NFS Linux makes of it a lock of
the server, seen by all hosts (hence a file open for writing); Lustre needs the mount option ``flock``. The lock belongs
to the open file, so forked children close theirs: one that outlives a killed run would hold it on.

Known weakness: a file system without locks refuses nobody, which is said; so does a directory that was deleted and made
again under a living run, which is not.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import stat
import time
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any

from minimind.base.errors import UserError
from minimind.base.files import open_inside
from minimind.base.findings import Finding

FILE_NAME = ".lock"
HELD = (errno.EAGAIN, errno.EACCES)  # which of them is up to the file system: fcntl(2)
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
GONE = (errno.ENOENT, errno.ESTALE)  # the file was removed, here or on the server, since it was opened
ATTEMPTS, PAUSE = 20, 0.1  # a holder that has only just begun has not written its name yet


def is_held(run_dir: Path) -> bool | None:
    """Whether a run is going on in ``run_dir``; None where the lock can't tell: there is none, or it is a copy of one
    that was held on another machine. Holds it itself for a moment, shared.
    """
    try:
        with open_inside(run_dir, FILE_NAME) as file:
            about = _read(file.fileno())
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return True if error.errno in HELD else None
    return None if about.get("host", socket.gethostname()) != socket.gethostname() else False


class RunLock:
    """Holds one directory from ``take`` to ``release``; a context manager that releases. Rank 0 only takes it."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._descriptor: int | None = None
        self._made = False  # the directory is ours
        _LOCKS.add(self)

    def __enter__(self) -> RunLock:
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()

    def take(self, run_dir: Path) -> list[Finding]:
        """Hold ``run_dir``, made if need be; a finding where the file system has no locks.

        Raises UserError if another run holds it, with that one's host and process, and if it can't be written.
        """
        self._path = run_dir / FILE_NAME
        holder: dict[str, Any] | None = {}
        for _ in range(ATTEMPTS):
            try:
                if (holder := self._try(self._path)) is None:
                    return []
            except OSError as error:
                if error.errno in NO_LOCKS:
                    return [_not_locked(run_dir, error)]
                if error.errno not in GONE:
                    raise _refused(self._path, error) from None
            if holder:
                break
            time.sleep(PAUSE)
        raise UserError(
            f"{run_dir}: {_name(holder or {})} is writing there; wait for its end, or give another --output-dir"
        )

    def _try(self, path: Path) -> dict[str, Any] | None:
        """None: the lock is ours now. Else what its holder says of itself, {} if it says nothing yet.

        Raises OSError if the file can't be opened or written, is gone, or can't be locked at all.
        """
        self._made |= not path.parent.exists()
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = _open(path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.path.samestat(os.fstat(descriptor), path.lstat()):
                raise FileNotFoundError(errno.ENOENT, "removed by its last holder", str(path))
            _write(descriptor)
        except OSError as error:
            holder = _read(descriptor)
            os.close(descriptor)
            if error.errno in HELD:
                return holder
            raise
        self._descriptor = descriptor
        return None

    def release(self) -> None:
        """Let go, if it is held; a directory that was made for a run that then wrote nothing goes, too."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None or self._path is None:
            return
        with suppress(OSError):  # a full or vanished disk: the lock itself goes with the descriptor
            os.ftruncate(descriptor, 0)
            if self._made and list(self._path.parent.iterdir()) == [self._path]:
                self._path.unlink()
                self._path.parent.rmdir()
        os.close(descriptor)

    def forget(self) -> None:
        """In a forked child: close its copy, which keeps the parent's lock alive."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


_LOCKS: weakref.WeakSet[RunLock] = weakref.WeakSet()


def _in_child() -> None:
    for lock in list(_LOCKS):
        lock.forget()


os.register_at_fork(after_in_child=_in_child)


def _open(path: Path) -> int:
    """The lock file, never through a link to another one: it is about to be cut to nothing."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        os.close(descriptor)
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    return descriptor


def _write(descriptor: int) -> None:
    about = {"host": socket.gethostname(), "pid": os.getpid(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(about).encode(), 0)
    os.fsync(descriptor)  # other hosts see it now


def _read(descriptor: int) -> dict[str, Any]:
    try:
        about = json.loads(os.pread(descriptor, 4096, 0))
    except (OSError, ValueError, RecursionError):
        return {}
    return about if isinstance(about, dict) else {}


def _name(holder: dict[str, Any]) -> str:
    if not {"host", "pid", "since"} <= holder.keys():
        return "another run"
    return f"process {holder['pid']} on host {holder['host']} (since {holder['since']})"


def _refused(path: Path, error: OSError) -> UserError:
    if error.errno in (errno.ELOOP, errno.EISDIR):
        return UserError(f"{path}: a link, or no plain file, where the run's lock file must be; delete it")
    return UserError(f"{path.parent}: can't write there: {error.strerror}; give another --output-dir")


def _not_locked(run_dir: Path, error: OSError) -> Finding:
    return Finding(
        code="run-not-locked",
        message=f"{run_dir}: its file system has no locks ({error.strerror})",
        advice="make sure that no other run writes there: nothing would keep the two apart",
    )
