"""Marks in the strings of a conversation, by which its rendering shows what came from where.

A mark is a private-use character that neither the conversation nor the template has. It is put into the strings before
they are rendered and taken out of the result, and the result must then be the rendering without marks: so a template
that behaves otherwise because of them is found out. Three kinds: `SPLIT` breaks each spelling of a special token that a
user wrote; one character for each message's text, and one for its reasoning, say where these went.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from minimind.text.messages import parts_of
from minimind.text.turn import NotRendered

_PLANES = {base: re.compile(f"[{chr(base)}-{chr(base + 0xFFFF)}]") for base in (0xF0000, 0x100000)}  # private use
_FIRST, _MOST = 8, 20_000  # places of the plane before the first message's, and messages
_WORD = re.compile(r"\S")
_TAG = re.compile(r"</?[^<>\s]{1,40}>")


@dataclass
class Marks:
    """The marks for one conversation. NotRendered for text that has characters of both private planes."""

    written: str  # all text that is rendered, the template, and what it makes of it
    fragile: re.Pattern[str]  # what must not be taken for the template's own: special tokens, headers
    base: int = field(init=False)

    def __post_init__(self) -> None:
        free = [base for base, plane in _PLANES.items() if not plane.search(self.written)]
        if not free:
            raise NotRendered("it has private-use characters of both planes, which marks would need")
        self.base = free[0]
        self.split, self.start, self.end, self.tool = (chr(self.base + place) for place in range(1, 5))
        self._all = _PLANES[self.base]

    def strip(self, text: str) -> str:
        """The text without any mark."""
        return self._all.sub("", text)

    def find(self, text: str) -> list[str]:
        """All marks in the text, in order."""
        return self._all.findall(text)

    def body(self, number: int) -> str:
        """The mark of what message ``number`` says."""
        return chr(self.base + _FIRST + 2 * number)

    def thought(self, number: int) -> str:
        """The mark of its reasoning."""
        return chr(self.base + _FIRST + 2 * number + 1)

    def messages(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The same messages, with marks. NotRendered for too many."""
        if len(messages) > _MOST:
            raise NotRendered(f"it has more than {_MOST:,} messages")
        return [self._message(message, number) for number, message in enumerate(messages)]

    def tools(self, tools: Sequence[Any] | None) -> list[Any] | None:
        """The same tools, one of them marked."""
        if not tools:
            return None
        first, *rest = (self._broken(tool) for tool in tools)
        return [_named(first, lambda name: _put(name, self.tool)), *rest]

    def _message(self, message: Mapping[str, Any], number: int) -> dict[str, Any]:
        thought, end, said = parts_of(message)
        content = _put(thought, self.thought(number)) + end + _put(said, self.body(number))
        marked: dict[str, Any] = {**message, "content": content}
        if isinstance(apart := message.get("reasoning_content"), str):
            marked["reasoning_content"] = _put(apart, self.thought(number))
        calls = message.get("tool_calls")
        if calls and not marked["content"]:
            marked["tool_calls"] = [_named(calls[0], lambda name: _put(name, self.body(number))), *calls[1:]]
        return {name: value if name == "role" else self._broken(value) for name, value in marked.items()}

    def _broken(self, value: Any) -> Any:
        """The value with `split` in every fragile spelling."""
        if isinstance(value, str):
            return self.fragile.sub(lambda found: found[0][:1] + self.split + found[0][1:], value)
        if isinstance(value, dict):
            return {self._broken(key): self._broken(each) for key, each in value.items()}
        return [self._broken(each) for each in value] if isinstance(value, (list, tuple)) else value


def _put(text: str, mark: str) -> str:
    """The text with the mark within a word near its middle, outside of tags: templates look for these, and cut white
    space. As it is if it is blank."""
    bare = _TAG.sub(lambda tag: " " * len(tag[0]), text) if "<" in text else text
    word = _WORD.search(bare, len(text) // 2) or _WORD.search(bare) or _WORD.search(text)
    if word is None:
        return text
    place = word.start() + 1 if bare[word.start()] != " " else len(text.rstrip())  # else it is all tags
    return text[:place] + mark + text[place:]


def _named(call: Any, change: Callable[[str], str]) -> Any:
    """A tool, or a call of one, with its name changed."""
    if not isinstance(call, dict):
        return call
    if isinstance(call.get("function"), dict):
        return {**call, "function": _named(call["function"], change)}
    return {**call, "name": change(call["name"])} if isinstance(call.get("name"), str) else call
