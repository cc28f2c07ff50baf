"""The official OpenAI client, and requests as lm-evaluation-harness (``local-completions``) sends them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from minimind.model.transformer import Transformer
from minimind.text.chat import Turn, prompt_ids
from minimind.text.tokenizer import Tokenizer

pytest.importorskip("starlette")
openai = pytest.importorskip("openai")

from minimind.inference.serving.replies import shown  # noqa: E402
from tests.inference.running import COMPLETIONS, Running  # noqa: E402
from tests.waiting import PATIENCE  # noqa: E402

TALK: Any = [
    {"role": "developer", "content": "be brief", "name": "me"},
    {"role": "user", "content": [{"type": "text", "text": "hello 你好"}]},
]
NEUTRAL: Any = {
    "parallel_tool_calls": True,
    "metadata": {"a": "b"},
    "store": True,
    "service_tier": "auto",
    "tool_choice": "none",
    "tools": [],
    "user": "me",
    "frequency_penalty": 0,
    "logit_bias": {},
}


@pytest.fixture(scope="module")
def client(api: Running) -> Iterator[openai.OpenAI]:
    import httpx

    with httpx.Client(timeout=PATIENCE, trust_env=False) as http:
        yield openai.OpenAI(base_url=f"http://127.0.0.1:{api.port}/v1", api_key="none", http_client=http, max_retries=0)


def test_models(client: openai.OpenAI) -> None:
    (listed,) = client.models.list()
    assert listed == client.models.retrieve("tiny")
    assert (listed.id, listed.object, listed.owned_by) == ("tiny", "model", "minimind") and listed.created > 0
    with pytest.raises(openai.NotFoundError, match="there is no model 'gpt'"):
        client.models.retrieve("gpt")


def test_several_choices_with_probabilities(client: openai.OpenAI, model: Transformer, tokenizer: Tokenizer) -> None:
    more = {"repetition_penalty": 1, "min_p": 0}
    reply = client.chat.completions.create(
        model="tiny",
        messages=TALK,
        n=3,
        seed=5,
        max_tokens=9,
        logprobs=True,
        top_logprobs=2,
        extra_body=more,
        **NEUTRAL,
    )
    prompt = prompt_ids([Turn("system", "be brief"), Turn("user", "hello 你好")], tokenizer)
    assert [choice.index for choice in reply.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in reply.choices}) > 1
    one = client.chat.completions.create(model="tiny", messages=TALK, seed=7, max_tokens=9)
    assert one.choices[0].message.content == reply.choices[2].message.content  # the third has the seed after next
    assert one.usage is not None and one.usage.prompt_tokens == len(prompt)
    for choice in reply.choices:
        assert choice.logprobs is not None and choice.logprobs.content is not None
        assert b"".join(bytes(c.bytes or []) for c in choice.logprobs.content).decode("utf-8", "replace") == (
            choice.message.content
        )
    first = reply.choices[0].logprobs.content[0]  # type: ignore[union-attr, index]
    with torch.inference_mode():
        expected = model(torch.tensor([prompt]))[0, -1, : tokenizer.vocab_size].log_softmax(-1)
    assert [top.logprob for top in first.top_logprobs] == pytest.approx(expected.topk(2).values.tolist(), abs=1e-4)


def test_streams(client: openai.OpenAI) -> None:
    how: Any = {"model": "tiny", "messages": TALK, "seed": 3, "max_tokens": 20, "n": 2}
    whole = client.chat.completions.create(**how)
    texts, counts = ["", ""], None
    for chunk in client.chat.completions.create(stream=True, stream_options={"include_usage": True}, **how):
        counts = chunk.usage or counts
        assert chunk.object == "chat.completion.chunk"
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == [choice.message.content for choice in whole.choices]
    assert counts == whole.usage


def test_what_would_change_the_answer_is_refused_by_name(client: openai.OpenAI) -> None:
    form: Any = {"type": "json_object"}
    with pytest.raises(openai.BadRequestError, match="response_format is not supported by this server"):
        client.chat.completions.create(model="tiny", messages=TALK, response_format=form)


def scored(model: Transformer, tokenizer: Tokenizer, ids: list[int]) -> list[float]:
    """The log probability of each token but the first."""
    with torch.inference_mode():
        logprobs = model(torch.tensor([ids]))[0, :-1, : tokenizer.vocab_size].log_softmax(-1)
    return logprobs[torch.arange(len(ids) - 1), ids[1:]].tolist()


@pytest.mark.parametrize("max_tokens", [0, 1])
def test_what_lm_eval_asks_of_likelihoods(
    api: Running, model: Transformer, tokenizer: Tokenizer, max_tokens: int
) -> None:
    """Its parse_logprobs (lm_eval/models/openai_completions.py) takes these fields of these requests."""
    texts = ["The river 7 runs past the hill.", "河水流过"]
    prompts = [[tokenizer.bos_id, *tokenizer.encode(text)] for text in texts]
    body = {"prompt": prompts, "max_tokens": max_tokens, "logprobs": 1, "echo": True, "temperature": 0, "seed": 1234}
    reply = api.post(COMPLETIONS, model="tiny", **body).json()
    for choice, ids in zip(sorted(reply["choices"], key=lambda c: c["index"]), prompts, strict=True):
        logprobs = choice["logprobs"]
        made = len(logprobs["tokens"]) - len(ids)
        assert 0 <= made <= max_tokens
        told = logprobs["token_logprobs"][: len(ids)]
        assert told[0] is None and told[1:] == pytest.approx(scored(model, tokenizer, ids), abs=1e-4)
        tops = logprobs["top_logprobs"][1 : len(ids)]
        assert all(value <= max(top.values()) for value, top in zip(told[1:], tops, strict=True))
        assert choice["text"].startswith(tokenizer.decode(ids))
        assert all(math.isfinite(value) for value in logprobs["token_logprobs"][1:])
        assert logprobs["tokens"][1 : len(ids)][-1] in choice["text"]
    assert reply["usage"]["prompt_tokens"] == sum(map(len, prompts))


def test_token_ids_are_taken_as_they_are_and_a_text_after_bos(api: Running, tokenizer: Tokenizer) -> None:
    how = {"max_tokens": 12, "temperature": 0}
    ids = [tokenizer.bos_id, *tokenizer.encode("The river")]
    replies = [
        api.post(COMPLETIONS, prompt=prompt, **how).json() for prompt in ("The river", ids, [ids], ["The river"])
    ]
    assert len({reply["choices"][0]["text"] for reply in replies}) == 1
    assert {reply["usage"]["prompt_tokens"] for reply in replies} == {len(ids)}
    both = api.post(COMPLETIONS, prompt=["The river", "The hill"], n=2, seed=4, max_tokens=12).json()
    alone = api.post(COMPLETIONS, prompt="The hill", seed=5, max_tokens=12).json()
    assert [choice["index"] for choice in both["choices"]] == [0, 1, 2, 3]
    assert both["choices"][3]["text"] == alone["choices"][0]["text"]  # of the second prompt the second


def test_an_echo_is_streamed_first(api: Running, tokenizer: Tokenizer) -> None:
    how = {"prompt": "The river", "echo": True, "logprobs": 0, "max_tokens": 8, "seed": 1}
    whole = api.post(COMPLETIONS, **how).json()["choices"][0]
    events = api.events(COMPLETIONS, **how)
    parts = [event["choices"][0] for event in events[:-1]]
    assert "".join(part["text"] for part in parts) == whole["text"]
    for name in ("tokens", "token_logprobs", "text_offset"):
        told = [value for part in parts if part["logprobs"] for value in part["logprobs"][name]]
        assert told == whole["logprobs"][name]


def test_bytes_that_are_no_character_are_shown_as_openai_shows_them() -> None:
    assert shown("河".encode()) == "河" and shown("河".encode()[:2]) == "bytes:\\xe6\\xb2"


def test_probabilities_of_a_stream_are_those_of_the_whole(client: openai.OpenAI) -> None:
    how: Any = {"model": "tiny", "prompt": "hello 你好", "max_tokens": 12, "logprobs": 1, "seed": 3}
    (whole,) = client.completions.create(**how).choices
    chunks = list(client.completions.create(stream=True, **how))
    assert {chunk.object for chunk in chunks} == {"text_completion"}
    pieces = [choice for chunk in chunks for choice in chunk.choices]
    for name in ("tokens", "token_logprobs", "text_offset", "top_logprobs"):
        parts = [getattr(piece.logprobs, name) for piece in pieces if piece.logprobs is not None]
        assert [value for part in parts for value in part] == getattr(whole.logprobs, name), name


def test_a_token_that_there_is_none_of_is_the_requests_fault(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="there is no token 99999, the vocabulary has"):
        client.completions.create(model="tiny", prompt=[1, 99999], max_tokens=1)
