"""The token store: a tokenised corpus as a directory of flat arrays, read through memory maps.

    manifest.json    written last: what the store holds and the size of every file
    tokens.bin       uint16 (uint32 if the vocabulary is above 65,536): all documents, one after the other
    offsets.npy      int64 [documents + 1]: document i is tokens[offsets[i]:offsets[i + 1]]
    trainable.bin    uint8 a token, 1 = carries loss (kind "sft" only; in "pretrain" all but a document's first do)
    source_file.npy  int32 [documents]: index into the manifest's "sources"
    source_line.npy  int64 [documents]: line in that file, 1-based
    bytes.npy        int32 [documents]: UTF-8 bytes of the text (for bits per byte)

Contract: a store is finished or absent. It is built in a hidden sibling directory, every file is fsynced,
the manifest comes last, and one rename makes it visible; killed at any moment it never looks complete, and
a full disk leaves nothing behind. Opening reads the manifest and file sizes only, so it takes milliseconds
at any size, and processes on one machine share the pages. Writing holds about a million tokens in memory,
however large the store becomes.

Known weakness: sizes are verified at opening, contents are not; a flipped bit on the disk goes unseen.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import secrets
import shutil
import socket
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from minimind.defaults import Kind as Kind
from minimind.durable import sync_directory
from minimind.errors import UserError
from minimind.strict_json import brief, is_count, read_json

MANIFEST = "manifest.json"
VERSION = 1
_FLUSH_TOKENS = 1 << 20
_COLUMNS = {"offsets": np.int64, "source_file": np.int32, "source_line": np.int64, "bytes": np.int32}

Array = npt.NDArray[Any]


class TokenStore:
    """A finished store. All arrays are read-only memory maps. Make one with `TokenStore.open`."""

    def __init__(self, path: Path, manifest: Mapping[str, Any]) -> None:
        self.path = path
        self.manifest = manifest
        self.kind: Kind = manifest["kind"]
        self.vocab_size: int = manifest["vocab_size"]
        self.num_tokens: int = manifest["tokens"]
        self.num_trainable: int = manifest["trainable_tokens"]
        self.num_bytes: int = manifest["bytes"]
        # np.asarray: a plain array over the map, whose slices cost a tenth of a memmap's.
        self.tokens: Array = np.asarray(np.memmap(path / "tokens.bin", _token_dtype(self.vocab_size), "r"))
        self.offsets, self._source_file, self._source_line, self.document_bytes = (
            _column(path, name, manifest["documents"] + (name == "offsets")) for name in _COLUMNS
        )
        if self.offsets[0] != 0 or self.offsets[-1] != self.num_tokens:
            raise UserError(
                f"{path}: its offsets are not those of {self.num_tokens:,} tokens; prepare it again"
            )
        self.trainable_mask: Array | None = None
        if self.kind == "sft":
            self.trainable_mask = np.asarray(np.memmap(path / "trainable.bin", np.uint8, "r"))

    @classmethod
    def open(cls, path: str | Path) -> TokenStore:
        """Map a store. UserError if there is none, or if a file's size is not the one that the manifest names."""
        path = Path(path)
        manifest = _read_manifest(path)
        for name, size in manifest["files"].items():
            _check_size(path / name, size)
        return cls(path, manifest)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def num_predictions(self) -> int:
        """Positions that the model reads: all tokens but the last of each document, whether they carry loss or not."""
        return self.num_tokens - len(self)

    @cached_property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Tokens of each document, int64 [documents]. UserError if they are none."""
        lengths = np.diff(self.offsets)
        if lengths.min() < 2:
            raise UserError(f"{self.path}: its offsets are damaged; delete the store and prepare it again")
        return lengths

    @property
    def source_files(self) -> Array:
        """Which of the manifest's "sources" each document came from, int32 [documents]."""
        return self._source_file

    def document(self, index: int) -> Array:
        """All ids of one document, bos included; a read-only view."""
        return self.tokens[self._span(index)]

    def trainable(self, index: int) -> npt.NDArray[np.bool_] | None:
        """Whether each token of the document carries loss; None in a pretraining store."""
        if self.trainable_mask is None:
            return None
        return self.trainable_mask[self._span(index)].astype(np.bool_)

    def source(self, index: int) -> tuple[str, int]:
        """The file and 1-based line that the document came from."""
        self._span(index)
        number = int(self._source_file[index])
        if not 0 <= number < len(self.manifest["sources"]):
            raise UserError(f"{self.path}: document {index} is of file {number}, which it does not name")
        return str(_source_path(self.manifest["sources"][number])), int(self._source_line[index])

    def _span(self, index: int) -> slice:
        if not 0 <= index < len(self):
            raise IndexError(f"document {index} of a store of {len(self)}")
        return slice(int(self.offsets[index]), int(self.offsets[index + 1]))


