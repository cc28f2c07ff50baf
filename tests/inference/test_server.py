"""The HTTP server over real connections: a tiny random model, or a stand-in for `generate` where the text matters."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from minimind import cli
from minimind.chat import Turn, prompt_ids
from minimind.inference import answers
from minimind.inference.answers import Piece, Question, Speaker, StopText, pieces
from minimind.inference.generation import generate
from minimind.inference.server import listen, model_name
from minimind.interop.huggingface import save_pretrained
from minimind.model import ModelConfig, Transformer
from minimind.terminal import Sampling
from minimind.tokenizer import Tokenizer, train_tokenizer

httpx = pytest.importorskip("httpx")
uvicorn = pytest.importorskip("uvicorn")
pytest.importorskip("fastapi")

from minimind.inference.app import CHAT_TOKENS, make_app  # noqa: E402 (after the check that it can be)

POSITIONS = 100
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HELLO = {"messages": [{"role": "user", "content": "hello 你好"}]}


@pytest.fixture(scope="module")
def model() -> Transformer:
    config = ModelConfig.preset(
        "tiny", vocab_size=330, hidden_size=32, num_hidden_layers=2, head_dim=8,
        max_position_embeddings=POSITIONS, initializer_range=0.3,
    )  # fmt: skip
    return Transformer(config, seed=1).eval()


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    texts = [f"The river {n} runs past the hill. 河水流过小山{n}。" for n in range(200)]
    return Tokenizer.load(train_tokenizer(texts, tmp_path_factory.mktemp("tokenizer"), vocab_size=330))


class Running:
    """An application on a free port, in a thread."""

    def __init__(self, *args: Any, **options: Any) -> None:
        listener = listen("127.0.0.1", 0)
        self.port = listener.getsockname()[1]
        app = make_app(*args, **options)
        self.server = uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="off"))
        self.thread = threading.Thread(target=self.server.run, args=([listener],), daemon=True)
        self.thread.start()
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=60, trust_env=False)

    def post(self, path: str, **body: Any) -> Any:
        return self.client.post(path, json=body)

    def events(self, path: str, **body: Any) -> list[Any]:
        """The data of a stream's events; what is not JSON as it is."""
        with self.client.stream("POST", path, json={"stream": True, **body}) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            data = [line.removeprefix("data: ") for line in response.iter_lines() if line]
        return [json.loads(item) if item.startswith("{") else item for item in data]

    def close(self) -> None:
        self.client.close()
        self.server.should_exit = True
        self.thread.join(timeout=20)
        assert not self.thread.is_alive()


@pytest.fixture(scope="module")
def api(model: Transformer, tokenizer: Tokenizer) -> Iterator[Running]:
    model.output_size = tokenizer.vocab_size
    running = Running(Speaker(model, tokenizer), "tiny")
    yield running
    running.close()


class Speech:
    """Stands in for `generate`: says a text token by token, over and over if ``forever``, or fails at the end."""

    def __init__(self, tokenizer: Tokenizer, text: str, forever: bool = False, fails: bool = False) -> None:
        self.ids, self.forever, self.fails = tokenizer.encode(text), forever, fails
        self.calls: list[dict[str, Any]] = []
        self.said = self.active = self.most_active = 0

    def __call__(self, model: Any, prompt: list[int], count: int, **options: Any) -> Iterator[int]:
        self.calls.append({"prompt": prompt, "count": count, **options})
        self.active += 1
        self.most_active = max(self.active, self.most_active)
        try:
            while True:
                for token in self.ids[:count]:
                    self.said += 1
                    time.sleep(0.002)
                    yield token
                if not self.forever:
                    break
            if self.fails:
                raise RuntimeError("the machine is on fire")
        finally:
            self.active -= 1


def content(events: list[Any]) -> str:
    return "".join(
        event["choices"][0]["delta"].get("content", "") for event in events[:-1] if event["choices"]
    )


def test_a_chat_answer_is_what_generate_makes(api: Running, model: Transformer, tokenizer: Tokenizer) -> None:
    prompt = prompt_ids([Turn("system", "be brief"), Turn("user", "hello 你好")], tokenizer)
    stops = {tokenizer.im_end_id, tokenizer.eos_id}
    expected = list(generate(model, prompt, 30, temperature=1.0, top_p=0.9, top_k=50, stop_ids=stops, seed=5))
    parts = [{"type": "text", "text": "hello "}, {"type": "text", "text": "你好"}]
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": parts}]
    reply = api.post(
        CHAT, messages=messages, max_tokens=30, temperature=1, top_k=50, seed=5, model="tiny"
    ).json()
    choice = reply["choices"][0]
    assert choice["message"]["role"] == "assistant"
    assert choice["message"]["content"] == tokenizer.decode(expected)
    assert reply["usage"] == {
        "prompt_tokens": len(prompt), "completion_tokens": len(expected), "total_tokens": len(prompt) + len(expected)
    }  # fmt: skip
    assert choice["finish_reason"] == ("length" if len(expected) == 30 else "stop")
    assert (reply["object"], reply["model"]) == ("chat.completion", "tiny")


