"""The cache directory and its rooms, which belong to one user.

Contract: what is read from the cache was put there by this user. A room (``ROOMS``) is a directory of this user's, mode
0700, never a link. The cache itself is made 0700, and made so again if it holds nothing but rooms; one that somebody
else owns or could have put there (in a place that all can write to), or that all can write to, is refused in one line.
Stores of another owner are refused: name them instead.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from minimind.base.errors import UserError
from minimind.base.files import subdirectory

ROOMS = frozenset({"stores", "hashes", "verified", "spool", "demo", "benchmarks", "overlaps", "history", "tokenizers"})
_PRIVATE = 0o700
_ADVICE = "let MINIMIND_CACHE name a directory of your own"


def default_cache() -> Path:
    """``$MINIMIND_CACHE``, else ``~/.cache/minimind``."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(os.environ.get("MINIMIND_CACHE") or Path(home) / "minimind")


def room(cache: Path, name: str) -> Path:
    """The directory ``name`` of the cache, made private, with the cache itself, if need be.

    Raises UserError when it can't be made, or is or may be somebody else's.
    """
    assert name in ROOMS
    try:
        _open_cache(cache)
        directory = subdirectory(cache, name, mode=_PRIVATE)
        require_owner(directory)
        if stat.S_IMODE(directory.stat().st_mode) & 0o077:
            directory.chmod(_PRIVATE)
    except OSError as error:
        raise UserError(
            f"{error.filename or cache}: can't be the cache: {error.strerror or error}; {_ADVICE}"
        ) from error
    return directory


def require_owner(path: Path) -> None:
    """Raises UserError if ``path`` belongs to another user. OSError if there is none."""
    owner = path.lstat().st_uid
    if owner != os.geteuid():
        raise UserError(f"{path}: belongs to another user (uid {owner}), who could change it; {_ADVICE}")


def _open_cache(cache: Path) -> None:
    missing = [place for place in (cache, *cache.parents) if not place.exists()]
    for place in reversed(missing):  # whatever the umask is
        place.mkdir(_PRIVATE if place == cache else 0o755, exist_ok=True)
    real = cache.resolve()
    for place in (real, *real.parents):
        _refuse_planted(place)
    status = real.stat()
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid not in (0, os.geteuid()):
        raise UserError(f"{cache}: belongs to another user (uid {status.st_uid}); {_ADVICE}")
    if status.st_uid == os.geteuid() and mode & 0o077 and {entry.name for entry in real.iterdir()} <= ROOMS:
        real.chmod(_PRIVATE)
    elif mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        raise UserError(f"{cache}: all can write to it (mode {mode:04o}); {_ADVICE}")


def _refuse_planted(place: Path) -> None:
    """A directory in one that all can write to must be this user's or root's, and that one must be sticky."""
    parent = place.parent.stat()
    if place == place.parent or not parent.st_mode & stat.S_IWOTH:
        return
    owner = place.stat().st_uid
    if owner not in (0, os.geteuid()) or not parent.st_mode & stat.S_ISVTX:
        raise UserError(f"{place}: others can exchange it, since all can write to {place.parent}; {_ADVICE}")
