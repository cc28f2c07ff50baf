"""The files of a token store: which they are, whether they are what the manifest says, and taking them away again.

Contract
    A store is a directory with exactly these regular files. Nothing else is ever taken for one to be replaced: a
    directory with one more file, a link, or a manifest of another kind or version stays as it is.
    Contents are verified, not only sizes: the SHA-256 of each file against the manifest, and that all numbers point
    where they may (ids below the vocabulary, offsets that rise, flags that add up). Once: it is remembered in the
    cache by the manifest's hash and each file's device, inode, size, mtime and ctime, so that opening costs a few
    calls of stat until a file is touched. Files changed within the last two seconds are not remembered, as in git:
    they could change once more within the same tick of the clock.
    A store of before the hashes is verified by its numbers alone.

Known weakness: the hash shows that a store is what was written, not who wrote it; who can write to the directory can
write another store there, manifest and all. A disk that errs later, without a write, is not noticed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from minimind.base.errors import UserError
from minimind.base.files import is_directory, open_inside, remove_files, sha256_of, write_durably
from minimind.base.strict.json_text import brief, is_count, parse_json, read_small
from minimind.data.store.rooms import default_cache, room

MANIFEST = "manifest.json"
VERSION = 1
KINDS = ("pretrain", "sft")
COLUMNS: Mapping[str, Any] = {"offsets": np.int64, "source_file": np.int32, "source_line": np.int64, "bytes": np.int32}
_COUNTS = {"vocab_size": 1, "documents": 1, "tokens": 1, "trainable_tokens": 0, "bytes": 0}  # and the least of each
_BLOCK = 1 << 22  # numbers looked at at once
_SETTLED_SECONDS = 2.0
_AGAIN = "delete the store and prepare it again"

Array = npt.NDArray[Any]


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


def file_names(kind: str) -> set[str]:
    """The arrays' files in a store of this kind, without the manifest."""
    return {"tokens.bin", *(f"{name}.npy" for name in COLUMNS)} | ({"trainable.bin"} if kind == "sft" else set())


def source_path(entry: Any) -> Any:
    """The path in an entry of a manifest's "sources", which may tell more of the file."""
    return entry.get("path") if isinstance(entry, dict) else entry


def read_manifest(path: Path) -> tuple[dict[str, Any], str]:
    """The manifest of the store at ``path`` and its SHA-256. Raises UserError."""
    try:
        content = read_small(path, MANIFEST)
        manifest = parse_json(content)
    except OSError as error:
        raise UserError(
            f"no token store at {path} ({MANIFEST}: {error.strerror}); `minimind prepare --help` says how to make one"
        ) from error
    except ValueError as error:
        raise _damaged(path, str(error)) from error
    if not isinstance(manifest, dict) or not {"version", "files"} <= manifest.keys():
        raise _damaged(path, "no version or no list of files")
    if manifest["version"] != VERSION:
        raise UserError(
            f"{path} has format version {brief(manifest['version'])}, this program reads {VERSION}; prepare it again"
        )
    if reason := _misfit(manifest):
        raise _damaged(path, reason)
    return manifest, hashlib.sha256(content).hexdigest()


def _damaged(path: Path, reason: str) -> UserError:
    return UserError(f"{path / MANIFEST} is damaged ({reason}); {_AGAIN}")


def _misfit(manifest: Mapping[str, Any]) -> str | None:
    """What in a manifest is not as `StoreWriter` writes it, or None: every count is one, every name is ours."""
    kind, files, sources = manifest.get("kind"), manifest["files"], manifest.get("sources")
    if kind not in KINDS:
        return f"kind is {brief(kind)}"
    for name, least in _COUNTS.items():
        if not is_count(manifest.get(name), least):
            return f"{name} is {brief(manifest.get(name))}, not a count"
    if not _names_files(files, kind) or not all(map(is_count, files.values())):
        return "files does not name each file of a store with its size"
    if files["tokens.bin"] != manifest["tokens"] * token_dtype(manifest["vocab_size"]).itemsize:
        return f"{manifest['tokens']:,} tokens are not {files['tokens.bin']:,} bytes"
    if not isinstance(sources, list) or not all(isinstance(source_path(entry), str) for entry in sources):
        return "sources is not a list of paths"
    if "sha256" in manifest and not _names_files(manifest["sha256"], kind):
        return "sha256 does not name each file of a store"
    return None


def _names_files(value: Any, kind: str) -> bool:
    return isinstance(value, dict) and value.keys() == file_names(kind)