def test_a_completion_goes_on_from_bos_and_text(
    api: Running, model: Transformer, tokenizer: Tokenizer
) -> None:
    prompt = [tokenizer.bos_id, *tokenizer.encode("The river")]
    expected = list(generate(model, prompt, 12, temperature=0, stop_ids=[tokenizer.eos_id]))
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
    assert all("usage" not in event for event in without[:-1]) and len(without) == len(events) - 1


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
    speech = Speech(tokenizer, text)
    assert len(speech.ids) > len(text) + 4
    monkeypatch.setattr(answers, "generate", speech)
    events = api.events(CHAT, **HELLO)
    parts = [event["choices"][0]["delta"].get("content") for event in events[1:-2]]
    assert parts == list(text)


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
    speech = Speech(tokenizer, "The river runs past the hill.")
    monkeypatch.setattr(answers, "generate", speech)
    choice = api.post(CHAT, **HELLO, stop=stop).json()["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == (expected, "stop")
    assert content(api.events(CHAT, **HELLO, stop=stop)) == expected
    assert speech.active == 0


@hypothesis.given(
    st.lists(st.text("ab", max_size=3)), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3)
)
def test_stop_text_does_not_depend_on_how_the_text_is_divided(parts: list[str], stops: list[str]) -> None:
    text = "".join(parts)
    ends = [end for end in range(len(text) + 1) if any(text[:end].endswith(stop) for stop in stops)]
    expected = text
    if ends:
        longest = max(len(stop) for stop in stops if text[: ends[0]].endswith(stop))
        expected = text[: ends[0] - longest]
    stream, shown = StopText(stops), ""
    for part in parts:
        shown += stream.push(part)
        assert expected.startswith(shown)
        if stream.found:
            break
    assert shown + stream.flush() == expected
    assert stream.found == bool(ends)


def test_the_last_piece_says_why_it_ended(
    model: Transformer, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "generate", Speech(tokenizer, "河水"))
    made = len(tokenizer.encode("河水"))
    for room, finish in ((made, "length"), (made + 1, "stop")):
        last = list(pieces(model, tokenizer, Question([1], Sampling(room), [])))[-1]
        assert last == Piece("", made, finish)


def body_with(**more: Any) -> dict[str, Any]:
    return {**HELLO, **more}


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        (CHAT, {}, 400, "messages: Field required"),
        (CHAT, [], 400, "must be a JSON object"),
        (CHAT, {"messages": []}, 400, "at least 1"),
        (CHAT, {"messages": [{"role": "tool", "content": "x"}]}, 400, "messages[0].role: "),
        (CHAT, {"messages": [{"role": "user"}]}, 400, "messages[0].content: Field required"),
        (CHAT, {"messages": [{"role": "user", "content": 3}]}, 400, "messages[0].content: "),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "text only"),
        (CHAT, {"messages": [{"role": "user", "content": "a\ud800"}]}, 400, "lone surrogate"),
        (CHAT, body_with(n=2), 400, "n: Input should be 1"),
        (CHAT, body_with(model="gpt-4"), 404, "there is no model 'gpt-4' here, only 'tiny'"),
        (CHAT, body_with(temperature=3), 400, "temperature: "),
        (CHAT, body_with(temperature="1"), 400, "temperature: "),
        (CHAT, body_with(temperature=1e-9), 400, "temperature must be 0, or 0.001 or more"),
        (CHAT, body_with(top_p=0), 400, "top_p: "),
        (CHAT, body_with(top_k=-1), 400, "top_k: "),
        (CHAT, body_with(max_tokens=0), 400, "max_tokens: "),
        (CHAT, body_with(max_tokens=3, max_completion_tokens=4), 400, "max_tokens and max_completion_tokens differ"),
        (CHAT, body_with(seed=2**64), 400, "seed: "),
        (CHAT, body_with(stop=""), 400, "stop[0]: "),
        (CHAT, body_with(stop=["a"] * 5), 400, "stop: "),
        (CHAT, body_with(stream="yes"), 400, "stream: "),
        (CHAT, body_with(stream_options={"include_usage": True}), 400, "stream: true only"),
        (CHAT, body_with(tools=[{"type": "function"}]), 400, "tools is not supported"),
        (CHAT, body_with(frequency_penalty=0.5), 400, "frequency_penalty is not supported"),
        (CHAT, body_with(temprature=1), 400, "temprature: no such parameter"),
        (CHAT, {**HELLO, "\ud800": 1}, 400, "a valid string"),
        (CHAT, body_with(model="\ud800"), 404, "there is no model"),
        (COMPLETIONS, {"prompt": [1, 2]}, 400, "prompt: must be one string"),
        (COMPLETIONS, {"prompt": ["a", "b"]}, 400, "prompt: must be one string"),
        ("/v1/embeddings", {}, 404, "no such address"),
        ("/v1/models", {}, 405, "another method"),
    ],
)  # fmt: skip
def test_wrong_requests_get_openais_error_object(
    api: Running, path: str, body: Any, status: int, words: str
) -> None:
    response = api.client.post(path, content=json.dumps(body), headers={"content-type": "application/json"})
    error = response.json()["error"]
    assert response.status_code == status
    assert words in error["message"] and "Traceback" not in response.text
    assert error.keys() == {"message", "type", "param", "code"} and error["type"] == "invalid_request_error"


