"""What requests may hold, what is said of wrong ones, and what is taken for what they leave out."""

from __future__ import annotations

import json
from typing import Any

import pytest

from minimind.text.tokenizer import Tokenizer

pytest.importorskip("starlette")

from minimind.inference.serving.app import CHAT_TOKENS
from tests.inference.running import CHAT, COMPLETIONS, HELLO, POSITIONS, Running, Speech


def body_with(**more: Any) -> dict[str, Any]:
    return {**HELLO, **more}


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        (CHAT, {}, 400, "messages: Field required"),
        (CHAT, [], 400, "must be a JSON object"),
        (CHAT, {"messages": []}, 400, "at least 1"),
        (CHAT, {"messages": [{"role": "function", "content": "x"}]}, 400, "messages[0].role: "),
        (
            CHAT,
            {"messages": [{"role": "assistant", "content": "", "tool_calls": [{}]}]},
            400,
            "tool_calls[0].function: ",
        ),
        (CHAT, {"messages": [{"role": "user"}]}, 400, "messages[0].content: Field required"),
        (CHAT, {"messages": [{"role": "user", "content": 3}]}, 400, "messages[0].content: "),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "text only"),
        (CHAT, {"messages": [{"role": "user", "content": "a\ud800"}]}, 400, "lone surrogate"),
        (CHAT, body_with(n=0), 400, "n: Input should be"),
        (CHAT, body_with(model="gpt-4"), 404, "there is no model 'gpt-4' here, only 'tiny'"),
        (CHAT, body_with(temperature=3), 400, "temperature: "),
        (CHAT, body_with(temperature="1"), 400, "temperature: "),
        (CHAT, body_with(temperature=1e-9), 400, "temperature must be 0, or 0.001 or more"),
        (CHAT, body_with(top_p=0), 400, "top_p: "),
        (CHAT, body_with(top_k=-2), 400, "top_k: "),
        (CHAT, body_with(repetition_penalty=0), 400, "repetition_penalty: "),
        (CHAT, body_with(min_p=0.1), 400, "min_p is not supported"),
        (CHAT, body_with(reasoning_effort="high"), 400, "reasoning_effort is not supported"),
        (CHAT, body_with(top_logprobs=2), 400, "logprobs: true only"),
        (CHAT, body_with(logprobs=True, top_logprobs=21), 400, "top_logprobs: "),
        (CHAT, body_with(max_tokens=0), 400, "max_tokens: "),
        (CHAT, body_with(max_tokens=3, max_completion_tokens=4), 400, "max_tokens and max_completion_tokens differ"),
        (CHAT, body_with(seed=2**64), 400, "seed: "),
        (CHAT, body_with(stop=""), 400, "stop[0]: "),
        (CHAT, body_with(stop=["a"] * 5), 400, "stop: "),
        (CHAT, body_with(stream="yes"), 400, "stream: "),
        (CHAT, body_with(stream_options={"include_usage": True}), 400, "stream: true only"),
        (CHAT, body_with(tools=[{"type": "function"}]), 400, "tools[0].function: Field required"),
        (COMPLETIONS, {"prompt": "a", "tools": [{}]}, 400, "tools is not supported by this server: only chats"),
        (CHAT, body_with(frequency_penalty=0.5), 400, "frequency_penalty is not supported"),
        (CHAT, body_with(temprature=1), 400, "temprature: no such parameter"),
        (CHAT, {**HELLO, "\ud800": 1}, 400, "a valid string"),
        (CHAT, body_with(model="\ud800"), 404, "there is no model"),
        (COMPLETIONS, {"prompt": [[]]}, 400, "prompt: must be a string, token ids, or a list"),
        (COMPLETIONS, {"prompt": [1, "a"]}, 400, "prompt: must be a string, token ids, or a list"),
        (COMPLETIONS, {"prompt": ["a"] * 129}, 400, "prompt: has 129 prompts"),
        (COMPLETIONS, {"prompt": ["a"] * 2, "n": 100}, 400, "2 prompts times n: 100"),
        (COMPLETIONS, {"prompt": [1, 330]}, 400, "prompt: there is no token 330, the vocabulary has 330"),
        (COMPLETIONS, {"prompt": [1, -1]}, 400, "prompt: there is no token -1"),
        (COMPLETIONS, {"prompt": ["a\ud800"]}, 400, "lone surrogate"),
        (COMPLETIONS, {"prompt": "a", "logprobs": True}, 400, "logprobs"),
        ("/v1/embeddings", {}, 404, "no such address"),
        ("/v1/models", {}, 405, "another method"),
    ],
)
def test_wrong_requests_get_openais_error_object(api: Running, path: str, body: Any, status: int, words: str) -> None:
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
    speech = Speech.put(monkeypatch, tokenizer, "河")
    api.post(CHAT, **HELLO)
    api.post(CHAT, **HELLO, max_completion_tokens=7)
    usual, short = (question.sampling for question in speech.asked)
    assert (usual.temperature, usual.top_p, usual.top_k) == (0.7, 0.9, 0)
    assert usual.max_new_tokens == CHAT_TOKENS
    assert short.max_new_tokens == 7
