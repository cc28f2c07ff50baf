"""Where finished stores lie, how a file's content is known, and how two runs keep out of each other's way."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from minimind.data import streams
from minimind.data.sources import Source

Say = Callable[[str], None]


def default_cache() -> Path:
    """``$MINIMIND_CACHE``, else ``~/.cache/minimind``."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(os.environ.get("MINIMIND_CACHE") or Path(home) / "minimind")


def content_hash(source: Source, cache: Path) -> str:
    """SHA-256 of the file's bytes. Remembered by path, size, times and inode, so that 10 GB are hashed once.

    As git does, a file modified within the last two seconds is not remembered: it may change once more within
    the same mtime.
    """
    streams.open_bytes(source.path, source.name).__exit__()  # every failure to open is explained there
    status = source.path.stat()
    stamp = json.dumps(
        [str(source.path.resolve()), status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
    )
    memo = cache / "hashes" / hashlib.sha256(stamp.encode()).hexdigest()[:32]
    with contextlib.suppress(OSError):
        return memo.read_text()
    digest = _digest(source.path)
    if time.time() - max(status.st_mtime, status.st_ctime) > 2:
        with contextlib.suppress(OSError):  # only a memo: without it the file is hashed again
            memo.parent.mkdir(parents=True, exist_ok=True)
            temporary = memo.with_name(f"{memo.name}.{os.getpid()}")
            temporary.write_text(digest)
            temporary.replace(memo)
    return digest


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


@contextlib.contextmanager
def locked(path: Path, say: Say) -> Iterator[None]:
    """Hold the lock file ``path``; wait for a living holder, saying so. A dead one holds nothing."""
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip()  # nothing yet, if it has only just begun
            who = f"process {holder}" if holder else "another process"
            say(f"waiting: {who} is preparing the same data ({path})")
            fcntl.flock(file, fcntl.LOCK_EX)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