def open_arrays(path: Path) -> tuple[dict[str, Any], dict[str, Array]]:
    """The manifest and the arrays by name, mapped read-only and verified. Raises UserError."""
    manifest, digest = read_manifest(path)
    with contextlib.ExitStack() as stack:
        files = {name: _open(path, name, size, stack) for name, size in sorted(manifest["files"].items())}
        arrays = {name.partition(".")[0]: _mapped(path / name, file, manifest) for name, file in files.items()}
        began = time.time()
        stats = [os.fstat(file.fileno()) for file in files.values()]
        stamp = [(s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for s in stats]
        memo = _memo(hashlib.sha256(json.dumps([digest, stamp]).encode()).hexdigest())
        if memo is None or not memo.is_file():
            _verify(path, manifest, files, arrays)
            if memo is not None and began - max(max(s.st_mtime, s.st_ctime) for s in stats) > _SETTLED_SECONDS:
                with contextlib.suppress(OSError):  # only a memo: without it the files are read again
                    write_durably(memo, "")
    return manifest, arrays


def holds_store(path: Path) -> bool:
    """Whether ``path`` is a store, of this program's making, and nothing besides: it may be replaced."""
    try:
        manifest, _ = read_manifest(path)
        entries = {entry.name: entry.stat(follow_symlinks=False).st_mode for entry in os.scandir(path)}
    except (UserError, OSError):
        return False
    regular = all(stat.S_ISREG(mode) for mode in entries.values())
    return is_directory(path) and regular and set(entries) == {MANIFEST, *manifest["files"]}


def remove_store(path: Path) -> None:
    """Delete a store's files and its directory. OSError, and what is not a store's stays, if it holds more."""
    if not remove_files(path, {MANIFEST, *file_names("sft")}.__contains__):
        path.rmdir()  # says what is in the way


def _open(path: Path, name: str, expected: int, stack: contextlib.ExitStack) -> BinaryIO:
    try:
        file = stack.enter_context(open_inside(path, name))
    except OSError as error:
        raise UserError(f"{path / name}: {error.strerror}; {_AGAIN}") from error
    size = os.fstat(file.fileno()).st_size
    if size != expected:
        raise UserError(f"{path / name} has {size:,} bytes, the manifest says {expected:,}; {_AGAIN}")
    return file


def _mapped(path: Path, file: BinaryIO, manifest: Mapping[str, Any]) -> Array:
    """The file as a plain array over its map, whose slices cost a tenth of a memmap's."""
    name = path.name.partition(".")[0]
    expected_shape: tuple[int, ...] = _shape(name, manifest)
    shape = expected_shape
    try:
        if name in COLUMNS:
            np.lib.format.read_magic(file)
            shape, _, dtype = np.lib.format.read_array_header_1_0(file)
            expected = np.dtype(COLUMNS[name]).newbyteorder("<")
        else:
            dtype = expected = token_dtype(manifest["vocab_size"]) if name == "tokens" else np.dtype(np.uint8)
        if dtype != expected or shape != expected_shape:
            raise ValueError(f"holds {dtype} {shape}")
        return np.asarray(np.memmap(file, dtype, "r", offset=file.tell(), shape=shape))
    except Exception as error:  # a column's header is Python text, which fails in as many ways as there are
        raise UserError(f"{path}: is not what the manifest says ({error}); {_AGAIN}") from error


def _shape(name: str, manifest: Mapping[str, Any]) -> tuple[int]:
    return (manifest["documents"] + (name == "offsets") if name in COLUMNS else manifest["tokens"],)


def _memo(stamp: str) -> Path | None:
    """The file whose being there says that files of this stamp were verified; None without a cache."""
    try:
        return room(default_cache(), "verified") / stamp
    except UserError:
        return None


def _verify(
    path: Path, manifest: Mapping[str, Any], files: Mapping[str, BinaryIO], arrays: Mapping[str, Array]
) -> None:
    digests = manifest.get("sha256")
    if digests is not None:
        for name, file in files.items():
            file.seek(0)
            if sha256_of(file) != digests[name]:
                raise UserError(f"{path / name}: is not what was prepared (its SHA-256 differs); {_AGAIN}")
    for name, holds in _rules(manifest, arrays):
        if not holds():
            raise UserError(f"{path / name}: holds numbers that no store holds; {_AGAIN}")


def _rules(manifest: Mapping[str, Any], arrays: Mapping[str, Array]) -> Iterator[tuple[str, Callable[[], bool]]]:
    """What must hold of each file's numbers, so that no index leads out of an array."""
    documents, tokens, offsets = manifest["documents"], manifest["tokens"], arrays["offsets"]
    yield (
        "offsets.npy",
        lambda: bool(
            documents > 0
            and offsets[0] == 0
            and offsets[-1] == tokens
            and all((np.diff(offsets[i : i + _BLOCK + 1]) >= 2).all() for i in range(0, documents, _BLOCK))
        ),
    )
    yield ("tokens.bin", lambda: all(block.max() < manifest["vocab_size"] for block in _blocks(arrays["tokens"])))
    yield (
        "source_file.npy",
        lambda: all(
            block.min() >= 0 and block.max() < len(manifest["sources"]) for block in _blocks(arrays["source_file"])
        ),
    )
    yield ("bytes.npy", lambda: sum(int(block.sum()) for block in _blocks(arrays["bytes"])) == manifest["bytes"])
    flags = arrays.get("trainable")
    if flags is None:
        yield MANIFEST, lambda: manifest["trainable_tokens"] == tokens - documents
    else:
        yield (
            "trainable.bin",
            lambda: (
                all(block.max() <= 1 for block in _blocks(flags))
                and sum(int(block.sum()) for block in _blocks(flags)) == manifest["trainable_tokens"]
            ),
        )


def _blocks(values: Array) -> Iterator[Array]:
    return (values[start : start + _BLOCK] for start in range(0, len(values), _BLOCK))
