"""`minimind watch`: the report's page, served on this machine and kept up to date while runs go on.

Contract. It listens on loopback only, behind the same front as `minimind serve` (names of this machine, no other site's
page), and answers three things: the page, what is new since records that the page has, and nothing else. It reads the
run directories and writes nothing, so that a directory that is copied here again and again can be watched, too. A run
that has not written its first line yet is waited for. Ctrl-C and SIGTERM end it with exit code 0.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import signal
import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minimind.base.display import say
from minimind.base.errors import UserError
from minimind.commands.page.html import page, policy
from minimind.commands.page.payload import changes
from minimind.commands.page.records import RunRecords
from minimind.training.record.file import FILE_NAME

if TYPE_CHECKING:
    from minimind.inference.serving.front import Receive, Scope, Send
    from minimind.inference.serving.listener import Server

HOST = "127.0.0.1"
_SINCE = re.compile(rb"since=([0-9]{1,9}\.[0-9]{1,12}(?:-[0-9]{1,9}\.[0-9]{1,12})*)", re.ASCII)


def watch(runs: Sequence[Path], port: int) -> None:
    """Serve the page of ``runs`` until Ctrl-C or SIGTERM; ``port`` 0: a free one.

    Raises UserError for a path that is no directory, a file of a run that can't be read, a port that is taken, and
    without the extra ``serve``.
    """
    app = Watch(runs)
    app.page()  # what is wrong with a run's files is said here, before anybody looks
    try:
        from minimind.inference.server import listen
        from minimind.inference.serving.front import Front
        from minimind.inference.serving.listener import make_server
    except ImportError as error:
        raise UserError(f"{error.name} is missing: pip install 'minimind-deepspeed[serve]'") from error
    with listen(HOST, port) as listener:
        server = make_server(Front(app, api_key=None))
        names = ", ".join(str(run) for run in runs)
        say(f"watching {names}: http://{HOST}:{listener.getsockname()[1]}/ Ctrl-C ends.")
        _run(server, listener)


def _run(server: Server, listener: socket.socket) -> None:
    from minimind.inference.serving.listener import log_few_lines

    log_few_lines()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # uvicorn ends in order and raises the signal again
    with contextlib.suppress(KeyboardInterrupt):
        server.run(sockets=[listener])


class Watch:
    """The ASGI application: ``/`` and ``/news?since=GENERATION.NUMBER-GENERATION.NUMBER...``, one pair a run."""

    def __init__(self, runs: Sequence[Path]) -> None:
        directories = [path.parent if path.name == FILE_NAME else path for path in runs]
        for directory in directories:
            if not directory.is_dir():
                raise UserError(f"{directory}: no directory: give the output directory of a training run")
        self.runs = [RunRecords(directory) for directory in directories]
        self._one_at_a_time = threading.Lock()

    def page(self) -> str:
        """The page with what there is now. Raises UserError for a configuration that can't be read."""
        with self._one_at_a_time:
            for run in self.runs:
                _read(run)
            return page(self.runs, live=True)

    def news(self, since: Sequence[tuple[int, int]]) -> list[dict[str, Any]]:
        """For each run what came after its (generation, number); all of it where the file is another one by now."""
        with self._one_at_a_time:
            return [_news(run, *pair) for run, pair in zip(self.runs, since, strict=True)]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, which has passed the front."""
        status, kind, text = await asyncio.to_thread(self._answer, scope)
        headers = {
            "content-type": f"{kind}; charset=utf-8",
            "cache-control": "no-store",
            "x-content-type-options": "nosniff",
            "content-security-policy": f"{policy(live=True)}; frame-ancestors 'none'",
        }
        encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": status, "headers": encoded})
        await send({"type": "http.response.body", "body": text.encode("utf-8", "replace")})

    def _answer(self, scope: Scope) -> tuple[int, str, str]:
        """Status, media type and body."""
        if scope["method"] not in ("GET", "HEAD"):
            return 405, "text/plain", "only looked at\n"
        try:
            if scope["path"] == "/":
                return 200, "text/html", self.page()
            since = _since(scope["query_string"]) if scope["path"] == "/news" else None
            if since is not None and len(since) == len(self.runs):
                return 200, "application/json", json.dumps(self.news(since), allow_nan=False)
        except UserError as error:
            return 500, "text/plain", f"{error}\n"
        return 404, "text/plain", "no such address here\n"


def _since(query: bytes) -> list[tuple[int, int]] | None:
    found = _SINCE.fullmatch(query)
    pairs = found[1].decode().split("-") if found else None
    return None if pairs is None else [(int(a), int(b)) for a, b in (pair.split(".") for pair in pairs)]


def _news(run: RunRecords, generation: int, number: int) -> dict[str, Any]:
    wrong = _read(run)
    same = generation == run.generation and number <= run.number
    value = changes(run, number if same else None)
    return value if wrong is None else value | {"state": {"code": "unreadable", "message": wrong}}


def _read(run: RunRecords) -> str | None:
    """Take what is new; what is wrong with it, if something is. A file that is not there yet is waited for."""
    try:
        run.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"{run.directory / FILE_NAME}: {error.strerror}"
    except UserError as error:
        return str(error)
    return None
