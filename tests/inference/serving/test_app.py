"""The HTTP interface over real connections: a tiny random model, or a stand-in for `generate`."""

from __future__ import annotations

import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from minimind.inference import batching
from minimind.inference.generation import Sampling, generate
from minimind.model.transformer import Transformer
from minimind.text.chat import Turn, prompt_ids
from minimind.text.tokenizer import Tokenizer

pytest.importorskip("starlette")
httpx = pytest.importorskip("httpx")

from minimind.inference.serving import app, front  # noqa: E402
from minimind.inference.serving.fitting import Fitting  # noqa: E402
from minimind.inference.serving.replies import Reply, Told  # noqa: E402
from tests.inference.running import (  # noqa: E402
    CHAT,
    COMPLETIONS,
    HELLO,
    POSITIONS,
    Running,
    Speech,
    content,
)
from tests.text.templates import TEMPLATES, write_tokenizer  # noqa: E402
from tests.waiting import PATIENCE, wait_for  # noqa: E402


def test_a_chat_answer_is_what_generate_makes(api: Running, model: Transformer, tokenizer: Tokenizer) -> None:
    prompt = prompt_ids([Turn("system", "be brief"), Turn("user", "hello 你好")], tokenizer)
    stops = {tokenizer.im_end_id, tokenizer.eos_id}
    expected = list(generate(model, prompt, Sampling(30, temperature=1.0, top_p=0.9, top_k=50, seed=5), stop_ids=stops))
    parts = [{"type": "text", "text": "hello "}, {"type": "text", "text": "你好"}]
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": parts}]
    reply = api.post(CHAT, messages=messages, max_tokens=30, temperature=1, top_k=50, seed=5, model="tiny").json()
    choice = reply["choices"][0]
    assert choice["message"]["role"] == "assistant"
    assert choice["message"]["content"] == tokenizer.decode(expected)
    assert reply["usage"] == {
        "prompt_tokens": len(prompt),
        "completion_tokens": len(expected),
        "total_tokens": len(prompt) + len(expected),
    }
    assert choice["finish_reason"] == ("length" if len(expected) == 30 else "stop")
    assert (reply["object"], reply["model"]) == ("chat.completion", "tiny")


