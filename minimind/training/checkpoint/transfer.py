"""Files from one rank to another, piece by piece: where hosts share no disk, a checkpoint is still one directory.

Messages are a letter and what it is about: a file's name, a piece of it, its end with its SHA-256, the end of all, or
that the sender has failed. Both sides hold one piece at a time. A receiver that can't write (a full disk) takes what
comes to its end all the same, so that the two stay in step, and has the error; the files of a sender that fails are
incomplete, and the sender has the error. Whoever calls compares notes afterwards, over a collective.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from minimind.base.files import create, open_inside, subdirectory, sync_directory
from minimind.training.checkpoint.directory import is_ours

PIECE = 4 << 20  # bytes
_NAME, _PIECE, _END, _DONE, _FAILED = b"npe.!"
Hand = Callable[[bytearray], None]


@dataclass(frozen=True)
class FileFacts:
    """What a manifest says of a file."""

    bytes: int
    sha256: str


class Outbox:
    """The sender's side: ``begin``, ``write`` as a file's, ``end``; a file after the other."""

    def __init__(self, hand: Hand) -> None:
        self._hand, self._piece = hand, bytearray()

    def begin(self, name: str) -> None:
        """The next file, by its path in the checkpoint."""
        self._hand(bytearray([_NAME]) + name.encode())
        self._piece = bytearray([_PIECE])

    def write(self, data: bytes) -> int:
        """Some of its content, of any length."""
        for start in range(0, len(data), PIECE):
            self._piece += data[start : start + PIECE]
            if len(self._piece) > PIECE:
                self._hand(self._piece)
                self._piece = bytearray([_PIECE])
        return len(data)

    def end(self, sha256: str) -> None:
        """That was the file."""
        self._hand(self._piece)
        self._hand(bytearray([_END]) + sha256.encode())


@contextlib.contextmanager
def outbox(hand: Hand) -> Iterator[Outbox]:
    """Send files by ``hand`` in the block; the receiver is told how it ended."""
    try:
        yield Outbox(hand)
    except Exception:
        hand(bytearray([_FAILED]))
        raise
    hand(bytearray([_DONE]))


def send_directory(directory: Path, names: Iterable[str], hand: Hand) -> None:
    """Send these files of ``directory``. Raises OSError."""
    with outbox(hand) as box:
        for name in names:
            digest = hashlib.sha256()
            with open_inside(directory, name) as file:
                box.begin(name)
                while piece := file.read(PIECE):
                    digest.update(piece)
                    box.write(piece)
            box.end(digest.hexdigest())


@dataclass
class Inbox:
    """The receiver's side: files below ``directory``. ``error``: the first thing that went wrong; then all is dropped.

    ``facts``: what has arrived whole, by name.
    """

    directory: Path
    error: Exception | None = None
    facts: dict[str, FileFacts] = field(default_factory=dict)
    _open: _Arrival | None = None

    def receive(self, take: Callable[[], bytes], beat: Callable[[], None] = lambda: None) -> None:
        """Take one sender's files to their end."""
        while (message := take())[0] not in (_DONE, _FAILED):
            beat()
            if self.error is None:
                try:
                    self._act(message[0], message[1:])
                except (OSError, ValueError) as error:
                    self.error = error
        if self._open is not None:  # of a sender that failed, or of an error here
            self._open.file.close()
            self._open = None

    def _act(self, kind: int, content: bytes) -> None:
        if kind == _NAME:
            self._open = _Arrival.begin(self.directory, content.decode())
        elif self._open is not None and kind == _PIECE:
            self._open.add(content)
        elif self._open is not None:
            self.facts[self._open.name] = self._open.finish(content.decode())
            self._open = None


@dataclass
class _Arrival:
    """A file on its way."""

    name: str
    path: Path
    file: BinaryIO
    digest: Any
    size: int = 0

    @classmethod
    def begin(cls, directory: Path, name: str) -> _Arrival:
        if not is_ours(name):  # the path is another host's word
            raise OSError(errno.EINVAL, "no name of a checkpoint's file", name)
        path = subdirectory(directory, *Path(name).parent.parts) / Path(name).name
        return cls(name, path, create(path), hashlib.sha256())

    def add(self, piece: bytes) -> None:
        self.file.write(piece)
        self.digest.update(piece)
        self.size += len(piece)

    def finish(self, sha256: str) -> FileFacts:
        """Bring it to the disk. Raises OSError, also if it is not what was sent."""
        with self.file:
            self.file.flush()
            os.fsync(self.file.fileno())
        if self.digest.hexdigest() != sha256:
            raise OSError(errno.EIO, "arrived damaged (its SHA-256 differs)", self.name)
        make_executable(self.path)
        sync_directory(self.path.parent)
        return FileFacts(self.size, sha256)


def make_executable(path: Path) -> None:
    """If it is one of DeepSpeed's scripts, which DeepSpeed itself makes executable."""
    if path.suffix == ".py":
        path.chmod(path.stat().st_mode | stat.S_IEXEC)
