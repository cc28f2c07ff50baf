"""Rank 0's end of the connections: beats in, answers out, and strangers out.

Contract: whoever connects sends sealed beats, whose ``count`` is new, or is closed; so is who has sent none for ten
seconds, and the oldest such stranger when a seventeenth comes. Nothing is kept of a connection but a part of a frame.
"""

from __future__ import annotations

import contextlib
import resource
import selectors
import socket
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from minimind.training.process.heart.beats import ANSWER, BEAT, SIZE, Frame, opened

STRANGERS = 16  # connections that have not proven themselves, at once
PATIENCE = 10.0  # seconds that one may take for it
SPARE = 64  # descriptors for all but the ranks' connections


@dataclass
class _Connection:
    socket: socket.socket
    received: bytearray = field(default_factory=bytearray)
    age: float = 0.0  # seconds since it was accepted
    rank: int | None = None  # once it has proven itself


class Listener:
    """Takes connections on ``address`` (port 0: a free one) until ``close``."""

    def __init__(self, selector: selectors.BaseSelector, address: tuple[str, int], key: bytes, ranks: int) -> None:
        self._selector, self._key, self._ranks = selector, key, ranks
        _allow_descriptors(ranks + STRANGERS + SPARE)
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._socket = socket.create_server(address, family=family, backlog=min(ranks + STRANGERS, 4096))
        self._socket.setblocking(False)
        self.port: int = self._socket.getsockname()[1]
        self._connections: list[_Connection] = []
        self._by_rank: dict[int, _Connection] = {}
        self._counts: dict[int, int] = {}  # the last of each rank
        self.heard: Callable[[Frame], Frame | None] = lambda _: None  # takes a beat; gives the answer's content
        self.closed: Callable[[int], None] = lambda _: None  # takes the rank whose connection has gone
        selector.register(self._socket, selectors.EVENT_READ, self._accept)

    def passed(self, seconds: float) -> None:
        """So much time was seen to pass."""
        for connection in list(self._connections):
            connection.age += seconds
            if connection.rank is None and connection.age > PATIENCE:
                self._drop(connection)

    def tell(self, news: Frame) -> None:
        """Say it to all ranks that are connected."""
        for connection in list(self._by_rank.values()):
            self._answer(connection, news)

    def close(self) -> None:
        """Drop all connections."""
        for connection in list(self._connections):
            self._drop(connection)
        self._selector.unregister(self._socket)
        self._socket.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # it has gone again; or no descriptor is left, for now
            accepted, _ = self._socket.accept()
            accepted.setblocking(False)
            strangers = [connection for connection in self._connections if connection.rank is None]
            for oldest in strangers[: max(0, len(strangers) - STRANGERS + 1)]:
                self._drop(oldest)
            self._connections.append(connection := _Connection(accepted))
            self._selector.register(accepted, selectors.EVENT_READ, lambda: self._read(connection))

    def _read(self, connection: _Connection) -> None:
        try:
            data = connection.socket.recv(SIZE - len(connection.received))
        except BlockingIOError:
            return
        except OSError:
            data = b""
        connection.received += data
        if not data:
            self._drop(connection)
        elif len(connection.received) == SIZE:
            frame = opened(bytes(connection.received), BEAT, self._key)
            connection.received.clear()
            self._take(connection, frame)

    def _take(self, connection: _Connection, frame: Frame | None) -> None:
        if frame is None or not 0 < frame.rank < self._ranks or frame.count <= self._counts.get(frame.rank, -1):
            self._drop(connection)
            return
        self._counts[frame.rank] = frame.count
        before = self._by_rank.get(frame.rank)
        connection.rank, self._by_rank[frame.rank] = frame.rank, connection
        if before is not None and before is not connection:
            self._drop(before)
        answer = self.heard(frame)
        if answer is not None:
            self._answer(connection, answer)

    def _answer(self, connection: _Connection, news: Frame) -> None:
        assert connection.rank is not None
        frame = replace(news, count=self._counts[connection.rank])
        try:
            connection.socket.sendall(frame.sealed(ANSWER, self._key))
        except OSError:  # it does not read, or is gone
            self._drop(connection)

    def _drop(self, connection: _Connection) -> None:
        if connection not in self._connections:
            return
        self._connections.remove(connection)
        self._selector.unregister(connection.socket)
        connection.socket.close()
        rank = connection.rank
        if rank is not None and self._by_rank.get(rank) is connection:
            del self._by_rank[rank]
            self.closed(rank)


def _allow_descriptors(count: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < count:
        wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