class StoreWriter:
    """Builds a store at `path`, which must not exist yet. End with `finish` or `abort`.

    Every failure of the disk removes what was written and raises a UserError that says so.
    """

    def __init__(self, path: str | Path, vocab_size: int, kind: Kind = "pretrain") -> None:
        self.path = Path(path)
        self.kind: Kind = kind
        self.vocab_size = vocab_size
        self._building = self.path.with_name(
            f"{_building_prefix(self.path)}{os.getpid()}-{secrets.token_hex(4)}"
        )
        self._files: dict[str, _File] = {}
        self._pending = _Pending()
        self._totals = {"documents": 0, "tokens": 0, "trainable_tokens": 0, "bytes": 0}
        with self._disk():
            _remove_debris(self.path)
            self._building.mkdir(parents=True)
            for name, dtype in _COLUMNS.items():
                self._files[name] = _File(self._building / f"{name}.npy", dtype)
            self._files["tokens"] = _File(self._building / "tokens.bin", _token_dtype(vocab_size))
            if kind == "sft":
                self._files["trainable"] = _File(self._building / "trainable.bin", np.uint8)
            self._files["offsets"].write(np.zeros(1))

    def add(
        self,
        tokens: Sequence[int] | Array,
        trainable: Sequence[bool] | Array | None,
        file_index: int,
        line: int,
        num_bytes: int,
    ) -> None:
        """Append one document: its full ids and, for kind "sft" only, a flag for each. Two tokens at least."""
        if len(tokens) < 2:
            raise ValueError(f"a document of {len(tokens)} tokens holds nothing to predict")
        if (trainable is not None) != (self.kind == "sft") or (
            trainable is not None and len(trainable) != len(tokens)
        ):
            raise ValueError('a document of kind "sft" needs one trainable flag a token, "pretrain" none')
        self._pending.add(tokens, trainable, (len(tokens), file_index, line, num_bytes))
        if self._pending.num_tokens >= _FLUSH_TOKENS:
            self._flush()

    def finish(self, manifest_extra: Mapping[str, Any]) -> Path:
        """Make the store visible under its path. `manifest_extra` holds "sources": paths, or mappings with "path".

        If another process finished a store there meanwhile, that one stays and this one is discarded.
        """
        if "sources" not in manifest_extra:
            self.abort()
            raise ValueError('the manifest needs "sources"')
        self._flush()
        if not self._totals["documents"]:
            self.abort()
            raise UserError(f"{self.path}: no document to store; the files hold nothing to train on")
        with self._disk():
            sizes = {file.path.name: file.finish() for file in self._files.values()}
            manifest = {
                **manifest_extra,
                "version": VERSION,
                "kind": self.kind,
                "vocab_size": self.vocab_size,
                **self._totals,
                "files": sizes,
            }
            self._publish(json.dumps(manifest, ensure_ascii=False, indent=1))
        return self.path

    def abort(self) -> None:
        """Remove what was written; the path stays as it was. Harmless after `finish`."""
        for file in self._files.values():
            file.close()
        shutil.rmtree(self._building, ignore_errors=True)

    def _publish(self, manifest: str) -> None:
        with (self._building / MANIFEST).open("w", encoding="utf-8") as file:
            file.write(manifest)
            file.flush()
            os.fsync(file.fileno())
        sync_directory(self._building)
        try:
            self._building.rename(self.path)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) or not (self.path / MANIFEST).exists():
                raise
            self.abort()
        sync_directory(self.path.parent)

    def _flush(self) -> None:
        documents = self._pending
        if not documents.num_tokens:
            return
        self._pending = _Pending()
        tokens = np.concatenate(documents.tokens)
        lowest, highest = int(tokens.min()), int(tokens.max())
        if lowest < 0 or highest >= self.vocab_size:
            raise ValueError(f"token ids {lowest}..{highest} do not fit a vocabulary of {self.vocab_size}")
        lengths, file_index, line, num_bytes = np.array(documents.rows, np.int64).T
        columns = {"tokens": tokens, "source_file": file_index, "source_line": line, "bytes": num_bytes}
        columns["offsets"] = self._totals["tokens"] + np.cumsum(lengths)
        trainable = len(tokens) - len(lengths)
        if self.kind == "sft":
            columns["trainable"] = np.frombuffer(b"".join(documents.trainable), np.uint8)
            trainable = int(columns["trainable"].sum())
        counts = (len(lengths), len(tokens), trainable, int(num_bytes.sum()))
        for name, count in zip(self._totals, counts, strict=True):
            self._totals[name] += count
        with self._disk():
            for name, values in columns.items():
                self._files[name].write(values)

    @contextlib.contextmanager
    def _disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.abort()
            reason = error.strerror or str(error)
            raise UserError(
                f"{self.path}: cannot be written: {reason}; free space or name another place"
            ) from error


class _Pending:
    """Documents not yet on disk."""

    def __init__(self) -> None:
        self.tokens: list[Array] = []
        self.trainable: list[bytes] = []
        self.rows: list[tuple[int, int, int, int]] = []  # (tokens, file index, line, bytes)
        self.num_tokens = 0

    def add(
        self,
        tokens: Sequence[int] | Array,
        trainable: Sequence[bool] | Array | None,
        row: tuple[int, int, int, int],
    ) -> None:
        self.tokens.append(np.asarray(tokens))
        if trainable is not None:
            self.trainable.append(np.asarray(trainable, np.bool_).tobytes())
        self.rows.append(row)
        self.num_tokens += len(tokens)


