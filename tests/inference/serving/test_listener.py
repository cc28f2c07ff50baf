"""Connections that say nothing, or half of something, and many of them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")
httpx = pytest.importorskip("httpx")

from minimind.inference.server import listen  # noqa: E402
from minimind.inference.serving import listener  # noqa: E402
from minimind.inference.serving.listener import LOG_LINES, LOG_SECONDS, FewLines, log_few_lines, make_server  # noqa: E402
from minimind.model.transformer import Transformer  # noqa: E402
from minimind.text.tokenizer import Tokenizer  # noqa: E402
from tests.inference.running import CHAT, Running  # noqa: E402
from tests.waiting import PATIENCE  # noqa: E402

GET = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"

SERVER = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
from minimind.inference.serving.front import Front
from minimind.inference.serving.listener import log_few_lines, make_server
from minimind.inference.server import listen

async def engine(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"fine", "more_body": False})

listener = listen("127.0.0.1", 0)
log_few_lines()
print(listener.getsockname()[1], flush=True)
make_server(Front(engine, None)).run(sockets=[listener])
"""


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)


@pytest.mark.parametrize("start", [b"", b"GET / HT", GET, GET + b"\r\n" + GET, b"\r\n"])
def test_half_a_request_is_closed(
    model: Transformer, tokenizer: Tokenizer, start: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "KEEP_ALIVE_SECONDS", 1)
    running = Running(model, tokenizer, header_seconds=0.2)
    with connect(running.port) as connection:
        connection.sendall(start)
        try:
            answer = connection.makefile("rb").read()  # until the server closes it
        except ConnectionResetError:
            answer = b""
    assert answer.count(b'"ok"') == start.count(b"\r\n\r\n")
    running.close()


def test_at_the_limit_an_idle_connection_makes_room(model: Transformer, tokenizer: Tokenizer) -> None:
    running = Running(model, tokenizer, connections=4, header_seconds=600)
    idle = [connect(running.port) for _ in range(12)]
    for _ in range(6):
        assert httpx.get(f"http://127.0.0.1:{running.port}/health", timeout=PATIENCE).status_code == 200
    for connection in idle:
        connection.close()
    running.close()


def test_a_reader_that_stops_is_left() -> None:
    left = threading.Event()

    async def engine(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        leaving = asyncio.ensure_future(receive())
        while not leaving.done():
            await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
            await asyncio.sleep(0)
        left.set()

    listening = listen("127.0.0.1", 0)
    port = listening.getsockname()[1]
    server = make_server(engine, header_seconds=0.2)
    thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
    thread.start()
    with connect(port) as connection:
        connection.sendall(GET + b"\r\n")
        assert left.wait(PATIENCE)
    server.should_exit = True
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_garbage_in_a_body_ends_the_connection(api: Running) -> None:
    with connect(api.port) as connection:
        head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        connection.sendall(head.encode() + b"zzz\r\n" * 3)
        with contextlib.suppress(ConnectionResetError):
            connection.makefile("rb").read()
    assert api.client.get("/health").status_code == 200


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs a limit on descriptors")
def test_400_idle_sockets_at_256_descriptors_stop_nothing_and_flood_no_log() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    idle: list[socket.socket] = []
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        for number in range(400):
            idle.append(connect(port))
            if number % 3 == 0:
                idle[-1].sendall(GET[: number % 40])
        for _ in range(5):
            assert httpx.get(f"http://127.0.0.1:{port}/health", timeout=PATIENCE).text == "fine"
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
        for connection in idle:
            connection.close()
    assert log.count("\n") < 50


def test_a_few_lines_of_a_kind_are_logged() -> None:
    now = [0.0]
    few = FewLines(lambda: now[0])

    def record(line: int) -> logging.LogRecord:
        return logging.LogRecord("uvicorn", logging.WARNING, "file.py", line, "bad %s", ("x",), None)

    assert sum(few.filter(record(1)) for _ in range(100)) == LOG_LINES
    assert few.filter(record(2))  # another kind
    now[0] = LOG_SECONDS
    last = record(1)
    assert few.filter(last) and last.getMessage() == f"bad x ({100 - LOG_LINES} more like it before)"


def test_the_logs_of_the_server_are_apart_from_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    others, names = list(logging.getLogger().handlers), ("uvicorn", "asyncio")
    for name in names:  # put back at the end
        monkeypatch.setattr(logging.getLogger(name), "handlers", [])
        monkeypatch.setattr(logging.getLogger(name), "propagate", True)
    log_few_lines()
    assert logging.getLogger().handlers == others
    for name in names:
        logger = logging.getLogger(name)
        (handler,) = logger.handlers
        assert any(isinstance(each, FewLines) for each in handler.filters) and not logger.propagate
        assert logger.level == handler.level == logging.WARNING