def test_a_body_that_is_no_json(api: Running) -> None:
    headers = {"content-type": "application/json"}
    for text in ("{", "", '{"temperature": NaN}', "\xff"):
        response = api.client.post(CHAT, content=text.encode("latin-1"), headers=headers)
        assert response.status_code == 400 and response.json()["error"]["message"]


def test_neutral_values_and_nulls_are_taken(api: Running) -> None:
    neutral = {"frequency_penalty": 0, "logprobs": False, "response_format": {"type": "text"}, "tools": []}
    nulls = {"stop": None, "seed": None, "stream_options": None, "tool_choice": None}
    assert api.post(CHAT, **HELLO, **neutral, **nulls, user="me", max_tokens=2).status_code == 200


def test_a_prompt_that_is_too_long_says_how_long_it_may_be(api: Running, tokenizer: Tokenizer) -> None:
    text = "z" * (POSITIONS - 2)  # a token each, and bos: the longest that leaves room for one token
    assert len(tokenizer.encode(text)) == POSITIONS - 2
    reply = api.post(COMPLETIONS, prompt=text, max_tokens=50).json()
    assert reply["usage"]["completion_tokens"] <= 1
    for stream in (False, True):
        response = api.post(COMPLETIONS, prompt=text + "z", stream=stream)
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (400, "context_length_exceeded")
        assert f"has {POSITIONS} tokens; it may have at most {POSITIONS - 1}" in error["message"]