def test_a_conversation_that_the_models_template_cannot_write_is_refused(model: Transformer, tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(write_tokenizer(tmp_path, TEMPLATES["bracketed"]))
    api = Running(model, tokenizer)
    try:
        reply = api.post(CHAT, messages=[{"role": "system", "content": "be brief"}, *HELLO["messages"]])
        assert reply.status_code == 400 and "only user and assistant" in reply.json()["error"]["message"]
    finally:
        api.close()


@pytest.mark.parametrize("end", ["im_end_id", "eos_id"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_answer_ends_where_the_model_ends_it(
    end: str, stream: bool, api: Running, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    speech = Speech.put(monkeypatch, tokenizer, "The river")
    speech.end = getattr(tokenizer, end)
    if stream:
        events = api.events(CHAT, **HELLO)
        text, finish = content(events), events[-2]["choices"][0]["finish_reason"]
    else:
        choice = api.post(CHAT, **HELLO).json()["choices"][0]
        text, finish = choice["message"]["content"], choice["finish_reason"]
    assert (text, finish) == ("The river", "stop")


def test_a_completion_goes_on_from_bos_and_text(api: Running, model: Transformer, tokenizer: Tokenizer) -> None:
    prompt = [tokenizer.bos_id, *tokenizer.encode("The river")]
    expected = list(generate(model, prompt, Sampling(12, temperature=0), stop_ids=[tokenizer.eos_id]))
    for text in ("The river", ["The river"]):
        reply = api.post(COMPLETIONS, prompt=text, max_tokens=12, temperature=0).json()
        assert reply["choices"][0]["text"] == tokenizer.decode(expected)
        assert reply["usage"]["prompt_tokens"] == len(prompt)
        assert reply["object"] == "text_completion"


def test_a_stream_joined_is_the_whole_answer(api: Running) -> None:
    body = {**HELLO, "max_tokens": 40, "seed": 3, "temperature": 1.5}
    whole = api.post(CHAT, **body).json()
    events = api.events(CHAT, **body, stream_options={"include_usage": True})
    assert events[-1] == "[DONE]"
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert content(events) == whole["choices"][0]["message"]["content"]
    assert events[-3]["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"]
    assert events[-2]["choices"] == [] and events[-2]["usage"] == whole["usage"]
    assert {event["id"] for event in events[:-1]} == {events[0]["id"]}
    assert all(event["object"] == "chat.completion.chunk" for event in events[:-1])
    without = api.events(CHAT, **body)
    assert all("usage" not in event for event in without[:-1])
    assert content(without) == content([*events[:-1], "[DONE]"])


def test_a_completion_streams_too(api: Running) -> None:
    body = {"prompt": "The river", "max_tokens": 20, "seed": 3}
    events = api.events(COMPLETIONS, **body)
    texts = [event["choices"][0]["text"] for event in events[:-1]]
    assert "".join(texts) == api.post(COMPLETIONS, **body).json()["choices"][0]["text"]


def test_a_seed_decides_and_without_one_answers_differ(api: Running) -> None:
    body = {"prompt": "The", "max_tokens": 30, "temperature": 2, "top_p": 1}
    replies = [api.post(COMPLETIONS, **body, **more).json() for more in ({}, {}, {"seed": 7}, {"seed": 7})]
    texts = [reply["choices"][0]["text"] for reply in replies]
    assert texts[0] != texts[1] and texts[2] == texts[3]


def test_characters_arrive_whole(api: Running, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "漢\U0001f600é河"  # all but the last as bytes
    speech = Speech.put(monkeypatch, tokenizer, text)
    assert len(speech.ids) > len(text) + 4
    events = api.events(CHAT, **HELLO)
    parts = [event["choices"][0]["delta"].get("content", "") for event in events[1:-1]]
    assert "".join(parts) == text and "\ufffd" not in text


@pytest.mark.parametrize(
    ("stop", "expected"),
    [
        ("hill", "The river runs past the "),
        (["past the", "zzz"], "The river runs "),
        ("r r", "The rive"),
        (["The"], ""),
    ],
)
def test_stop_strings_end_an_answer_and_never_show(
    api: Running, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, stop: Any, expected: str
) -> None:
    Speech.put(monkeypatch, tokenizer, "The river runs past the hill.")
    choice = api.post(CHAT, **HELLO, stop=stop).json()["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == (expected, "stop")
    assert content(api.events(CHAT, **HELLO, stop=stop)) == expected
    assert not api.speaker.batch.writers


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_ends_its_answer(
    api: Running, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    speech = Speech.put(monkeypatch, tokenizer, "river ", forever=True)
    body = json.dumps({**HELLO, "stream": stream}).encode()
    with socket.create_connection(("127.0.0.1", api.port), timeout=PATIENCE) as connection:
        about = ["Host: 127.0.0.1", "Content-Type: application/json", f"Content-Length: {len(body)}"]
        connection.sendall("\r\n".join([f"POST {CHAT} HTTP/1.1", *about, "", ""]).encode() + body)
        wait_for(lambda: speech.said > 5)
        assert len(api.speaker.batch.writers) == 1
    wait_for(lambda: not api.speaker.batch.writers)
    said = speech.said
    Speech.put(monkeypatch, tokenizer, "hill")
    assert api.post(CHAT, **HELLO).json()["choices"][0]["message"]["content"] == "hill"
    assert speech.said == said


def test_questions_that_come_at_once_are_answered_together(
    api: Running, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    speech = Speech.put(monkeypatch, tokenizer, "river ", forever=True)
    texts: list[str] = []
    body = {**HELLO, "max_tokens": 60}
    threads = [threading.Thread(target=lambda: texts.append(content(api.events(CHAT, **body)))) for _ in range(4)]
    together = 0
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        together = max(together, len(api.speaker.batch.writers))
    assert len(speech.asked) == 4 and len(set(texts)) == 1
    assert together > 1


def test_a_failure_is_told_to_the_client_without_its_traceback(
    api: Running, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    Speech.put(monkeypatch, tokenizer, "hill", fails=True)
    response = api.post(CHAT, **HELLO)
    assert response.status_code == 500 and response.json()["error"]["type"] == "server_error"
    assert "fire" not in response.text
    assert response.headers["Connection"] == "close"  # uvicorn closes it: the next request needs another
    received: list[str] = []
    with (
        api.client.stream("POST", CHAT, json={**HELLO, "stream": True}) as response,
        pytest.raises(httpx.RemoteProtocolError),  # cut off: a client can't take it for an end
    ):
        received.extend(response.iter_lines())
    text = "\n".join(received)
    assert '"content":' in text and "the server failed" in text
    assert "[DONE]" not in text and "fire" not in text


def test_a_server_that_stops_ends_its_answers(model: Transformer, tokenizer: Tokenizer) -> None:
    running = Running(model, tokenizer, stopping=lambda: True)
    assert running.post(CHAT, **HELLO).status_code == 503
    events = running.events(CHAT, **HELLO)
    assert events[-1]["error"]["message"] == "the server is stopping"
    running.close()


def test_a_key_is_asked_for_under_v1_only(model: Transformer, tokenizer: Tokenizer) -> None:
    running = Running(model, tokenizer, api_key="sécret")
    for given in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic sécret".encode()}):
        for response in (
            running.client.get("/v1/models", headers=given),
            running.client.post(CHAT, json=HELLO, headers=given),
        ):
            assert (response.status_code, response.json()["error"]["code"]) == (401, "invalid_api_key")
            assert response.headers["www-authenticate"] == "Bearer"
    right = {"authorization": "Bearer sécret".encode()}
    assert running.client.get("/v1/models", headers=right).status_code == 200
    assert running.client.get("/health").json() == {"status": "ok"}
    assert running.client.get("/").status_code == 200
    running.close()


def test_models_names_the_one_model(api: Running) -> None:
    listed = api.client.get("/v1/models").json()
    assert [model["id"] for model in listed["data"]] == ["tiny"]
    assert listed["data"][0]["max_model_len"] == POSITIONS


LONG_PROMPT = {"prompt": "The river " * 9, "echo": True, "logprobs": 2, "max_tokens": 1}
WORK: dict[str, tuple[Any, str, str, dict[str, Any]]] = {
    "reading a body": (app, "parsed", CHAT, HELLO),
    "looking at a large body": (front, "_is_crowded", CHAT, {**HELLO, "user": "x" * 100_000}),
    "writing a conversation for the model": (Fitting, "chat", CHAT, HELLO),
    "reading a prompt": (Transformer, "hidden_states", COMPLETIONS, {"prompt": "The river"}),
    "making an answer": (batching, "choose", CHAT, HELLO),
    "writing a reply": (Reply, "whole", CHAT, HELLO),
    "writing a long event": (Told, "chunk", COMPLETIONS, {**LONG_PROMPT, "stream": True}),
}


@pytest.mark.parametrize("name", WORK)
def test_the_event_loop_goes_on_while_a_request_is_worked_at(
    api: Running, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Whatever it is that takes long: the work waits until others have been answered meanwhile."""
    where, function, path, body = WORK[name]
    began, go = threading.Event(), threading.Event()
    original = getattr(where, function)

    def waiting(*arguments: Any, **how: Any) -> Any:
        began.set()
        assert go.wait(PATIENCE)
        return original(*arguments, **how)

    monkeypatch.setattr(where, function, waiting)
    with ThreadPoolExecutor(1) as client:
        reply = client.submit(api.post, path, **body)
        assert began.wait(PATIENCE)
        try:
            for address in ("/health", "/v1/models", "/health"):
                assert api.client.get(address).status_code == 200
        finally:
            go.set()
        assert reply.result().status_code == 200
