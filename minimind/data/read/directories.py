"""A directory -> the data files in it, and what is left out by name.

Contract: data are files of the known types, at any depth, sorted by name; hidden ones are passed over. A directory
that `datasets` saved (``save_to_disk``) is the files that its state.json lists, in that order, whatever else lies
there. What a hub puts beside data is left out. What a directory is said to hold lies in it: a link that leads out
could show any file of the reader's, so it is refused, but for the hub cache's own links to its blobs (see
base/files.py).
"""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from pathlib import Path

from minimind.base.errors import UserError
from minimind.base.files import open_inside, read_inside
from minimind.data.read import streams
from minimind.data.read.tables import READERS

_SUFFIXES = (".jsonl", ".json", ".ndjson", ".txt", ".parquet", ".arrow", ".feather")  # and those of READERS
_METADATA = frozenset({"dataset_infos.json", "dataset_info.json", "dataset_dict.json", "croissant.json"})
_STATE = "state.json"  # of a saved data set: which files hold its rows


def files_of(directory: Path) -> tuple[list[Path], list[str]]:
    """(data files, names left out). Raises UserError for a directory without any, or a link out of it."""
    inside = [p for p in sorted(directory.rglob("*")) if not p.is_dir() and not _hidden(p.relative_to(directory))]
    saved = {p.parent: _rows_of(directory, p) for p in inside if p.name == _STATE and _is_saved(directory, p)}
    known = list(_data_files(inside, saved))
    if not known:
        raise UserError(f"{directory}: a directory without any file named {' '.join((*_SUFFIXES, *READERS))}")
    taken = set(known)
    for path in known:
        _refuse_out_of(directory, path)
    return known, [str(p) for p in inside if p not in taken]


def _data_files(inside: list[Path], saved: dict[Path, list[Path]]) -> Iterator[Path]:
    for path in inside:
        if path.parent in saved:
            if path.name == _STATE:
                yield from saved[path.parent]
        elif streams.suffix(path.name) in (*_SUFFIXES, *READERS) and path.name not in _METADATA:
            yield path


def _state(directory: Path, path: Path) -> object:
    try:
        return json.loads(read_inside(directory, path.relative_to(directory)))
    except (OSError, ValueError, RecursionError):
        return None


def _is_saved(directory: Path, path: Path) -> bool:
    state = _state(directory, path)
    return isinstance(state, dict) and "_data_files" in state


def _rows_of(directory: Path, path: Path) -> list[Path]:
    """The files that a saved data set's state.json lists."""
    state = _state(directory, path)
    assert isinstance(state, dict)
    if any(state.get(key) for key in ("_indices_data_files", "_indices_files")):
        raise UserError(f"{path}: saved with a selection of its rows; save it again after flatten_indices()")
    listed = state["_data_files"]
    names = [entry.get("filename") for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
    if not names or not all(isinstance(name, str) and Path(name).name == name for name in names):
        raise UserError(f"{path}: lists no data files of the saved data set; save it again")
    return [path.parent / str(name) for name in names]


def _refuse_out_of(directory: Path, file: Path) -> None:
    try:
        open_inside(directory, file.relative_to(directory)).close()
    except OSError as error:  # of others, whoever opens the file says what is wrong
        if error.errno in (errno.ELOOP, errno.EINVAL):
            raise UserError(f"{file}: {error.strerror}; name the file itself, or take it away") from None


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)