def test_what_a_request_leaves_out_is_as_minimind_chat_has_it(
    api: Running, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    speech = Speech(tokenizer, "河")
    monkeypatch.setattr(answers, "generate", speech)
    api.post(CHAT, **HELLO)
    api.post(CHAT, **HELLO, max_completion_tokens=7)
    call = speech.calls[0]
    assert (call["temperature"], call["top_p"], call["top_k"]) == (0.7, 0.9, 0)
    assert call["count"] == min(CHAT_TOKENS, POSITIONS - len(call["prompt"]))
    assert speech.calls[1]["count"] == 7


def wait_for(condition: Any) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, "did not happen in 20 s"
        time.sleep(0.01)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_ends_its_answer(
    api: Running, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    speech = Speech(tokenizer, "river ", forever=True)
    monkeypatch.setattr(answers, "generate", speech)
    body = json.dumps({**HELLO, "stream": stream}).encode()
    with socket.create_connection(("127.0.0.1", api.port), timeout=20) as connection:
        about = ["Host: x", "Content-Type: application/json", f"Content-Length: {len(body)}"]
        connection.sendall("\r\n".join([f"POST {CHAT} HTTP/1.1", *about, "", ""]).encode() + body)
        wait_for(lambda: speech.said > 5)
        assert speech.active == 1
    wait_for(lambda: speech.active == 0)
    said = speech.said
    monkeypatch.setattr(answers, "generate", Speech(tokenizer, "hill"))
    assert api.post(CHAT, **HELLO).json()["choices"][0]["message"]["content"] == "hill"
    assert speech.said == said


def test_answers_are_made_one_at_a_time(
    api: Running, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    speech = Speech(tokenizer, "The river runs past the hill.")
    monkeypatch.setattr(answers, "generate", speech)
    texts: list[str] = []
    threads = [
        threading.Thread(target=lambda: texts.append(content(api.events(CHAT, **HELLO)))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert texts == ["The river runs past the hill."] * 4
    assert len(speech.calls) == 4 and speech.most_active == 1


def test_a_failure_is_told_to_the_client_without_its_traceback(
    api: Running, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "generate", Speech(tokenizer, "hill", fails=True))
    response = api.post(CHAT, **HELLO)
    assert response.status_code == 500 and response.json()["error"]["type"] == "server_error"
    assert "fire" not in response.text
    received: list[str] = []
    with (
        api.client.stream("POST", CHAT, json={**HELLO, "stream": True}) as response,
        pytest.raises(httpx.RemoteProtocolError),  # cut off: a client can't take it for an end
    ):
        received.extend(response.iter_lines())
    text = "\n".join(received)
    assert '"content": ' in text and "the server failed" in text
    assert "[DONE]" not in text and "fire" not in text


def test_a_server_that_stops_ends_its_answers(model: Transformer, tokenizer: Tokenizer) -> None:
    running = Running(Speaker(model, tokenizer), "tiny", stopping=lambda: True)
    assert running.post(CHAT, **HELLO).status_code == 503
    events = running.events(CHAT, **HELLO)
    assert events[-1]["error"]["message"] == "the server is stopping"
    running.close()


def test_a_key_is_asked_for_under_v1_only(model: Transformer, tokenizer: Tokenizer) -> None:
    running = Running(Speaker(model, tokenizer), "tiny", api_key="sécret")
    for given in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic sécret".encode()}):
        for response in (
            running.client.get("/v1/models", headers=given),
            running.client.post(CHAT, json=HELLO, headers=given),
        ):
            assert (response.status_code, response.json()["error"]["code"]) == (401, "invalid_api_key")
    right = {"authorization": "Bearer sécret".encode()}
    assert running.client.get("/v1/models", headers=right).status_code == 200
    assert running.client.get("/health").json() == {"status": "ok"}
    assert running.client.get("/").status_code == 200
    running.close()


def test_models_names_the_one_model(api: Running) -> None:
    listed = api.client.get("/v1/models").json()
    assert [model["id"] for model in listed["data"]] == ["tiny"]
    assert listed["data"][0]["max_model_len"] == POSITIONS


def test_the_page_needs_nothing_else(api: Running) -> None:
    response = api.client.get("/")
    assert response.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in response.headers["content-security-policy"]
    text = response.text
    assert "://" not in text and "@import" not in text and "innerHTML" not in text
    for words in ("Stop", "停止", "New chat", "新对话", "v1/chat/completions"):
        assert words in text


def test_a_waiting_question_costs_nothing_when_its_client_leaves(
    model: Transformer, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    speech = Speech(tokenizer, "hill")
    monkeypatch.setattr(answers, "generate", speech)

    async def gone() -> bool:
        return True

    async def ask() -> list[Piece]:
        speaker = Speaker(model, tokenizer)
        return [piece async for piece in speaker.answer(Question([1], Sampling(), []), gone)]

    assert asyncio.run(ask()) == [] and speech.calls == []


# the command


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory, model: Transformer, tokenizer: Tokenizer) -> Path:
    path = tmp_path_factory.mktemp("models") / "tiny-model"
    save_pretrained(model.state_dict(), model.config, tokenizer, path)
    return path


@pytest.mark.slow
def test_ctrl_c_ends_an_answer_and_the_server_with_exit_code_0(directory: Path) -> None:
    command = [sys.executable, "-m", "minimind.cli", "serve", str(directory), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("tiny-model: chat page http://127.0.0.1:")
        address = line.split()[3].rstrip("/,")
        with httpx.Client(base_url=address, timeout=60, trust_env=False) as client:
            assert client.get("/health").json() == {"status": "ok"}
            body = {**HELLO, "stream": True, "temperature": 2}
            with client.stream("POST", CHAT, json=body) as response:
                lines = response.iter_lines()
                next(lines)
                process.send_signal(signal.SIGINT)
                list(lines)
        out, err = process.communicate(timeout=20)
    finally:
        process.kill()
    assert (process.returncode, out, err) == (0, "", "")


def test_an_address_in_use_is_one_line(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with listen("127.0.0.1", 0) as taken:
        port = str(taken.getsockname()[1])
        assert cli.run(["serve", str(directory), "--port", port]) == 2
    error = capsys.readouterr().err
    assert (
        f"can't listen on 127.0.0.1, port {port}" in error and "--port 0" in error and error.count("\n") == 1
    )


def test_without_the_extra_one_line_says_what_to_install(
    directory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert cli.run(["serve", str(directory)]) == 2
    assert capsys.readouterr().err == "error: uvicorn is missing: pip install 'minimind-deepspeed[serve]'\n"


def test_an_empty_key_is_refused(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["serve", str(directory), "--api-key", ""]) == 2
    assert "--api-key is empty" in capsys.readouterr().err


def test_the_models_name(tmp_path: Path) -> None:
    (tmp_path / "full_sft_512.pth").touch()
    assert model_name(tmp_path / "full_sft_512.pth") == "full_sft_512"
    assert model_name(tmp_path / "runs" / "sft" / "") == "sft"
