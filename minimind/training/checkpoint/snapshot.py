"""A checkpoint's files as host copies: taken between two steps, written while training goes on.

DeepSpeed hands each file's state dict to ``checkpoint_engine.save(state_dict, path)`` (runtime/engine.py
``save_checkpoint``). For the length of one such call ``capture`` takes the place of that method and of the two others
that touch the disk, so DeepSpeed decides what is saved under which name, its own load works unchanged, and a full
disk can't leave one rank waiting in its barriers. No DeepSpeed import; engine.py passes its engine in.

Cost: host memory of the size of this rank's files, until they are written.
"""

from __future__ import annotations

import hashlib
import io
import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import torch

from minimind.base.files import create, subdirectory, sync_directory
from minimind.training.checkpoint.transfer import FileFacts, Outbox, make_executable

ROOT = "checkpoint"  # stands for the directory that is chosen when the files are written


class HostCopy:
    """A picklable object as it was at this moment, its tensors in host memory.

    Each tensor is copied without the rest of its storage; tensors that are the same data stay one. Everything else is
    kept as its pickle, so that no later change of an object (DeepSpeed's loss scaler) reaches the copy.
    """

    def __init__(self, value: Any) -> None:
        buffer = io.BytesIO()
        pickler = _Pickler(buffer)
        pickler.dump(value)
        self._pickle, self._tensors = buffer.getvalue(), pickler.copies

    @property
    def num_bytes(self) -> int:
        """Size of the tensors and of the pickle."""
        return len(self._pickle) + sum(tensor.nbytes for tensor in self._tensors)

    def value(self) -> Any:
        """The object, with the copied tensors (not copied again)."""
        unpickler = _Unpickler(io.BytesIO(self._pickle))
        unpickler.tensors = self._tensors
        return unpickler.load()


class _Pickler(pickle.Pickler):
    """Pickles all but tensors, which it copies aside."""

    def __init__(self, buffer: BinaryIO) -> None:
        super().__init__(buffer, protocol=pickle.HIGHEST_PROTOCOL)
        self.copies: list[torch.Tensor] = []
        self._known: dict[tuple[Any, ...], tuple[int, torch.Tensor]] = {}

    def persistent_id(self, value: Any) -> int | None:
        if not isinstance(value, torch.Tensor):
            return None
        layout = (value.dtype, value.shape, value.stride(), value.requires_grad)
        key = (value.data_ptr(), value.device, *layout)
        if key not in self._known:
            # The original is kept until the end: the address of one that is gone could be given to another.
            self._known[key] = (len(self.copies), value)
            self.copies.append(_on_host(value))
        return self._known[key][0]


class _Unpickler(pickle.Unpickler):
    tensors: list[torch.Tensor]

    def persistent_load(self, index: int) -> torch.Tensor:
        return self.tensors[index]


def _on_host(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to("cpu", copy=True).requires_grad_(tensor.requires_grad)


@dataclass(frozen=True)
class Snapshot:
    """One rank's files by name: state dicts, and scripts as their bytes. ``zipfile``: torch.save's format."""

    files: dict[str, HostCopy | bytes]
    zipfile: bool = True

    @property
    def num_bytes(self) -> int:
        """Bytes to write, without torch.save's headers (some hundred bytes by tensor)."""
        return sum(len(content) if isinstance(content, bytes) else content.num_bytes for content in self.files.values())

    def write(self, directory: Path, beat: Callable[[], None] = lambda: None) -> dict[str, FileFacts]:
        """Write all files below ``directory`` and sync them to the disk; what was written, by name.

        ``beat``: called at each piece that is written, for the watchdog. Raises OSError when the disk is full or fails.
        """
        facts = {}
        for name, content in self.files.items():
            path = subdirectory(directory, *Path(name).parent.parts) / Path(name).name
            facts[name] = _write(path, content, self.zipfile, beat)
            make_executable(path)
            sync_directory(path.parent)
        return facts

    def send(self, box: Outbox, beat: Callable[[], None] = lambda: None) -> None:
        """Send all files, byte for byte what ``write`` would write; nothing is kept on this host."""
        for name, content in self.files.items():
            box.begin(name)
            sink = _Sink(box, beat)
            _save(content, self.zipfile, sink)
            box.end(sink.facts().sha256)


def _write(path: Path, content: HostCopy | bytes, zipfile: bool, beat: Callable[[], None]) -> FileFacts:
    with open_file(path) as file:
        sink = _Sink(file, beat)
        _save(content, zipfile, sink)
        facts = sink.facts()
        file.flush()
        beat()
        os.fsync(file.fileno())
        return facts


def _save(content: HostCopy | bytes, zipfile: bool, sink: _Sink) -> None:
    if isinstance(content, bytes):
        sink.write(content)
    else:
        torch.save(content.value(), cast(BinaryIO, sink), _use_new_zipfile_serialization=zipfile)


def open_file(path: Path) -> BinaryIO:
    """A new file for writing; tests put a failing one in its place."""
    return create(path)


class _Sink:
    """Hashes what a file, or another rank, is given, and raises its first error at the end.

    torch's zip writer turns an error from ``write`` into one about positions ("unexpected pos 64 vs 0",
    caffe2/serialize/inline_container.cc), without the reason.
    """

    def __init__(self, file: BinaryIO | Outbox, beat: Callable[[], None]) -> None:
        self._file, self._digest, self._bytes, self._beat = file, hashlib.sha256(), 0, beat
        self._error: OSError | None = None

    def write(self, data: bytes) -> int:
        self._beat()
        if self._error is None:
            try:
                self._file.write(data)
                self._digest.update(data)
                self._bytes += len(data)
            except OSError as error:
                self._error = error
        return len(data)

    def flush(self) -> None:
        """torch.save asks for it; ``_write`` does it."""

    def facts(self) -> FileFacts:
        """What was written. Raises the first error."""
        if self._error is not None:
            raise self._error
        return FileFacts(self._bytes, self._digest.hexdigest())


def capture(ds: Any, tag: str, client_state: dict[str, Any], scripts: Path) -> Snapshot:
    """What ``ds.save_checkpoint`` would write on this rank; all ranks call it, nothing is written.

    ``scripts``: where DeepSpeed keeps the two scripts that it adds to a ZeRO checkpoint.
    """
    files: dict[str, HostCopy | bytes] = {}

    def keep(state_dict: Any, path: str) -> None:
        files[str(Path(path).relative_to(ROOT))] = HostCopy(state_dict)

    def keep_scripts(save_path: str) -> None:
        for name in ("zero_to_fp32.py", "zero_to_torch.py"):
            files[name] = (scripts / name).read_bytes()

    engine = ds.checkpoint_engine
    saving = _replaced(engine, save=keep, makedirs=lambda *_, **__: None)
    with saving, _replaced(ds, _copy_recovery_script=keep_scripts):
        ds.save_checkpoint(ROOT, tag=tag, client_state=client_state, save_latest=False)
    return Snapshot(files, engine.zipfile_serialization)


@contextmanager
def _replaced(target: Any, **methods: Any) -> Iterator[None]:
    """Give one object other methods for a while."""
    for name, method in methods.items():
        setattr(target, name, method)
    try:
        yield
    finally:
        for name in methods:
            delattr(target, name)  # the class's own shows again
