"""A file over HTTP, from any of its bytes on: what `minimind fetch` downloads and streams with.

Contract: ``read_blocks`` gives the bytes from ``start`` to the file's end in order, whatever becomes of connections:
one that breaks is followed by a request for the rest (HTTP Range), as long as the last one brought something. A server
that states another size than the index is refused before its bytes are taken, and what it sends beyond is not read.
No token, cookie or password is sent. Addresses are https, or plain http on this machine; a redirect elsewhere (ftp,
file, plain http) is not followed.
"""

from __future__ import annotations

import http.client
import ipaddress
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Generator
from typing import Any

from minimind.base.errors import UserError
from minimind.base.secrets import mask_text

BLOCK = 1 << 20
_PATIENCE = 60  # seconds without a byte
_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")
_BROKEN = (ConnectionError, TimeoutError, http.client.HTTPException, OSError)


def check_address(url: str) -> None:
    """Refuse what can be read and changed on its way, and what is no HTTP. Raises UserError."""
    try:
        parts = urllib.parse.urlsplit(url)
        scheme, host = parts.scheme, parts.hostname or ""
    except ValueError:
        scheme, host = "", ""
    if scheme == "https" and host:
        return
    shown = mask_text(url)
    if scheme == "http" and host:
        if _is_loopback(host):
            return
        raise UserError(f"{shown}: plain http is for this machine only: give an address with https://")
    raise UserError(f"{shown}: not an address of a hub: give one with https://")


def read_blocks(url: str, start: int, size: int) -> Generator[bytes, None, None]:
    """The bytes ``start`` to ``size`` of a file of ``size`` bytes, a mebibyte at a time.

    Raises UserError for a server that has a file of another size, ConnectionError where it can't be had.
    """
    while start < size:
        before = start
        try:
            with _opener().open(_request(url, start), timeout=_PATIENCE) as answer:
                _skip(answer, start - _begin(answer, start, size))
                while block := answer.read(min(BLOCK, size - start)):
                    start += len(block)
                    yield block
        except urllib.error.HTTPError:
            raise
        except _BROKEN as error:
            if start == before:
                raise ConnectionError(
                    f"the connection broke {size - start:,} bytes before the end ({error})"
                ) from error
        else:
            if start == before:
                raise ConnectionError(f"the server ended {size - start:,} bytes before the end")


def _request(url: str, start: int) -> urllib.request.Request:
    return urllib.request.Request(url, headers={"Range": f"bytes={start}-"} if start else {})


def _begin(answer: Any, start: int, size: int) -> int:
    """The first byte that the answer gives; 0 from a server that ignores the range. UserError for another file."""
    stated: int | None = answer.length
    begin = 0
    if answer.status == 206:
        found = _RANGE.fullmatch(answer.headers.get("Content-Range", ""))
        if found is None or int(found[1]) != start:
            raise UserError(f"the server answered with other bytes than the {start:,}th on; try another hub")
        begin, stated = start, None if found[2] == "*" else int(found[2])
    if stated is not None and stated != size:
        raise UserError(f"the server has a file of {stated:,} bytes, the hub's index one of {size:,}: it has changed")
    return begin


def _skip(answer: Any, count: int) -> None:
    while count > 0 and (block := answer.read(min(BLOCK, count))):
        count -= len(block)
    if count:
        raise ConnectionError("it ended before the first byte that is wanted")


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class _Redirects(urllib.request.HTTPRedirectHandler):
    """To https, or within this machine; urllib itself would follow to ftp, and from https to http."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        if urllib.parse.urlsplit(newurl).scheme != "https":
            if req.type == "https":
                raise UserError(f"{mask_text(newurl)}: a redirect from https to this is not followed")
            check_address(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _opener() -> urllib.request.OpenerDirector:
    """HTTP and nothing else: no ftp, no file, no data."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.UnknownHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        _Redirects(),
        urllib.request.HTTPErrorProcessor(),
    ):
        opener.add_handler(handler)
    return opener
