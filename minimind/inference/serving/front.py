"""What stands before an engine that answers over HTTP: who may ask, how much, for how long. Plain ASGI.

Contract. Before a byte of a body is read: the Host and Origin (without a key), the key, the content type, the stated
length, a free place. Then at most ``max_body`` bytes are read, within `BODY_SECONDS`, and at most `MAX_VALUES` JSON
values let through, since parsing holds up everything else. What is refused is answered at once, in OpenAI's error
object, and the engine never hears of it. Only the page and the health check are open to those without the key.

Without a key any web page that the user visits could ask, by CSRF or with a name of its own that resolves to this
machine (DNS rebinding). So Host must be one of this machine's names or addresses, and so must Origin, which browsers
send.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import json
import re
import socket
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass
from typing import Any

from minimind.inference.serving.errors import ApiError
from minimind.inference.serving.page import page_paths

Scope = MutableMapping[str, Any]
AsgiMessage = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[AsgiMessage]]
Send = Callable[[AsgiMessage], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

LOCAL = ("127.0.0.1", "localhost", "[::1]")
PUBLIC = frozenset({"/health", *page_paths()})  # the page holds no secret, and asks for the key itself
MAX_BODY = 1 << 20  # bytes
SMALL = 1 << 16  # bytes that are looked at within a millisecond
MAX_VALUES = 20_000  # of a JSON body, by its separators; 2,048 messages have some 10,000
MAX_REQUESTS = 64  # that are read, wait for their answer or get it
BODY_SECONDS = 20.0
LINGER_SECONDS = 5.0  # to take the rest of a refused body: a connection closed before loses the answer
_AUTHORITY = re.compile(r"(\[[0-9a-f:.]+\]|[^\s\[\]:/@?#]+)(:[0-9]{1,5})?", re.ASCII)


@dataclass(frozen=True)
class Hosts:
    """The names that a request without a key may be addressed to; ``addresses``: any IP address as well."""

    names: frozenset[str]
    addresses: bool = False

    @classmethod
    def of(cls, host: str, address: str) -> Hosts:
        """For a server at ``--host host``, which is bound to the IP ``address``.

        Off loopback any address will do: nobody can make a name of it. Names are this machine's only.
        """
        bracketed = f"[{host}]" if ":" in host else host
        names = {*LOCAL, bracketed.lower()}
        if ipaddress.ip_address(address).is_loopback:
            return cls(frozenset(names))
        own = socket.gethostname().lower()
        return cls(frozenset(names | {own, f"{own}.local"}), addresses=True)

    def allow(self, authority: str) -> bool:
        """Whether ``NAME`` or ``NAME:PORT`` is one of ours; any port."""
        found = _AUTHORITY.fullmatch(authority.lower())
        return found is not None and (found[1] in self.names or (self.addresses and _is_address(found[1])))

    def allow_origin(self, origin: str, host: str) -> bool:
        """Whether ``http://NAME:PORT`` is, too; ``null`` (a sandbox, a file) is not.

        Where any address will do, only the page that came from this one, ``host``: others may be a stranger's.
        """
        scheme, separator, authority = origin.lower().partition("://")
        same = not self.addresses or authority == host.lower()
        return bool(separator) and scheme in ("http", "https") and same and self.allow(authority)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True


HERE = Hosts(frozenset(LOCAL))


class Front:
    """An ASGI application before another one."""

    def __init__(self, app: App, api_key: str | None, hosts: Hosts = HERE, max_body: int = MAX_BODY) -> None:
        """``hosts``: asked only without ``api_key``. ``max_body``: bytes."""
        self._app, self._hosts, self._max_body = app, hosts, max_body
        self._expected = None if api_key is None else f"Bearer {api_key}".encode()
        self._requests = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] != "http":  # a WebSocket: nothing here speaks it, and its rules are others
            await send({"type": "websocket.close", "code": 1008})
        elif scope["method"] in ("GET", "HEAD"):
            await self._guarded(self._look, scope, receive, send)
        else:
            await self._guarded(self._ask, scope, receive, send)

    async def _guarded(self, work: Any, scope: Scope, receive: Receive, send: Send) -> None:
        upload = Upload(receive)
        try:
            await work(scope, upload, send)
        except Refusal as refusal:
            await _refuse(refusal.error, scope, upload, send)

    async def _look(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._admit(scope)
        await self._app(scope, receive, send)

    async def _ask(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._admit(scope)
        _require_json(scope)
        self._require_length(scope)
        if self._requests >= MAX_REQUESTS:
            raise Refusal(503, f"{MAX_REQUESTS} requests wait for their answers already: try again later")
        self._requests += 1
        try:
            body = await self._body(receive)
            if body is not None:  # else the client has left
                await self._app(scope, _replaying(body, receive), send)
        finally:
            self._requests -= 1

    def _admit(self, scope: Scope) -> None:
        """Refuses a request that comes through a stranger's page, or without the key."""
        if self._expected is None:
            self._require_host(scope)
        elif scope["path"] not in PUBLIC:
            given = _values(scope, b"authorization")
            if len(given) != 1 or not hmac.compare_digest(given[0], self._expected):
                message = "this server wants a key: send the header Authorization: Bearer KEY with the right one"
                raise Refusal(401, message, code="invalid_api_key")

    def _require_host(self, scope: Scope) -> None:
        hosts = [value.decode("latin-1") for value in _values(scope, b"host")]
        if len(hosts) != 1 or not self._hosts.allow(hosts[0]):
            message = "without a key this server answers to this machine's own names only, 127.0.0.1 or localhost"
            raise Refusal(403, f"Host: {message}; start it with --api-key to use another name")
        for origin in _values(scope, b"origin"):
            if not self._hosts.allow_origin(origin.decode("latin-1"), hosts[0]):
                raise Refusal(403, "Origin: without a key this server answers no other web site's page")

    def _require_length(self, scope: Scope) -> None:
        for value in _values(scope, b"content-length"):
            if not value.isdigit() or int(value[:20]) > self._max_body:
                raise self._too_long()

    def _too_long(self) -> Refusal:
        return Refusal(413, f"the body is longer than {self._max_body:,} bytes: shorten it (--max-body)")

    async def _body(self, receive: Receive) -> bytes | None:
        """The whole body; None if the client leaves before its end."""
        try:
            body = await asyncio.wait_for(self._read(receive), BODY_SECONDS)
        except asyncio.TimeoutError:
            raise Refusal(408, f"the body did not arrive within {BODY_SECONDS:g} seconds") from None
        if body is not None and b"\0" in body:
            raise Refusal(400, "the body is not JSON in UTF-8")
        if body is not None and await _aside(_is_crowded, body):
            raise Refusal(413, f"the body has more than {MAX_VALUES:,} values: shorten it")
        return body

    async def _read(self, receive: Receive) -> bytes | None:
        parts, size = [], 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            part = message.get("body", b"")
            size += len(part)
            if size > self._max_body:
                raise self._too_long()
            parts.append(part)
            if not message.get("more_body", False):
                return b"".join(parts)


