"""Files written whole or not at all, read only from where they are said to be, and never through a stranger's link.

Contract
    Writing: a file is made new (exclusive, no link followed) under a name that nobody can foresee, brought to the disk
    and renamed. A reader finds the old content or the new, never a part. A link that stood in its place is replaced;
    what it names stays as it was. A killed writer's file goes with the next one that is written into that directory.
    Directories below the one that a person named are made, or are there as directories: a link is refused.
    Reading: ``open_inside`` and its kin take a regular file below the named directory. A link is followed only to a
    file below the same directory, or as Hugging Face's hub lays its cache out (``snapshots/REVISION/NAME`` ->
    ``blobs/HASH`` of the same repository). A pipe or device is never waited for.
    Deleting: ``remove_files`` takes what its caller names as its own; whatever else is there stays, links too.
    What can't be done is an OSError whose ``strerror`` says why.

The directory or file that a person names may itself be a link: whoever wrote it can write what it names.
Weakness: libraries that open by name (safetensors, torch, numpy) get the checked name, so that somebody who changes
the directory meanwhile could still exchange it; a directory that others can write to is not made safe by this.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import Any, BinaryIO, NoReturn, cast

_TEMPORARY = re.compile(r"\.minimind-[0-9a-f]{16}\.tmp")
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC  # NONBLOCK: no wait for a pipe
_YOUNG_SECONDS = 60.0
_LINK = "a symbolic link, which is not followed"
_NOT_REGULAR = "no regular file"


def write_durably(path: Path, text: str, mode: int = 0o666) -> None:
    """Replace ``path`` by ``text`` in one step that survives a crash. ``mode`` as for ``os.open``."""
    write_bytes_durably(path, text.encode("utf-8"), mode)


def write_bytes_durably(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Replace ``path`` by ``content`` in one step that survives a crash."""
    with replacing(path, mode) as file:
        file.write(content)


@contextmanager
def replacing(path: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """A new file that takes ``path``'s place when the block ends well; its ``name`` is for libraries that take one."""
    _refuse_device(path)
    _remove_dead(path.parent)
    temporary = path.parent / f".minimind-{secrets.token_hex(8)}.tmp"
    with create(temporary, mode) as file:
        try:
            with contextlib.suppress(OSError):  # a file system without locks: then its debris stays
                fcntl.flock(file, fcntl.LOCK_EX)
            yield file
            file.flush()
            os.fsync(file.fileno())
            _adopt(temporary, file)
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    sync_directory(path.parent)


@contextmanager
def passing(directory: Path, content: bytes) -> Iterator[str]:
    """The name of a new file in ``directory`` that others can read until the block ends. OSError.

    A killed writer's goes like those of ``replacing``.
    """
    path = directory / f".minimind-{secrets.token_hex(8)}.tmp"
    with create(path) as file:
        try:
            with contextlib.suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_EX)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())  # other hosts see it now
            yield path.name
        finally:
            path.unlink(missing_ok=True)


def _adopt(temporary: Path, file: BinaryIO) -> None:
    """A library that was given the name may have put a file of its own there, for its owner alone (safetensors 0.8):
    that one gets the mode of ours, and is brought to the disk."""
    own = os.fstat(file.fileno())
    descriptor = os.open(temporary, _READ)
    try:
        if os.fstat(descriptor).st_ino != own.st_ino:
            os.fchmod(descriptor, stat.S_IMODE(own.st_mode))
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def create(path: Path, mode: int = 0o666) -> BinaryIO:
    """A new file, open for writing. FileExistsError if anything has that name, a link too."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return cast(BinaryIO, open(path, "wb", opener=lambda name, _: os.open(name, flags, mode)))


def append_to(path: Path) -> BinaryIO:
    """A file to be written at its end, unbuffered, made if need be. OSError if it is a link or has a second name."""
    return cast(BinaryIO, _open_own(path, os.O_WRONLY | os.O_APPEND, "ab"))


def lock_file(path: Path) -> BinaryIO:
    """A file to be locked, open for reading and writing, made if need be. OSError as for ``append_to``."""
    return cast(BinaryIO, _open_own(path, os.O_RDWR, "r+b"))


def _open_own(path: Path, flags: int, mode: str) -> Any:
    flags |= os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        _explain(error, path)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        os.close(descriptor)
        what = _NOT_REGULAR if not stat.S_ISREG(status.st_mode) else "has another name too, which would change with it"
        raise OSError(errno.EINVAL, what, str(path))
    return os.fdopen(descriptor, mode, buffering=0)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable: a rename is one only after this."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def subdirectory(root: Path, *names: str, mode: int = 0o777) -> Path:
    """``root/names...``, made if need be (``root`` with its parents). OSError where one of ``names`` is a link."""
    root.mkdir(parents=True, exist_ok=True)
    for name in names:
        root = root / name
        with contextlib.suppress(FileExistsError):
            root.mkdir(mode)
        _require_directory(root)
    return root


def _require_directory(path: Path) -> None:
    mode = path.lstat().st_mode
    if not stat.S_ISDIR(mode):
        raise NotADirectoryError(errno.ENOTDIR, _LINK if stat.S_ISLNK(mode) else "no directory", str(path))


def is_directory(path: Path) -> bool:
    """Whether a directory has that name: not a link to one."""
    return path.is_dir() and not path.is_symlink()


def open_inside(directory: Path, name: str | PurePath) -> BinaryIO:
    """``directory/name`` for reading. OSError if it is no regular file there (see the module's contract)."""
    parts = PurePath(name).parts
    if not parts or ".." in parts or PurePath(name).is_absolute() or not _is_name(str(name)):
        raise OSError(errno.EINVAL, f"names no file in {directory}", str(name))
    try:
        try:
            descriptor = _descend(directory, parts)
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENOTDIR):
                raise
            descriptor = _descend(*_linked(directory, parts))
    except OSError as error:
        _explain(error, directory.joinpath(*parts))
    return _regular(descriptor, directory.joinpath(*parts))


