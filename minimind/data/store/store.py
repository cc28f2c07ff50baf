"""The token store: a tokenised corpus as a directory of flat arrays, read through memory maps.

    manifest.json    written last: what the store holds and the size of every file
    tokens.bin       uint16 (uint32 if the vocabulary is above 65,536): all documents, one after the other
    offsets.npy      int64 [documents + 1]: document i is tokens[offsets[i]:offsets[i + 1]]
    trainable.bin    uint8 a token, 1 = carries loss (kind "sft" only; in "pretrain" all but a document's first do)
    source_file.npy  int32 [documents]: index into the manifest's "sources"
    source_line.npy  int64 [documents]: line in that file, 1-based
    bytes.npy        int32 [documents]: UTF-8 bytes of the text (for bits per byte)

Contract: a store is finished or absent. It is built in a hidden sibling directory, every file is fsynced, the manifest
comes last, and one rename makes it visible; killed at any moment it never looks complete, and a full disk leaves
nothing behind. Contents are verified at the first opening and after each change (see store/files.py); else opening
reads the manifest and the files' stat only, so it takes milliseconds at any size, and processes on one machine share
the pages. Writing holds about a million tokens in memory, however large the store becomes.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import re
import secrets
import socket
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from minimind.base.defaults import Kind as Kind
from minimind.base.errors import UserError
from minimind.base.files import create, open_inside, sha256_of, sync_directory
from minimind.data.store.files import (
    COLUMNS,
    MANIFEST,
    VERSION,
    Array,
    holds_store,
    open_arrays,
    remove_store,
    source_path,
    token_dtype,
)

_FLUSH_TOKENS = 1 << 20
_DEBRIS = re.compile(r"(\d+)-[0-9a-f]{8}")


class TokenStore:
    """A finished store. All arrays are read-only memory maps. Make one with `TokenStore.open`."""

    def __init__(self, path: Path, manifest: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
        self.path = path
        self.manifest = manifest
        self.kind: Kind = manifest["kind"]
        self.vocab_size: int = manifest["vocab_size"]
        self.num_tokens: int = manifest["tokens"]
        self.num_trainable: int = manifest["trainable_tokens"]
        self.num_bytes: int = manifest["bytes"]
        self.tokens: Array = arrays["tokens"]
        self.offsets, self._source_file, self._source_line, self.document_bytes = (arrays[name] for name in COLUMNS)
        self.trainable_mask: Array | None = arrays.get("trainable")

    @classmethod
    def open(cls, path: str | Path) -> TokenStore:
        """Map a store. UserError if there is none, or if a file is not the one that the manifest tells of."""
        path = Path(path)
        return cls(path, *open_arrays(path))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def num_predictions(self) -> int:
        """Positions that the model reads: all tokens but the last of each document, whether they carry loss or not."""
        return self.num_tokens - len(self)

    @cached_property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Tokens of each document, int64 [documents]."""
        return np.diff(self.offsets)

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
        entry = self.manifest["sources"][int(self._source_file[index])]
        return str(source_path(entry)), int(self._source_line[index])

    def _span(self, index: int) -> slice:
        if not 0 <= index < len(self):
            raise IndexError(f"document {index} of a store of {len(self)}")
        return slice(int(self.offsets[index]), int(self.offsets[index + 1]))


class StoreWriter:
    """Builds a store at `path`, which must not exist yet, or with `replace` may be one. End with `finish` or `abort`.

    Every failure of the disk removes what was written and raises a UserError that says so.
    """

    def __init__(self, path: str | Path, vocab_size: int, kind: Kind = "pretrain", replace: bool = False) -> None:
        self.path = Path(path)
        self._replace = replace
        self.kind: Kind = kind
        self.vocab_size = vocab_size
        self._building = self.path.with_name(f"{_building_prefix(self.path)}{os.getpid()}-{secrets.token_hex(4)}")
        self._files: dict[str, _File] = {}
        self._pending = _Pending()
        self._totals = {"documents": 0, "tokens": 0, "trainable_tokens": 0, "bytes": 0}
        with self._disk():
            _remove_debris(self.path)
            self._building.mkdir(parents=True)
            for name, dtype in COLUMNS.items():
                self._files[name] = _File(self._building / f"{name}.npy", dtype)
            self._files["tokens"] = _File(self._building / "tokens.bin", token_dtype(vocab_size))
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
        if (trainable is not None) != (self.kind == "sft") or (trainable is not None and len(trainable) != len(tokens)):
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
            facts = {file.path.name: file.finish() for file in self._files.values()}
            manifest = {
                **manifest_extra,
                "version": VERSION,
                "kind": self.kind,
                "vocab_size": self.vocab_size,
                **self._totals,
                "files": {name: size for name, (size, _) in facts.items()},
                "sha256": {name: digest for name, (_, digest) in facts.items()},
            }
            self._publish(json.dumps(manifest, ensure_ascii=False, indent=1))
        return self.path

    def abort(self) -> None:
        """Remove what was written; the path stays as it was. Harmless after `finish`."""
        for file in self._files.values():
            file.close()
        with contextlib.suppress(OSError):
            remove_store(self._building)

    def _publish(self, manifest: str) -> None:
        with create(self._building / MANIFEST) as file:
            file.write(manifest.encode("utf-8"))
            file.flush()
            os.fsync(file.fileno())
        sync_directory(self._building)
        if self._replace and holds_store(self.path):  # looked at again: much time has gone by
            remove_store(self.path)
        try:
            self._building.rename(self.path)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) or not holds_store(self.path):
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
            raise UserError(f"{self.path}: cannot be written: {reason}; free space or name another place") from error


class _Pending:
    """Documents not yet on disk."""

    def __init__(self) -> None:
        self.tokens: list[Array] = []
        self.trainable: list[bytes] = []
        self.rows: list[tuple[int, int, int, int]] = []  # (tokens, file index, line, bytes)
        self.num_tokens = 0

    def add(
        self, tokens: Sequence[int] | Array, trainable: Sequence[bool] | Array | None, row: tuple[int, int, int, int]
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
        self._file = create(path)
        if path.suffix == ".npy":
            self._file.write(self._header())

    def write(self, values: Array) -> None:
        self._file.write(np.ascontiguousarray(values, self._dtype).data)
        self._count += len(values)

    def finish(self) -> tuple[int, str]:
        """Everything on the disk; the size in bytes and the SHA-256."""
        if self.path.suffix == ".npy":
            self._file.seek(0)
            self._file.write(self._header())
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        with open_inside(self.path.parent, self.path.name) as written:
            return os.fstat(written.fileno()).st_size, sha256_of(written)

    def close(self) -> None:
        """Give up: closing flushes, which fails again on a full disk and then no longer matters."""
        with contextlib.suppress(OSError):
            self._file.close()

    def _header(self) -> bytes:
        header = io.BytesIO()
        description = {"descr": self._dtype.str, "fortran_order": False, "shape": (self._count,)}
        np.lib.format.write_array_header_1_0(header, description)
        return header.getvalue()


def _building_prefix(path: Path) -> str:
    return f".{path.name}.building-{socket.gethostname()}-"


def _remove_debris(path: Path) -> None:
    """Half-built stores of this path left by killed processes of this machine."""
    prefix = _building_prefix(path)
    if not path.parent.is_dir():
        return
    for entry in path.parent.iterdir():
        made_by = _DEBRIS.fullmatch(entry.name.removeprefix(prefix))
        if entry.name.startswith(prefix) and made_by and not _alive(int(made_by[1])):
            with contextlib.suppress(OSError):  # holds more than a store's files
                remove_store(entry)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
