"""The other ranks' end: beats to rank 0's pulse, its answers, and a new connection where there are none."""

from __future__ import annotations

import errno
import selectors
import socket
import time

from minimind.training.process.heart.beats import ANSWER, BEAT, LOSSES, SIZE, Frame, Word, opened
from minimind.training.process.heart.roll import CLOSED

RETRY = 1.0  # seconds between two attempts to connect
_UNDER_WAY = (0, errno.EINPROGRESS, errno.EWOULDBLOCK)


class Caller:
    """Beats of one rank; ``lost`` is what it knows to be lost, once it is."""

    def __init__(
        self, selector: selectors.BaseSelector, address: tuple[str, int], key: bytes, rank: int, limit: float
    ) -> None:
        """``limit``: seconds without an answer after which rank 0 counts as lost."""
        self._selector, self._address, self._key = selector, address, key
        self.rank, self._limit = rank, limit
        self._period = min(5.0, limit / 10)
        self._socket: socket.socket | None = None
        self._connected = False
        self._received = bytearray()
        self._first = self._count = time.monotonic_ns()  # above that of a pulse that was here before
        self._kind, self._detail, self._sent = Word.ALIVE, 0, Word.ALIVE
        self._since_beat, self._since_attempt, self._unanswered = limit, limit, 0.0
        self._refused: float | None = None  # for so many seconds nobody has listened there
        self.met = self.over = False  # answered once; rank 0 has ended well
        self.lost: Frame | None = None
        self.certain = False  # rank 0 has said so
        self.told: Word | None = None  # what rank 0 has heard last
        self.saved = 0  # the step of the last complete checkpoint, as rank 0 has answered

    def beat(self, kind: Word, detail: int = 0) -> None:
        """What there is to say of the rank: at once if it is new, else each period."""
        if (kind, detail) != (self._kind, self._detail):
            self._kind, self._detail, self._since_beat = kind, detail, self._period
        self._go_on()

    def passed(self, seconds: float) -> None:
        """So much time was seen to pass."""
        self._since_beat += seconds
        self._since_attempt += seconds
        self._unanswered += seconds
        if self._refused is not None:
            self._refused += seconds
            if self._refused > CLOSED:
                self.lost = self.lost or Frame(Word.GONE, 0)
        if self._unanswered > self._limit:
            self.lost = self.lost or Frame(Word.SILENT, 0, detail=int(self._unanswered))

    @property
    def connected(self) -> bool:
        """Whether there is a connection; it goes when rank 0's pulse has ended its rank, and then itself."""
        return self._socket is not None and self._connected

    def close(self) -> None:
        """Close the connection."""
        if self._socket is not None:
            self._selector.unregister(self._socket)
            self._socket.close()
            self._socket, self._connected = None, False

    def _go_on(self) -> None:
        if self._socket is not None and min(self._unanswered, self._since_attempt) > 2 * self._period:
            self.close()  # after a cut, a new connection is there sooner than an old one's next attempt
            self._refused = None
        if self._socket is None and self._since_attempt >= RETRY:
            self._connect()
        elif self._connected and self._since_beat >= self._period:
            self._send()

    def _connect(self) -> None:
        self._since_attempt = 0.0
        family = socket.AF_INET6 if ":" in self._address[0] else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._socket.setblocking(False)
        self._received.clear()
        code = self._socket.connect_ex(self._address)
        self._selector.register(self._socket, selectors.EVENT_WRITE, self._answered)
        if code not in _UNDER_WAY:
            self._failed(code)

    def _answered(self) -> None:
        """The connection is there, or refused."""
        assert self._socket is not None
        if code := self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._failed(code)
            return
        self._selector.modify(self._socket, selectors.EVENT_READ, self._read)
        self._connected, self._first = True, self._count + 1
        self._send()

    def _send(self) -> None:
        assert self._socket is not None
        self._count, self._sent, self._since_beat = self._count + 1, self._kind, 0.0
        frame = Frame(self._kind, self.rank, self._count, self._detail)
        try:
            self._socket.sendall(frame.sealed(BEAT, self._key))
        except OSError as error:
            self._failed(error.errno or 0)

    def _read(self) -> None:
        assert self._socket is not None
        try:
            data = self._socket.recv(SIZE - len(self._received))
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._received += data
        if not data:
            self._failed(errno.ECONNRESET)
        elif len(self._received) == SIZE:
            frame = opened(bytes(self._received), ANSWER, self._key)
            self._received.clear()
            if frame is not None and self._first <= frame.count <= self._count:
                self._take(frame)

    def _take(self, answer: Frame) -> None:
        self._unanswered, self._refused, self.met = 0.0, None, True
        self.saved = answer.saved
        self.told = self._sent if answer.count == self._count else self.told
        if answer.kind is Word.OVER:
            self.over = True
        elif answer.kind in LOSSES:
            self.lost, self.certain = answer, True

    def _failed(self, code: int) -> None:
        """``code``: of the system, why."""
        self.close()
        here = code in (errno.ECONNREFUSED, errno.ECONNRESET, errno.EPIPE)  # the host answers, the pulse doesn't
        self._refused = (self._refused or 0.0) if here else None
