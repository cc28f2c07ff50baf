"""How a file's content is known, and how two runs keep out of each other's way."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from minimind.base.files import lock_file, read_inside, sha256_of, write_durably
from minimind.data.read import streams
from minimind.data.read.remote import Remote
from minimind.data.read.sources import Source
from minimind.data.store.rooms import room

_SHA256 = re.compile(r"[0-9a-f]{64}")
Say = Callable[[str], None]


def content_hash(source: Source, cache: Path) -> str:
    """SHA-256 of the file's bytes. Remembered by path, size, times and inode, so that 10 GB are hashed once.

    As git does, a file modified within the last two seconds is not remembered: it may change once more within
    the same mtime. Of a file on a hub the index knows it.
    """
    if isinstance(source.path, Remote):
        return source.path.sha256
    streams.open_bytes(source.path, source.name).__exit__()  # every failure to open is explained there
    status = source.path.stat()
    stamp = json.dumps(
        [str(source.path.resolve()), status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
    )
    hashes, memo = room(cache, "hashes"), hashlib.sha256(stamp.encode()).hexdigest()[:32]
    with contextlib.suppress(OSError, ValueError):
        if _SHA256.fullmatch(remembered := read_inside(hashes, memo).decode("ascii")):
            return remembered
    with source.path.open("rb") as file:
        digest = sha256_of(file)
    if time.time() - max(status.st_mtime, status.st_ctime) > 2:
        with contextlib.suppress(OSError):  # only a memo: without it the file is hashed again
            write_durably(hashes / memo, digest)
    return digest


@contextlib.contextmanager
def locked(path: Path, say: Say) -> Iterator[None]:
    """Hold the lock file ``path``; wait for a living holder, saying so. A dead one holds nothing."""
    with lock_file(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read(20).decode("ascii", "replace").strip()  # nothing yet, if it has only just begun
            who = f"process {holder}" if holder else "another process"
            say(f"waiting: {who} is preparing the same data ({path})")
            fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        file.truncate()
        file.write(str(os.getpid()).encode())
        yield