def read_inside(directory: Path, name: str | PurePath) -> bytes:
    """All of ``directory/name``; OSError as for ``open_inside``."""
    with open_inside(directory, name) as file:
        return file.read()


def path_inside(directory: Path, name: str | PurePath) -> Path:
    """The real path of ``directory/name``, for libraries that open by name; OSError as for ``open_inside``."""
    open_inside(directory, name).close()
    return Path(os.path.realpath(directory / name))


def directory_inside(directory: Path, name: str | PurePath) -> Path:
    """``directory/name``, a directory that lies in ``directory``. OSError otherwise: a link out of it too."""
    path = directory / name
    if not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "no directory", str(path))
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(directory)):
        raise OSError(errno.ELOOP, f"leads out of {directory} by a link, which is not followed", str(path))
    return path


def open_named(path: Path) -> BinaryIO:
    """A regular file that a person named, which may be a link to one, for reading. OSError."""
    if not _is_name(str(path)):
        raise OSError(errno.EINVAL, "a name that no file can have", str(path))
    return _regular(os.open(path, _READ & ~os.O_NOFOLLOW), path)


def read_named(path: Path) -> bytes:
    """All of a regular file that a person named; OSError as for ``open_named``."""
    with open_named(path) as file:
        return file.read()


def sha256_of(file: BinaryIO) -> str:
    """SHA-256 of the rest of an open file, in hexadecimal digits."""
    digest = hashlib.sha256()
    while block := file.read(1 << 20):
        digest.update(block)
    return digest.hexdigest()


def remove_files(directory: Path, ours: Callable[[str], bool]) -> bool:
    """Delete the regular files below ``directory`` whose relative path is ``ours``, then what is empty; is it gone?

    Nothing is followed: a link stays, and ``directory`` itself if it is one. Raises OSError.
    """
    if not is_directory(directory):
        return False
    for parent, directories, names in os.walk(directory, topdown=False):
        for name in names:
            path = Path(parent, name)
            if ours(path.relative_to(directory).as_posix()) and stat.S_ISREG(path.lstat().st_mode):
                path.unlink()
        for name in directories:
            with contextlib.suppress(OSError):  # holds what is not ours
                Path(parent, name).rmdir()
    with contextlib.suppress(OSError):
        directory.rmdir()
    return not os.path.lexists(directory)


def free_name(path: Path, number: Callable[[int], str]) -> Path:
    """The first of ``number(1)``, ``number(2)`` ... beside ``path`` that nothing has, no dangling link either."""
    names = (path.with_name(number(n)) for n in range(1, 10_000))
    return next(name for name in names if not os.path.lexists(name))


def _is_name(path: str) -> bool:
    """Whether the system takes it: Python raises ValueError for a NUL and for half a surrogate pair."""
    try:
        return b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        return False


def _descend(root: Path, parts: Sequence[str]) -> int:
    """A descriptor of ``root/parts``, no link followed below ``root``."""
    at = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts[:-1]:
            below = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
            os.close(at)
            at = below
        return os.open(parts[-1], _READ, dir_fd=at)
    finally:
        os.close(at)


def _linked(directory: Path, parts: Sequence[str]) -> tuple[Path, Sequence[str]]:
    """Where a link leads, as a root and the parts below it; OSError unless that is one of the places that may be."""
    base = Path(os.path.realpath(directory))
    target = Path(os.path.realpath(base.joinpath(*parts), strict=True))
    blobs = [place.parent / "blobs" for place in (base, *base.parents) if place.name == "snapshots"]
    for root in (base, *blobs[:1]):
        if target != root and target.is_relative_to(root):
            return root, target.relative_to(root).parts
    raise OSError(errno.ELOOP, f"leads out of {directory} by a link, which is not followed")


def _regular(descriptor: int, path: Path) -> BinaryIO:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, _NOT_REGULAR, str(path))
    return os.fdopen(descriptor, "rb")


def _explain(error: OSError, path: Path) -> NoReturn:
    """The error with the whole path, and the kernel's words for a link in ours."""
    kernels = error.strerror == os.strerror(errno.ELOOP)
    raise OSError(error.errno, _LINK if kernels else error.strerror, str(path)) from None


def _refuse_device(path: Path) -> None:
    """A rename would put a file where /dev/stdout was."""
    if path.parent.resolve() == Path("/dev") or (path.exists() and not path.is_file()):
        raise OSError(errno.EINVAL, _NOT_REGULAR, str(path))


def _remove_dead(directory: Path) -> None:
    """Delete what killed writers left: a living one holds the lock of its file, or has made it just now."""
    for path in directory.iterdir():
        if not _TEMPORARY.fullmatch(path.name):
            continue
        with contextlib.suppress(OSError), _regular(os.open(path, _READ), path) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if time.time() - os.fstat(file.fileno()).st_mtime > _YOUNG_SECONDS:
                path.unlink()
