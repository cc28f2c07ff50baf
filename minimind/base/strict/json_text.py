"""Small files of strangers: JSON in bounded size and depth, read through base/files.py, which follows no link out.

Contract. What is wrong is a ``ValueError`` whose text is a reason without the file's name, which the caller knows:
larger than a file of this kind ever is, not UTF-8, not JSON, a key twice in one object, nested more deeply than
anything that we or others write. OSError as base/files.py raises it. ``is_number`` and ``is_count`` are what a number
must be before it is computed or formatted with: JSON has 1e400 and integers of 4,000 digits.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO, TypeGuard

from minimind.base.defaults import CHECKPOINTS, STEP_NAME
from minimind.base.files import open_inside, open_named

MAX_BYTES = 16 << 20  # read into objects at most some 400 MiB: `[[],[],...`
MAX_DEPTH = 64  # a DeepSpeed JSON or a store's manifest has five; Python's own functions give up near 1,000
LARGEST = 1 << 63
_POINTED = re.compile(rf"{CHECKPOINTS}/{STEP_NAME}")


def read_small(directory: Path, name: str, limit: int = MAX_BYTES) -> bytes:
    """All bytes of ``directory/name``, at most ``limit``. Raises OSError, and ValueError with the reason."""
    with open_inside(directory, name) as file:
        return _bounded(file, limit)


def read_small_named(path: Path, limit: int = MAX_BYTES) -> bytes:
    """The same of a file that a person named, which may be a link."""
    with open_named(path) as file:
        return _bounded(file, limit)


def read_text_named(path: Path, limit: int = MAX_BYTES) -> str:
    """The same as text, without a byte-order mark."""
    return _as_text(read_small_named(path, limit))


def read_json(directory: Path, name: str, limit: int = MAX_BYTES) -> Any:
    """The value in the JSON file ``directory/name``. Raises OSError, and ValueError with the reason."""
    return parse_json(read_small(directory, name, limit))


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text. Raises ValueError with the reason."""
    try:
        value = json.loads(_as_text(text) if isinstance(text, bytes) else text, object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise ValueError(f"not JSON: {error.msg} at {place}") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    refuse_depth(value)
    return value


def read_pointer(run_dir: Path, name: str) -> Path:
    """The checkpoint that a run's ``latest`` or ``best`` names, which need not be there. Raises OSError, and ValueError
    with the reason where it names anything else."""
    target = _as_text(read_small(run_dir, name, limit=4096)).strip()
    if not _POINTED.fullmatch(target):
        raise ValueError(f"it names {brief(target)}, which is no checkpoint of this run")
    return run_dir / target


def reason_of(error: OSError | ValueError) -> str:
    """Why a file was not read, in words and without its name."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


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
    text = json.dumps(value, default=str) if not isinstance(value, int) or is_count(abs(value)) else "a huge number"
    return text if len(text) <= 40 else f"{text[:37]}..."


def size(count: int) -> str:
    """A limit in words: ``16 MiB``, ``256 KiB``."""
    return f"{count >> 20} MiB" if count >= 1 << 20 else f"{count >> 10} KiB"


def _bounded(file: BinaryIO, limit: int) -> bytes:
    content = file.read(limit + 1)
    if len(content) > limit:
        raise ValueError(f"larger than {size(limit)}, which no file of this kind is")
    return content


def _as_text(content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start}: save the file as UTF-8") from None


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
