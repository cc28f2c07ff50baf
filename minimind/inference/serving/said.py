"""What a chat's answer says, apart: its reasoning, its text, and the calls of tools that it asks for.

Contract. Reasoning is what stands between ``<think>`` at the answer's beginning (or in the prompt, where the template
opens it) and ``</think>``. A call is MiniMind's, which is Qwen's: ``<tool_call>``, a JSON object with ``name`` and
``arguments``, ``</tool_call>``; looked for only in answers that were offered tools. What looks like a call and is none
stays text, to the character. However the text is divided, the parts joined are the same; no part of a tag is ever in
one. Line breaks beside a tag belong to the tag, as templates write them.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

from minimind.base.strict.json_text import parse_json
from minimind.data.records.calls import CALL_END, CALL_START
from minimind.inference.answers import overlap
from minimind.text.messages import THOUGHT_END, THOUGHT_START


@dataclass(frozen=True)
class Call:
    """A function that the model wants called; ``arguments``: an object's JSON text."""

    name: str
    arguments: str
    id: str = field(default_factory=lambda: f"call_{uuid.uuid4().hex[:24]}", compare=False)


@dataclass(frozen=True)
class Part:
    """What came of an answer, each of it new."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[Call, ...] = ()

    def __add__(self, later: Part) -> Part:
        return Part(self.content + later.content, self.reasoning + later.reasoning, self.calls + later.calls)

    def __bool__(self) -> bool:
        return bool(self.content or self.reasoning or self.calls)


State = Callable[[bool], Part]


class Hearing:
    """Takes one answer apart as it comes. ``calls``: tools were offered. ``thinking``: it begins within reasoning."""

    def __init__(self, *, calls: bool, thinking: bool) -> None:
        self._calls, self._held, self._breaks = calls, "", ""
        self._state: State = self._thought if thinking else self._begin
        self._skips = thinking  # line breaks that follow a tag

    def push(self, text: str, last: bool) -> Part:
        """What can be told now; ``last``: nothing more will come."""
        self._held += text
        part = Part()
        while True:
            state = self._state
            part += state(last)
            if self._state == state:
                return part

    def _enter(self, state: State, rest: str, skips: bool = True) -> None:
        self._state, self._held, self._skips = state, rest, skips

    def _begin(self, last: bool) -> Part:
        start = self._held.lstrip()
        if start.startswith(THOUGHT_START):
            self._enter(self._thought, start[len(THOUGHT_START) :])
        elif last or not THOUGHT_START.startswith(start):
            self._state = self._said
        return Part()

    def _thought(self, last: bool) -> Part:
        return Part(reasoning=self._until(THOUGHT_END, self._said, last))

    def _said(self, last: bool) -> Part:
        return Part(self._until(CALL_START if self._calls else "", self._called, last))

    def _called(self, last: bool) -> Part:
        written, end, rest = self._held.partition(CALL_END)
        if not end and not last:
            return Part()
        call = parsed_call(written) if end else None
        self._enter(self._said, rest, skips=call is not None)
        return Part(f"{self._breaks}{CALL_START}{written}{end}") if call is None else Part(calls=(call,))

    def _until(self, tag: str, then: State, last: bool) -> str:
        """The text before ``tag``, as far as it is known; at the tag the state is ``then``."""
        if self._skips:
            self._held = self._held.lstrip("\n")
            self._skips = not self._held
        before, found, after = self._held.partition(tag) if tag else (self._held, "", "")
        if found:
            text = before.rstrip("\n")
            self._breaks = before[len(text) :]
            self._enter(then, after)
            return text
        text = self._held if last or not tag else self._held[: len(self._held) - overlap(self._held, tag)]
        if tag and not last:  # line breaks may turn out to stand before the tag
            text = text.rstrip("\n")
        self._held = self._held[len(text) :]
        return text


def parsed_call(text: str) -> Call | None:
    """The call that a JSON object names; None for what is no call. Arguments may be an object, or the text of one."""
    try:
        found = parse_json(text.encode())
        arguments = found.get("arguments", {}) if isinstance(found, dict) else None
        given = parse_json(arguments) if isinstance(arguments, str) else arguments
        if not isinstance(given, dict) or not isinstance(found.get("name"), str):
            return None
        return Call(found["name"], json.dumps(given, ensure_ascii=False, allow_nan=False))
    except ValueError:
        return None
