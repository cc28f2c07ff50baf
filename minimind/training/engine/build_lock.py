"""Whether somebody is compiling an extension, or a build that was killed has only left its lock behind.

torch's lock (torch/utils/file_baton.py) is a file ``lock`` in the build directory, made with O_EXCL, kept open while
its holder builds and deleted afterwards. It outlives a holder that is killed, and torch then waits for it for ever.

``look_at`` asks who has the file open: /proc names the holder among the processes that it shows, and the kernel refuses
a write lease (fcntl(2), F_SETLEASE) on a file that any other process has open, of whatever user and container. Neither
knows of other machines, so a lock on a file system that machines may share is never called dead; nor is one where the
kernel gives no leases (another user's file) and /proc does not show everybody. Its age decides nothing: a machine under
load builds slowly, and clocks differ. Outside Linux no lock is called dead.
"""

from __future__ import annotations

import fcntl
import os
import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

NAME = "lock"
# File systems of one machine. On any other (nfs, cifs, lustre, ceph, fuse, 9p...) the holder may be on another one.
LOCAL = ("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "jfs", "tmpfs", "ramfs", "overlay")
FIRST_PID_NAMESPACE = "pid:[4026531836]"  # the machine's own (include/linux/proc_ns.h, PROC_PID_INIT_INO)


@dataclass(frozen=True)
class LockState:
    """``who`` holds the lock; of a "dead" one nobody, of an "unseen" one why that can't be known here."""

    state: Literal["held", "dead", "unseen"]
    who: str
    inode: int


def look_at(lock: Path) -> LockState | None:
    """What holds ``lock`` now; None if it is gone. Changes nothing."""
    try:
        status = lock.stat()
        if holders := list(_holders(status, lock.parent)):
            return LockState("held", " and ".join(map(_name, holders)), status.st_ino)
        opened = _open_anywhere(lock)
    except FileNotFoundError:
        return None
    if opened:
        who = "a process of another user or container"
        return LockState("held", who, status.st_ino)
    reason = _shared(lock) or (_hidden(status) if opened is None else None)
    return LockState("unseen", reason, status.st_ino) if reason else LockState("dead", "nobody", status.st_ino)


def _holders(status: os.stat_result, directory: Path) -> Iterator[int]:
    """The visible processes that have the lock open; a ninja that works in the directory outlives a killed builder."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if any(_is_open(link, status) for link in (process / "fd").iterdir()) or (
                (process / "comm").read_text().strip() == "ninja" and (process / "cwd").samefile(directory)
            ):
                yield int(process.name)
        except OSError:  # it has ended, or is another user's
            continue


def _is_open(link: Path, status: os.stat_result) -> bool:
    """``link``: an entry of /proc/PID/fd. By name first, for a stat would wait for a server that is gone."""
    try:
        return link.readlink().name == NAME and os.path.samestat(link.stat(), status)
    except OSError:
        return False


def _name(pid: int) -> str:
    try:
        return f"process {pid} ({Path(f'/proc/{pid}/comm').read_text().strip()})"
    except OSError:
        return f"process {pid}"


def _open_anywhere(lock: Path) -> bool | None:
    """Whether any process on this machine has the file open; None where the kernel gives no lease.

    Raises FileNotFoundError.
    """
    if not hasattr(fcntl, "F_SETLEASE"):
        return None
    try:
        descriptor = os.open(lock, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except PermissionError:
        return None
    try:
        # Who opens the file meanwhile makes the kernel signal us: by default with SIGIO, which ends a process.
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return False


def _shared(lock: Path) -> str | None:
    """Why a process of another machine may hold the lock."""
    kind = file_system(lock)
    return None if kind in LOCAL else f"on a file system ({kind}) that other machines may share"


def file_system(path: Path, table: Path = Path("/proc/self/mountinfo")) -> str:
    """The type of the file system that holds ``path``: "ext4", "nfs4"; "unknown" outside Linux."""
    try:
        lines = table.read_text(errors="replace").splitlines()
    except OSError:
        return "unknown"
    found, kind = "", "unknown"
    for line in lines:  # proc(5): the fifth word is the mount point, the first after " - " the type
        mounted, after = _unescaped(line.split()[4]), line.partition(" - ")[2].split()
        if path.resolve().is_relative_to(mounted) and len(mounted) >= len(found):
            found, kind = mounted, after[0]
    return kind


def _unescaped(word: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), word)


def _hidden(status: os.stat_result) -> str | None:
    """Why /proc may not show the holder."""
    if os.geteuid() not in (0, status.st_uid):
        return "another user's, whose processes can't be looked into"
    try:
        namespace = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        namespace = "none"
    if namespace != FIRST_PID_NAMESPACE:
        return "seen from a container, which does not show the machine's other processes"
    if status.st_uid in _unreadable_users():
        return "one of this user's processes can't be looked into"
    return None


def _unreadable_users() -> Iterator[int]:
    """The users of the processes that do not show their open files."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            next((process / "fd").iterdir(), None)
        except PermissionError:
            yield process.stat().st_uid
        except OSError:
            continue
