"""Turns as the messages and tools that chat templates take."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from minimind.base.strict.json_text import parse_json
from minimind.text.turn import NotRendered, Turn

Message = dict[str, Any]
Tools = list[Any] | None
THOUGHT_START, THOUGHT_END = "<think>", "</think>"


def messages_of(turns: Sequence[Turn]) -> tuple[list[Message], Tools]:
    """Messages and tools as transformers takes them. NotRendered for tools that are no list of objects."""
    messages: list[Message] = []
    tools: list[Any] = []
    for turn in turns:
        if turn.message != {}:
            messages.append({"role": turn.role, **(turn.message or {"content": turn.content})})
        if turn.tools is not None:
            tools += _tool_list(turn.tools)
    return messages, tools or None


def with_aliases(message: Message) -> Message:
    """Reasoning under the names that templates ask for, as transformers 5.24 gives it."""
    thought = message.get("reasoning_content")
    return message if thought is None else {"thinking": thought, **message}


def parts_of(message: Mapping[str, Any]) -> tuple[str, str, str]:
    """The content cut into reasoning that stands in it, the mark after that, and what is said."""
    return str(message.get("content") or "").rpartition(THOUGHT_END)


def says(message: Message) -> bool:
    """Whether there is anything to be found again, in its text or in the name of a call."""
    return bool(parts_of(message)[2].strip() or (message.get("tool_calls") and not message.get("content")))


def thinks(message: Message) -> bool:
    """Whether it is an answer with reasoning."""
    thought = str(message.get("reasoning_content") or "") + parts_of(message)[0]
    return message["role"] == "assistant" and bool(thought.replace(THOUGHT_START, "").strip())


def strings(value: Any) -> Iterator[str]:
    """All strings of messages or tools."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from itertools.chain(strings(key), strings(each))
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from strings(each)


def _tool_list(tools: object) -> list[Any]:
    try:
        found = parse_json(tools.encode()) if isinstance(tools, str) else tools
    except ValueError:
        found = None
    found = [found] if isinstance(found, dict) else found
    if not isinstance(found, list) or not all(isinstance(tool, dict) for tool in found):
        raise NotRendered("the tools are no list of objects, which the chat template needs")
    return found
