"""What stands before the engine, over real connections and, where a stranger's body must not be read, over ASGI."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("starlette")
httpx = pytest.importorskip("httpx")

from minimind.inference.serving import front  # noqa: E402
from minimind.inference.serving.front import LOCAL, MAX_BODY, MAX_VALUES, Front, Hosts, Upload  # noqa: E402
from minimind.model.transformer import Transformer  # noqa: E402
from minimind.text.tokenizer import Tokenizer  # noqa: E402
from tests.inference.running import CHAT, COMPLETIONS, HELLO, Running, Speech  # noqa: E402
from tests.waiting import PATIENCE, wait_for  # noqa: E402

JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def keyed(model: Transformer, tokenizer: Tokenizer) -> Iterator[Running]:
    running = Running(model, tokenizer, api_key="secret")
    yield running
    running.close()


class Engine:
    """Stands in for an ASGI application: counts its requests and reads their bodies."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        message = await receive()
        assert not message["more_body"]
        self.bodies.append(message["body"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def ask(
    guard: Front, headers: dict[str, str], parts: list[bytes], method: str = "POST", path: str = "/v1/x"
) -> tuple[int, int, dict[str, Any]]:
    """Status, number of body parts that were read before the answer began, and the error object."""
    sent: list[Any] = []
    waiting, read_before = list(parts), []

    async def receive() -> dict[str, Any]:
        part = waiting.pop(0)
        return {"type": "http.request", "body": part, "more_body": bool(waiting)}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            read_before.append(len(parts) - len(waiting))
        sent.append(message)

    lines = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": method, "path": path, "headers": lines}
    asyncio.run(guard(scope, receive, send))
    body = b"".join(message.get("body", b"") for message in sent)
    assert sent[-1].get("more_body") is False
    return sent[0]["status"], read_before[0], json.loads(body)["error"] if body else {}


def test_the_key_comes_before_the_body() -> None:
    engine = Engine()
    guard = Front(engine, "secret")
    for given in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Bearer"}):
        status, read, error = ask(guard, {**JSON, "content-length": "9", **given}, [b"x" * 9] * 3)
        assert (status, read, error["code"]) == (401, 0, "invalid_api_key")
    for path in ("/v1/models", "//v1/models", "/V1/models", "/health/", "/docs", "/v1/../health"):
        assert ask(guard, {}, [b""], "GET", path)[0] == 401
    assert engine.bodies == []
    assert ask(guard, {**JSON, "authorization": "Bearer secret"}, [b"{", b"}"])[0] == 200
    assert engine.bodies == [b"{}"]


def test_a_body_is_read_up_to_the_cap_only() -> None:
    engine = Engine()
    guard = Front(engine, None, max_body=1000)
    here = {**JSON, "host": "localhost:8000"}
    assert ask(guard, {**here, "content-length": "1001"}, [b"x" * 1001])[:2] == (413, 0)
    chunked = {**here, "transfer-encoding": "chunked"}
    assert ask(guard, chunked, [b"x" * 400] * 50)[:2] == (413, 3)
    assert engine.bodies == []
    assert ask(guard, chunked, [b"x" * 500] * 2)[0] == 200
    assert engine.bodies == [b"x" * 1000]


@pytest.mark.parametrize(
    "kind",
    [None, "text/plain", "application/x-www-form-urlencoded", "text/plain; a=application/json", "application/jsonx"],
)
def test_a_body_that_does_not_call_itself_json_is_refused(api: Running, kind: str | None) -> None:
    headers = {} if kind is None else {"content-type": kind}
    for path in (CHAT, COMPLETIONS, "/health", "/nowhere"):
        response = api.client.post(path, content=json.dumps(HELLO), headers=headers)
        assert response.status_code == 415 and "application/json" in response.json()["error"]["message"]


def test_json_with_a_charset_is_json(api: Running) -> None:
    headers = {"content-type": "Application/JSON; charset=utf-8"}
    assert api.client.post(CHAT, content=json.dumps(HELLO), headers=headers).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "127.0.0.1.evil.example",
        "localhost.",
        "evil:80",
        "127.0.0.1:80:80",
        "localhost@evil",
        "127.0.0.2",
        "[::2]",
        "localhost:",
        "a/localhost",
        "",
    ],
)
def test_another_name_is_not_answered_without_a_key(api: Running, keyed: Running, host: str) -> None:
    for path in ("/", "/health", "/v1/models"):
        assert api.client.get(path, headers={"host": host}).status_code == 403
    assert api.client.post(CHAT, json=HELLO, headers={"host": host}).status_code == 403
    assert keyed.client.get("/health", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("host", ["127.0.0.1", "LocalHost:99", "[::1]:1", "localhost"])
def test_this_machines_names_are_answered(api: Running, host: str) -> None:
    assert api.client.get("/health", headers={"host": host}).status_code == 200
    for scheme in ("http", "https"):
        headers = {"host": host, "origin": f"{scheme}://{host}"}
        assert api.client.get("/v1/models", headers=headers).status_code == 200


@pytest.mark.parametrize("origin", ["null", "http://evil.example", "file://", "localhost", "chrome-extension://x", ""])
def test_another_sites_page_is_not_answered_without_a_key(api: Running, keyed: Running, origin: str) -> None:
    assert api.client.post(CHAT, json=HELLO, headers={"origin": origin}).status_code == 403
    headers = {"origin": origin, "authorization": "Bearer secret"}
    assert keyed.client.get("/v1/models", headers=headers).status_code == 200


def test_off_loopback_any_address_and_own_names_will_do() -> None:
    hosts = Hosts.of("0.0.0.0", "0.0.0.0")
    assert all(map(hosts.allow, ("10.1.2.3:8000", "[fe80::1]:80", "localhost", socket.gethostname())))
    assert not hosts.allow("evil.example") and not hosts.allow("10.1.2.3.evil.example")
    assert hosts.allow_origin("http://10.1.2.3:8000", "10.1.2.3:8000")
    assert not hosts.allow_origin("http://6.6.6.6", "10.1.2.3:8000")
    assert Hosts.of("127.0.0.5", "127.0.0.5").names == {*LOCAL, "127.0.0.5"}
    assert Hosts.of("::1", "::1").names == set(LOCAL)


def test_a_crowd_of_values_is_refused_and_long_text_is_not(api: Running) -> None:
    for body in (b"[" + b"{}," * MAX_VALUES + b"1]", b'{"a":' * (MAX_VALUES + 1), b'["' + b'","' * 90_000 + b'"]'):
        assert api.client.post(CHAT, content=body, headers=JSON).status_code == 413
    text = '{"a": ["\\\\", 1,]}\n' * 40_000
    response = api.post(COMPLETIONS, prompt=text)
    assert len(text) < MAX_BODY and response.json()["error"]["code"] == "context_length_exceeded"


def test_many_fields_and_messages_are_one_error(api: Running) -> None:
    for body in (
        {**HELLO, **{f"x{n}": 1 for n in range(9_000)}},
        {"messages": [{"role": 1}] * 4_200},
        {**HELLO, "stop": [1] * 9_000},
    ):
        response = api.client.post(CHAT, json=body)
        assert response.status_code == 400 and "at most are read" in response.json()["error"]["message"]


def test_utf_16_is_not_read(api: Running) -> None:
    for encoding in ("utf-16", "utf-16-le", "utf-32"):
        body = json.dumps(HELLO).encode(encoding)
        assert api.client.post(CHAT, content=body, headers=JSON).status_code == 400


def test_a_refused_upload_gets_its_answer(keyed: Running) -> None:
    """The rest of the body is taken and thrown away: a connection closed before it would lose the answer."""
    large = b"x" * (8 << 20)
    headers = {**JSON, "connection": "close"}
    assert keyed.client.post(CHAT, content=large, headers=headers).status_code == 401
    headers["authorization"] = "Bearer secret"
    assert keyed.client.post(CHAT, content=large, headers=headers).status_code == 413
    chunks = (b"x" * 65536 for _ in range(100))
    assert keyed.client.post(CHAT, content=chunks, headers=headers).status_code == 413


def test_a_body_that_stalls_is_given_up(api: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front, "BODY_SECONDS", 0.2)
    monkeypatch.setattr(front, "LINGER_SECONDS", 0.2)
    with socket.create_connection(("127.0.0.1", api.port), timeout=PATIENCE) as connection:
        connection.sendall(
            f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            "Content-Length: 100\r\nConnection: close\r\n\r\n{".encode()
        )
        assert connection.makefile("rb").read().startswith(b"HTTP/1.1 408 ")


def test_requests_that_wait_are_counted_and_leave_the_health_check_alone(
    api: Running, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front, "MAX_REQUESTS", 2)
    Speech.put(monkeypatch, tokenizer, "river ", forever=True)
    body = json.dumps(HELLO)
    request = (
        f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n{body}"
    ).encode()
    connections = [socket.create_connection(("127.0.0.1", api.port), timeout=PATIENCE) for _ in range(2)]
    for connection in connections:
        connection.sendall(request)
    wait_for(lambda: api.app._requests == 2)
    refused = api.post(CHAT, **HELLO)
    assert refused.status_code == 503
    assert refused.headers["retry-after"] and api.client.get("/health").status_code == 200
    for connection in connections:
        connection.close()
    wait_for(lambda: not api.speaker.batch.writers)
    Speech.put(monkeypatch, tokenizer, "hill")
    wait_for(lambda: api.post(CHAT, **HELLO).status_code == 200)


def test_health_is_answered_while_large_prompts_are_tokenized(
    api: Running, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop is free while one thread is at work on prompts; more than a thread pool's worth of them wait."""
    release, started = threading.Event(), threading.Event()

    def slow(*_: Any) -> list[int]:
        started.set()
        assert release.wait(PATIENCE)
        return [1] * 200

    monkeypatch.setattr("minimind.inference.serving.fitting.prompt_ids", slow)
    threads = [threading.Thread(target=lambda: api.post(CHAT, **HELLO)) for _ in range(45)]
    for thread in threads:
        thread.start()
    assert started.wait(PATIENCE)
    assert httpx.get(f"http://127.0.0.1:{api.port}/health", timeout=PATIENCE).json() == {"status": "ok"}
    release.set()
    for thread in threads:
        thread.join(PATIENCE)


def test_a_prompt_that_cannot_fit_is_not_tokenized(
    api: Running, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tokenizer, "encode", None)
    monkeypatch.setattr("minimind.inference.serving.fitting.prompt_ids", None)
    for text in ("The river " * 60_000, "\u2581" * 300_000, "河" * 300_000):
        for response in (
            api.post(COMPLETIONS, prompt=text),
            api.post(CHAT, messages=[{"role": "user", "content": text}]),
        ):
            assert response.json()["error"]["code"] == "context_length_exceeded"


def test_no_encoding_stays_below_the_least_number_of_tokens(tokenizer: Tokenizer) -> None:
    for text in ("", "The river runs past the hill.", "河水流过小山" * 9, "\u2581a\u2581", "\U0001f600", " " * 99):
        assert (text != "") <= tokenizer.least_tokens(text) <= len(tokenizer.encode(text))


def test_a_websocket_is_closed() -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(Front(Engine(), None)({"type": "websocket"}, None, send))  # type: ignore[arg-type]
    assert sent == [{"type": "websocket.close", "code": 1008}]


@pytest.mark.parametrize("parts", [1, 3])
def test_all_of_a_refused_body_is_taken(parts: int) -> None:
    """Also where nothing of it has been read yet."""
    messages: list[Any] = [{"type": "http.request", "body": b"x", "more_body": True}] * (parts - 1)
    messages += [{"type": "http.request", "body": b"x"}]  # as ASGI has it, no word of more means none

    async def receive() -> Any:
        return messages.pop(0)

    upload = Upload(receive)
    assert not upload.ended
    asyncio.run(upload.drain())
    assert upload.ended and not messages
