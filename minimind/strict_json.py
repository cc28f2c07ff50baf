"""Small files of strangers: JSON in bounded size and depth, read from regular files only.

Contract. What is wrong is a ``ValueError`` whose text is a reason without the file's name, which the caller knows:
larger than a file of this kind ever is, no regular file (reading a FIFO or a device waits for ever or never ends),
not UTF-8, not JSON, a key twice in one object, nested more deeply than anything that we or others write. OSError as it
comes. ``is_number`` and ``is_count`` are what a number must be before it is computed or formatted with: JSON has
1e400 and integers of 4,000 digits.
"""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeGuard

MAX_BYTES = 16 << 20  # read into objects at most some 400 MiB: `[[],[],...`
MAX_DEPTH = 64  # a DeepSpeed JSON or a store's manifest has five; Python's own functions give up near 1,000
LARGEST = 1 << 63


def read_small(path: Path, limit: int = MAX_BYTES) -> bytes:
    """All bytes of a regular file of at most ``limit`` bytes. Raises OSError, and ValueError with the reason."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a FIFO without a writer would be waited for
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("not a regular file")
        content = file.read(limit + 1)
    if len(content) > limit:
        raise ValueError(f"larger than {size(limit)}, which no file of this kind is")
    return content


def read_text(path: Path, limit: int = MAX_BYTES) -> str:
    """The same as text, without a byte-order mark."""
    try:
        return read_small(path, limit).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start}: save the file as UTF-8") from None


def read_json(path: Path, limit: int = MAX_BYTES) -> Any:
    """The value in a JSON file. Raises OSError, and ValueError with the reason."""
    return parse_json(read_text(path, limit))


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text. Raises ValueError with the reason."""
    try:
        value = json.loads(text, object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise ValueError(f"not JSON: {error.msg} at {place}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start}: save the file as UTF-8") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    refuse_depth(value)
    return value


def read_pointer(path: Path) -> Path:
    """The path that a ``latest`` or ``best`` file names, inside its directory. Raises OSError, and ValueError with the
    reason."""
    name = read_text(path, limit=4096).strip()
    if (
        not name
        or not name.isprintable()
        or len(name) > 200
        or name.startswith("/")
        or ".." in Path(name).parts
    ):
        raise ValueError(f"it names {brief(name)}, which is nothing inside {path.parent}")
    return path.parent / name


def refuse_depth(value: object) -> None:
    """ValueError for a value of lists and dictionaries that is nested more than ``MAX_DEPTH`` deep."""
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        level = [item for parent in level for item in _inside(parent)]
        if not level:
            return
    raise ValueError(f"nested more than {MAX_DEPTH} deep")


def is_number(value: object) -> TypeGuard[int | float]:
    """A finite number that a float holds; no boolean."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return abs(value) < LARGEST if isinstance(value, int) else math.isfinite(value)


def is_count(value: object, least: int = 0) -> TypeGuard[int]:
    """A whole number from ``least`` that 64 bits hold; no boolean."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < LARGEST


def brief(value: object) -> str:
    """A wrong value as messages show it: short, whatever it is."""
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "a list"
    text = (
        json.dumps(value, default=str)
        if not isinstance(value, int) or is_count(abs(value))
        else "a huge number"
    )
    return text if len(text) <= 40 else f"{text[:37]}..."


def size(count: int) -> str:
    """A limit in words: ``16 MiB``, ``256 KiB``."""
    return f"{count >> 20} MiB" if count >= 1 << 20 else f"{count >> 10} KiB"


def _inside(value: Any) -> Iterable[Any]:
    """The lists and dictionaries directly below ``value``."""
    below = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [item for item in below if isinstance(item, (dict, list))]


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"key {brief(twice)} appears twice in one object")
    return value