class Upload:
    """``receive``, which notes whether the body has come to its end."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.ended = False

    async def __call__(self) -> AsgiMessage:
        message = await self._receive()
        self.ended = message["type"] != "http.request" or not message.get("more_body", False)
        return message

    async def drain(self) -> None:
        """Take what is still coming, and throw it away."""
        while not self.ended:
            await self()


class Refusal(Exception):
    """A request that the engine does not hear of."""

    def __init__(self, status: int, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.error = ApiError(status, message, code=code)


def _values(scope: Scope, name: bytes) -> list[bytes]:
    """All values of a header; ASGI has names in lower case."""
    headers: Iterable[tuple[bytes, bytes]] = scope["headers"]
    return [value for key, value in headers if key == name]


def _require_json(scope: Scope) -> None:
    """A page of another site can send forms and text without asking first, but not application/json."""
    types = [value.split(b";")[0].strip().lower() for value in _values(scope, b"content-type")]
    if types != [b"application/json"]:
        raise Refusal(415, "send the header Content-Type: application/json, and JSON")


def _is_crowded(body: bytes) -> bool:
    """Whether a JSON text has more than `MAX_VALUES` values. What stands inside strings doesn't count."""
    bare = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    if bare.count(b'"') > 4 * MAX_VALUES:
        return True
    outside = b"".join(bare.split(b'"')[::2])
    return sum(map(outside.count, (b",", b":", b"[", b"{"))) > MAX_VALUES


async def _aside(look: Callable[[bytes], bool], body: bytes) -> bool:
    """A small body is looked at here; a large one in a thread, or it would hold up everybody else."""
    if len(body) <= SMALL:
        return look(body)
    return await asyncio.get_running_loop().run_in_executor(None, look, body)


def _replaying(body: bytes, receive: Receive) -> Receive:
    """``receive`` for the engine: the body first, then what comes, which is the end of the connection."""
    waiting: list[AsgiMessage] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> AsgiMessage:
        return waiting.pop() if waiting else await receive()

    return replay


async def _refuse(error: ApiError, scope: Scope, upload: Upload, send: Send) -> None:
    """Answer, then take what is still coming of the body and throw it away."""
    body = json.dumps(error.body()).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers += {401: [(b"www-authenticate", b"Bearer")], 503: [(b"retry-after", b"5")]}.get(error.status, [])
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": True})
    announced = any(_values(scope, name) for name in (b"content-length", b"transfer-encoding"))
    if announced and not _values(scope, b"expect"):  # who asks before sending sends nothing now
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(upload.drain(), LINGER_SECONDS)
    await send({"type": "http.response.body", "body": b"", "more_body": False})
