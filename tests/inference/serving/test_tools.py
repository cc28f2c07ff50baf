"""Tools and reasoning through the official OpenAI client, by our chat template and by those of others."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from minimind.model.transformer import ModelConfig, Transformer
from minimind.text.tokenizer import Tokenizer
from tests.text.templates import TEMPLATES, write_tokenizer

pytest.importorskip("starlette")
openai = pytest.importorskip("openai")

from tests.inference.running import CHAT, Running, Speech  # noqa: E402
from tests.waiting import PATIENCE  # noqa: E402

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOLS: Any = [{"type": "function", "function": {"name": "weather", "description": "of a city", "parameters": SCHEMA}}]
ARGUMENTS = {"city": "世界"}
CALL = f'<tool_call>\n{{"name": "weather", "arguments": {json.dumps(ARGUMENTS, ensure_ascii=False)}}}\n</tool_call>'
THOUGHT = "<think>\nso it is\n</think>\n\n"
ASKED: Any = [{"role": "system", "content": "hello"}, {"role": "user", "content": "the fox"}]


class Served:
    """A server for a template, its client and what the model is made to say."""

    def __init__(self, template: str | None, directory: Path, ours: Tokenizer) -> None:
        self.tokenizer, self.directory = ours, directory
        if template is not None:
            self.tokenizer = Tokenizer.load(write_tokenizer(directory, TEMPLATES[template]))
        config = ModelConfig.preset(
            "tiny", vocab_size=self.tokenizer.vocab_size, hidden_size=16, num_hidden_layers=1, head_dim=8
        )
        self.running = Running(Transformer(config, seed=1).eval(), self.tokenizer)

    def ask(self, **how: Any) -> Any:
        """The reply of the official client."""
        import httpx

        with httpx.Client(timeout=PATIENCE, trust_env=False) as http:
            address = f"http://127.0.0.1:{self.running.port}/v1"
            client = openai.OpenAI(base_url=address, api_key="none", http_client=http, max_retries=0)
            reply = client.chat.completions.create(model="tiny", **{"messages": ASKED, **how})
            return list(reply) if how.get("stream") else reply


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> Iterator[Callable[[str | None], Served]]:
    made: dict[str | None, Served] = {}

    def get(template: str | None) -> Served:
        if template not in made:
            made[template] = Served(template, tmp_path_factory.mktemp("served"), tokenizer)
        return made[template]

    yield get
    for served in made.values():
        served.running.close()


def joined(chunks: list[Any]) -> tuple[dict[str, Any], str]:
    """The message that the deltas of a stream make, as clients put it together, and why it ended."""
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": []}
    finish = ""
    for choice in (choice for chunk in chunks for choice in chunk.choices):
        delta = choice.delta
        message["content"] += delta.content or ""
        message["reasoning_content"] += getattr(delta, "reasoning_content", None) or ""
        for call in delta.tool_calls or []:
            assert call.index == len(message["tool_calls"]) and call.id and call.type == "function"
            message["tool_calls"].append((call.function.name, call.function.arguments))
        finish = choice.finish_reason or finish
    return message, finish


@pytest.mark.parametrize("template", [None, "thinking", "rewriting", "default"])
def test_a_call_is_told_whole_and_streamed(
    serving: Callable[[str | None], Served], template: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = serving(template)
    Speech.put(monkeypatch, served.tokenizer, f"{THOUGHT}hello\n{CALL}\n{CALL}")
    (choice,) = served.ask(tools=TOOLS, tool_choice="auto").choices
    assert choice.finish_reason == "tool_calls" and choice.message.content == "hello"
    assert choice.message.reasoning_content == "so it is"
    assert [json.loads(call.function.arguments) for call in choice.message.tool_calls] == [ARGUMENTS, ARGUMENTS]
    assert len({call.id for call in choice.message.tool_calls}) == 2
    message, finish = joined(served.ask(tools=TOOLS, stream=True))
    calls = [(call.function.name, call.function.arguments) for call in choice.message.tool_calls]
    assert (message["content"], message["reasoning_content"], message["tool_calls"]) == ("hello", "so it is", calls)
    assert finish == "tool_calls"


@pytest.mark.parametrize("template", ["thinking", "rewriting", "default", "marked"])
def test_the_prompt_is_what_transformers_writes(
    serving: Callable[[str | None], Served], template: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    transformers = pytest.importorskip("transformers")
    served = serving(template)
    speech = Speech.put(monkeypatch, served.tokenizer, CALL)
    call = served.ask(tools=TOOLS).choices[0].message.tool_calls[0]
    thought = {} if template == "default" else {"reasoning_content": "so"}
    answer = {"role": "assistant", "content": None, "tool_calls": [call.model_dump()], **thought}
    more = [answer, {"role": "tool", "tool_call_id": call.id, "content": "it is 20"}]
    served.ask(tools=TOOLS, messages=[*ASKED, *more])
    as_objects = {"type": "function", "function": {"name": "weather", "arguments": ARGUMENTS}}
    answer = {**answer, "content": "", "tool_calls": [as_objects]}
    theirs = transformers.AutoTokenizer.from_pretrained(served.directory)
    for messages, question in zip((ASKED, [*ASKED, answer, more[1]]), speech.asked, strict=True):
        expected = theirs.apply_chat_template(
            messages, tools=TOOLS, add_generation_prompt=True, tokenize=True, return_dict=False
        )
        assert list(question.prompt) == expected


def test_our_template_has_tools_in_the_system_message(
    serving: Callable[[str | None], Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    served = serving(None)
    speech = Speech.put(monkeypatch, served.tokenizer, CALL)
    for messages in (ASKED, ASKED[1:]):
        served.ask(tools=TOOLS, messages=messages)
    told = [served.tokenizer.decode(question.prompt, with_special=True) for question in speech.asked]
    block = "# Tools\n" + json.dumps(TOOLS, ensure_ascii=False)
    assert f"<|im_start|>system\nhello\n\n{block}<|im_end|>\n<|im_start|>user" in told[0]
    assert f"<|im_start|>system\n{block}<|im_end|>\n<|im_start|>user" in told[1]


def test_without_tools_a_call_is_text(serving: Callable[[str | None], Served], monkeypatch: pytest.MonkeyPatch) -> None:
    served = serving(None)
    speech = Speech.put(monkeypatch, served.tokenizer, CALL)
    plain, none = served.ask(), served.ask(tools=TOOLS, tool_choice="none")
    assert speech.asked[0].prompt == speech.asked[1].prompt
    for reply in (plain, none):
        assert (reply.choices[0].finish_reason, reply.choices[0].message.content) == ("stop", CALL)
        assert reply.choices[0].message.tool_calls is None


def test_a_template_that_opens_the_reasoning_when_it_is_told_to(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    shut = "<think>\\n\\n</think>\\n\\n"
    switch = "' ~ ('<think>\\n' if open_thinking is defined and open_thinking else '" + shut + "') ~ '"
    monkeypatch.setitem(TEMPLATES, "open", TEMPLATES["thinking"].replace(shut, switch))
    served = Served("open", tmp_path, tokenizer)
    speech = Speech.put(monkeypatch, served.tokenizer, "so it is\n</think>\n\nhello")
    opened = served.ask(extra_body={"chat_template_kwargs": {"open_thinking": True}}).choices[0].message
    assert (opened.reasoning_content, opened.content) == ("so it is", "hello")
    closed = served.ask().choices[0].message
    assert closed.content == "so it is\n</think>\n\nhello"
    assert [served.tokenizer.decode(each.prompt)[-10:] for each in speech.asked] == ["t\n<think>\n", "</think>\n\n"]
    for name in ("enable_thinking", "messages", "open", "bos_token"):
        with pytest.raises(openai.BadRequestError, match=f"reads no '{name}'"):
            served.ask(extra_body={"chat_template_kwargs": {name: True}})
    served.running.close()


@pytest.mark.parametrize(
    ("template", "how", "words"),
    [
        (None, {"tool_choice": "required"}, "tool_choice: "),
        (None, {"tool_choice": {"type": "function", "function": {"name": "weather"}}}, "tool_choice: "),
        (None, {"tools": [{"type": "custom", "custom": {"name": "a"}}]}, r"tools\[0\].type: "),
        (None, {"tools": [{"type": "function", "function": {"name": ""}}]}, r"tools\[0\].function.name: "),
        (None, {"tools": [{"type": "function", "function": {"name": "a", "strict": True}}]}, "function.strict: "),
        (None, {"parallel_tool_calls": False}, "parallel_tool_calls: false"),
        (
            None,
            {"messages": [{"role": "user", "content": "a", "tool_calls": [{"function": {"name": "a"}}]}]},
            "only the",
        ),
        ("bracketed", {"messages": ASKED[1:]}, "the chat template"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(
    serving: Callable[[str | None], Served], template: str | None, how: Any, words: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=words):
        serving(template).ask(**{"tools": TOOLS, **how})


@pytest.mark.parametrize("arguments", ["{", "[1]", "3", '{"a": "\\ud800"}'])
def test_arguments_that_are_no_object_are_refused(serving: Callable[[str | None], Served], arguments: str) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    messages = [*ASKED, {"role": "assistant", "content": None, "tool_calls": [call]}]
    reply = serving(None).running.post(CHAT, messages=messages, tools=TOOLS)
    assert reply.status_code == 400 and "messages" in reply.json()["error"]["message"]
