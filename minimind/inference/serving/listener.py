"""The server's connections: uvicorn with a deadline for headers, a cap on connections and a log that can't be flooded.

Contract. A connection on which the client owes something (a request, or the rest of one) is closed after
`HEADER_SECONDS`, however slowly bytes come, and so is one whose reader stops while its answer waits. At most
`connections` are open, so that file descriptors are left for everything else; where one more arrives, the oldest on
which the client owes something makes room, and where there is none, the new one is closed. So sockets that sit idle
stop nobody.

uvicorn (0.54) has neither: its limit_concurrency answers 503 once a request has been read, and a connection that says
nothing stays open. asyncio accepts as many connections at once as its backlog, and logs a traceback for each that it
can't, so that backlog is small here (`ACCEPTS`) and the kernel's is not.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from minimind.base.display import shown

HEADER_SECONDS = 10.0
KEEP_ALIVE_SECONDS = 5  # uvicorn's, between two requests
GRACE = 5  # seconds for connections to end when the server stops; an answer takes one token of them
MAX_CONNECTIONS = 256
ACCEPTS = 16  # connections accepted at once, before any is looked at
BACKLOG = 128  # connections that the kernel holds for us
RESERVE = 5 * ACCEPTS  # descriptors: four rounds of connections that are about to be closed, and files
LOG_LINES, LOG_SECONDS = 5, 60.0


class Server(uvicorn.Server):
    """uvicorn's, with the kernel's backlog as it was: asyncio sets it to the number of its accepts."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listening in sockets or ():
            listening.listen(BACKLOG)


def make_server(
    app: Callable[..., Awaitable[None]], connections: int | None = None, header_seconds: float = HEADER_SECONDS
) -> Server:
    """The server of an ASGI application; ``connections`` None: as many as the descriptors allow."""
    door = Door(default_connections() if connections is None else connections, header_seconds)

    class Protocol(Guarded):
        """One that knows its door."""

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self.door = door

    config = uvicorn.Config(
        app,
        http=Protocol,
        ws="none",
        loop="asyncio",
        lifespan="off",
        backlog=ACCEPTS,
        proxy_headers=False,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=GRACE,
    )
    return Server(config)


def default_connections() -> int:
    """`MAX_CONNECTIONS`, or what the limit on file descriptors leaves of them."""
    try:
        import resource

        used = sum(1 for _ in Path("/dev/fd").iterdir())
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    except (ImportError, OSError):
        return MAX_CONNECTIONS
    if limit == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    return max(8, min(MAX_CONNECTIONS, limit - used - RESERVE))


class Door:
    """The connections that are open, the oldest first."""

    def __init__(self, limit: int, seconds: float) -> None:
        self.limit, self.seconds = limit, seconds
        self._inside: dict[Guarded, None] = {}

    def enter(self, new: Guarded) -> None:
        """Let a connection in; at the limit another one, or this one, is closed for it."""
        if len(self._inside) >= self.limit:
            leaving = next((old for old in self._inside if old.owes), new)
            self.leave(leaving)
            leaving.transport.abort()
            if leaving is new:
                return
        self._inside[new] = None

    def leave(self, old: Guarded) -> None:
        """It is closed, or about to be."""
        self._inside.pop(old, None)


class Guarded(H11Protocol):
    """uvicorn's protocol with a deadline for what the client owes."""

    door: Door
    _deadline: asyncio.TimerHandle | None = None
    _reading: asyncio.TimerHandle | None = None

    @property
    def owes(self) -> bool:
        """Whether we wait for the client: no request is being answered, or its body is not here yet."""
        return self.cycle is None or self.cycle.response_complete or self.cycle.more_body

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()
        self.door.enter(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.door.leave(self)
        self._unwatch()
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """What comes between two requests belongs to the next, or to the rest of one that was answered early."""
        if not self._answering and self._deadline is None:
            self._watch()
        super().data_received(data)
        if self._answering:  # its body has a deadline of its own (front.py)
            self._unwatch()

    def pause_writing(self) -> None:
        """Its buffers are full: the client owes us reading. An answer that waits for it holds up all others."""
        super().pause_writing()
        self._reading = self.loop.call_later(self.door.seconds, self.transport.abort)

    def resume_writing(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        try:
            super().send_400_response(msg)
        except h11.LocalProtocolError:  # an answer has begun
            self.transport.abort()

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _watch(self) -> None:
        self._deadline = self.loop.call_later(self.door.seconds, self._expire)

    def _unwatch(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _expire(self) -> None:
        self._deadline = None
        if not self._answering:
            self.transport.abort()


class FewLines(logging.Filter):
    """At most `LOG_LINES` records of a kind in `LOG_SECONDS`; the next one says how many were left out."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._kinds: dict[tuple[str, int], list[float]] = {}  # where it was logged: start, lines, left out

    def filter(self, record: logging.LogRecord) -> bool:
        now = self._clock()
        start, lines, left_out = self._kinds.get((record.pathname, record.lineno), [now, 0, 0])
        if now - start >= LOG_SECONDS:
            if left_out:
                record.msg, record.args = f"{record.getMessage()} ({left_out:.0f} more like it before)", None
            start, lines, left_out = now, 0, 0
        shows = lines < LOG_LINES
        self._kinds[record.pathname, record.lineno] = [start, lines + shows, left_out + (not shows)]
        return shows


class ShownFormatter(logging.Formatter):
    """Requests write into messages: control characters are shown."""

    def format(self, record: logging.LogRecord) -> str:
        return shown(super().format(record))


def log_few_lines() -> None:
    """Warnings and errors of uvicorn and asyncio go to stderr, a few of each kind."""
    handler = logging.StreamHandler()
    handler.addFilter(FewLines())
    handler.setFormatter(ShownFormatter("%(levelname)s: %(message)s"))
    handler.setLevel(logging.WARNING)
    for name in ("uvicorn", "asyncio"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.WARNING)
