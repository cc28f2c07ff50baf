"""What travels between pulses: frames of one size, each with a seal that takes the run's key to make."""

from __future__ import annotations

import hmac
import struct
from dataclasses import dataclass
from enum import IntEnum

BEAT, ANSWER = b"beat", b"answer"  # the two directions: a frame of one is none of the other
_BODY = struct.Struct(">BIQIQ")
_SEAL = 16  # bytes of the HMAC-SHA-256
SIZE = _BODY.size + _SEAL


class Word(IntEnum):
    """What a frame says of a rank."""

    ALIVE = 1
    STOPPED = 2  # by SIGSTOP; as a loss: for ``detail`` seconds
    ENDED = 3  # of its own will, with the exit code ``detail``
    GONE = 4  # its process is no more, and has said nothing
    SILENT = 5  # not heard for ``detail`` seconds
    FINE = 6  # an answer: all are well
    OVER = 7  # an answer: rank 0 has ended well, and hears nobody any more


LOSSES = frozenset({Word.STOPPED, Word.ENDED, Word.GONE, Word.SILENT})  # in an answer


@dataclass(frozen=True)
class Frame:
    """``rank``: whom it is about. ``count``: grows with each beat of a rank; an answer has that of the beat.

    ``saved``: in an answer, the step of the last complete checkpoint that rank 0 knows; 0 without one.
    """

    kind: Word
    rank: int
    count: int = 0
    detail: int = 0
    saved: int = 0

    def sealed(self, direction: bytes, key: bytes) -> bytes:
        """The frame's ``SIZE`` bytes."""
        body = _BODY.pack(self.kind, self.rank, self.count, self.detail, self.saved)
        return body + _seal(body, direction, key)


def opened(data: bytes, direction: bytes, key: bytes) -> Frame | None:
    """The frame in ``data``; None if its seal is not this run's."""
    body, seal = data[: _BODY.size], data[_BODY.size :]
    if len(data) != SIZE or not hmac.compare_digest(seal, _seal(body, direction, key)):
        return None
    kind, *numbers = _BODY.unpack(body)
    return Frame(Word(kind), *numbers)


def _seal(body: bytes, direction: bytes, key: bytes) -> bytes:
    return hmac.digest(key, direction + body, "sha256")[:_SEAL]