class _File:
    """A growing one-dimensional array on disk; ``.npy`` files get their header, whose length never changes, last."""

    def __init__(self, path: Path, dtype: npt.DTypeLike) -> None:
        self.path = path
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._count = 0
        self._file = path.open("wb")
        if path.suffix == ".npy":
            self._file.write(self._header())

    def write(self, values: Array) -> None:
        self._file.write(np.ascontiguousarray(values, self._dtype).data)
        self._count += len(values)

    def finish(self) -> int:
        """Everything on the disk; the size in bytes."""
        if self.path.suffix == ".npy":
            self._file.seek(0)
            self._file.write(self._header())
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        return self.path.stat().st_size

    def close(self) -> None:
        """Give up: closing flushes, which fails again on a full disk and then no longer matters."""
        with contextlib.suppress(OSError):
            self._file.close()

    def _header(self) -> bytes:
        header = io.BytesIO()
        description = {"descr": self._dtype.str, "fortran_order": False, "shape": (self._count,)}
        np.lib.format.write_array_header_1_0(header, description)
        return header.getvalue()


def _token_dtype(vocab_size: int) -> np.dtype[Any]:
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        manifest: dict[str, Any] = read_json(path / MANIFEST)
        version, _ = manifest["version"], manifest["files"]
    except OSError as error:
        raise UserError(
            f"no token store at {path} ({MANIFEST}: {error.strerror}); `minimind prepare --help` says how to make one"
        ) from error
    except (ValueError, TypeError, KeyError) as error:
        reason = f"{error}" if type(error) is ValueError else "no version or no list of files"
        raise UserError(
            f"{path / MANIFEST} is damaged ({reason}); delete the store and prepare it again"
        ) from error
    if version != VERSION:
        raise UserError(
            f"{path} has format version {brief(version)}, this program reads {VERSION}; prepare it again"
        )
    if misfit := _misfit(manifest):
        raise UserError(f"{path / MANIFEST} is damaged ({misfit}); delete the store and prepare it again")
    return manifest


def _misfit(manifest: Mapping[str, Any]) -> str | None:
    """What in a manifest is not as `StoreWriter` writes it, or None: every count is one, every name is ours."""
    if manifest.get("kind") not in ("pretrain", "sft"):
        return f"kind is {brief(manifest.get('kind'))}"
    for name in ("vocab_size", "documents", "tokens", "trainable_tokens", "bytes"):
        if not is_count(manifest.get(name), least=int(name in ("vocab_size", "documents", "tokens"))):
            return f"{name} is {brief(manifest.get(name))}, not a count"
    files, sources = manifest["files"], manifest.get("sources")
    wanted = {*(f"{name}.npy" for name in _COLUMNS), "tokens.bin"}
    wanted |= {"trainable.bin"} if manifest["kind"] == "sft" else set()
    if not isinstance(files, dict) or files.keys() != wanted or not all(map(is_count, files.values())):
        return "files does not name each file of a store with its size"
    width = _token_dtype(manifest["vocab_size"]).itemsize
    if files["tokens.bin"] != manifest["tokens"] * width:
        return f"{manifest['tokens']:,} tokens are not {files['tokens.bin']:,} bytes"
    if not isinstance(sources, list) or not all(isinstance(_source_path(entry), str) for entry in sources):
        return "sources is not a list of paths"
    return None


def _source_path(entry: Any) -> Any:
    return entry.get("path") if isinstance(entry, dict) else entry


def _column(path: Path, name: str, count: int) -> Array:
    """A column of ``count`` numbers, mapped. UserError if the file is not one."""
    file = path / f"{name}.npy"
    try:
        values = np.load(file, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # its header is Python text, which fails in as many ways as there are
        raise UserError(f"{file}: can't be read ({error}); delete the store and prepare it again") from error
    if values.shape != (count,) or values.dtype != _COLUMNS[name]:
        raise UserError(
            f"{file} holds {values.dtype} {values.shape} instead of {count:,} numbers; "
            "delete the store and prepare it again"
        )
    return np.asarray(values)


def _check_size(file: Path, expected: int) -> None:
    try:
        size = file.stat().st_size
    except OSError as error:
        raise UserError(f"{file}: {error.strerror}; delete the store and prepare it again") from error
    if size != expected:
        raise UserError(
            f"{file} has {size:,} bytes, the manifest says {expected:,}; delete the store and prepare it again"
        )


def _building_prefix(path: Path) -> str:
    return f".{path.name}.building-{socket.gethostname()}-"


def _remove_debris(path: Path) -> None:
    """Half-built stores of this path left by killed processes of this machine."""
    prefix = _building_prefix(path)
    if not path.parent.is_dir():
        return
    for entry in path.parent.iterdir():
        pid = entry.name.removeprefix(prefix).split("-")[0]
        if entry.name.startswith(prefix) and pid.isdecimal() and not _alive(int(pid)):
            shutil.rmtree(entry, ignore_errors=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
