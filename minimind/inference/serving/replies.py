"""OpenAI's replies: whole, and in the chunks of a stream, with the probabilities of tokens.

Contract. The token that ends an answer is in no text and is not counted. A token is shown as its text, or as
``bytes:\\xe6`` where its bytes are no whole characters, as OpenAI's completions do; ``bytes`` has them always.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, repeat
from typing import Any

from minimind.inference.answers import Chosen, Likely, Piece
from minimind.inference.serving.said import Call, Hearing, Part
from minimind.text.tokenizer import Tokenizer


def usage(prompt: int, completion: int) -> dict[str, int]:
    """Token counts."""
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def shown(data: bytes) -> str:
    """A token's bytes as text."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def spelled(value: Any, depth: int = 5) -> Iterator[str]:
    """JSON in parts, none of them large: the library would hold Python's lock until it has written all of it. Token
    lists are five levels deep."""
    if depth and isinstance(value, dict):
        for before, (name, each) in zip(chain("{", repeat(",")), value.items(), strict=False):
            yield f"{before}{json.dumps(name)}:"
            yield from spelled(each, depth - 1)
        yield "}" if value else "{}"
    elif depth and isinstance(value, list):
        for before, each in zip(chain("[", repeat(",")), value, strict=False):
            yield before
            yield from spelled(each, depth - 1)
        yield "]" if value else "[]"
    else:
        yield json.dumps(value, ensure_ascii=False, separators=(",", ":"))


@dataclass(frozen=True)
class Reply:
    """The objects of one request's answers, which share id and time."""

    model: str
    chat: bool
    tokenizer: Tokenizer
    about: dict[str, Any] = field(default_factory=dict)  # fields of ours beside OpenAI's
    calls: bool = False  # a chat's: tools were offered
    thinking: bool = False  # a chat's: the prompt ends within reasoning
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    created: int = field(default_factory=lambda: int(time.time()))

    def _object(self, kind: str, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        prefix = "chatcmpl" if self.chat else "cmpl"
        about = {"id": f"{prefix}-{self.id}", "object": kind, "created": self.created, "model": self.model}
        return {**about, "choices": choices, **more, **self.about}

    def whole(self, answers: Sequence[Piece], counts: dict[str, int]) -> dict[str, Any]:
        """The reply to a request without ``stream``: all pieces of each answer as one."""
        kind = "chat.completion" if self.chat else "text_completion"
        return self._object(kind, [self._whole(i, answer) for i, answer in enumerate(answers)], usage=counts)

    def _whole(self, index: int, answer: Piece) -> dict[str, Any]:
        logprobs = self.logprobs(answer.chosen, 0)
        if not self.chat:
            return {"index": index, "logprobs": logprobs, "finish_reason": answer.finish, "text": answer.text}
        part = self.hearing().push(answer.text, last=True)
        content = part.content or (None if part.calls else "")  # as OpenAI: null beside calls
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if part.reasoning:
            message["reasoning_content"] = part.reasoning
        if part.calls:
            message["tool_calls"] = [_call(call) for call in part.calls]
        finish = _finish(answer, bool(part.calls))
        return {"index": index, "logprobs": logprobs, "finish_reason": finish, "message": message}

    def hearing(self) -> Hearing:
        """What takes an answer of this chat apart."""
        return Hearing(calls=self.calls, thinking=self.thinking)

    def begin(self, index: int, **more: Any) -> dict[str, Any]:
        """The first chunk of a chat's answer."""
        delta = {"role": "assistant", "content": ""}
        return self.part({"index": index, "delta": delta, "logprobs": None, "finish_reason": None}, **more)

    def counts(self, counts: dict[str, int]) -> dict[str, Any]:
        """The last chunk, for ``stream_options.include_usage``: no choice, only token counts."""
        return self.part(usage=counts)

    def part(self, *choices: dict[str, Any], **more: Any) -> dict[str, Any]:
        """A chunk of a stream."""
        return self._object("chat.completion.chunk" if self.chat else "text_completion", list(choices), **more)

    def logprobs(self, chosen: Sequence[Chosen], offset: int) -> dict[str, Any] | None:
        """In the form of the endpoint; ``offset``: of the first token in the text."""
        if not chosen:
            return None
        return {"content": [self._entry(c) for c in chosen]} if self.chat else self._lists(chosen, offset)

    def length(self, piece: Piece) -> int:
        """How far the offsets of its tokens go."""
        return sum(map(self._length, piece.chosen))

    def _length(self, chosen: Chosen) -> int:
        """Characters that begin with the token: control ids are in no text."""
        text = self.tokenizer.decode([chosen.token.token])
        return sum(byte & 0xC0 != 0x80 for byte in self._bytes(chosen.token.token)) if text else 0

    def _bytes(self, token: int) -> bytes:
        return self.tokenizer.token_bytes(token)

    def _about(self, likely: Likely) -> dict[str, Any]:
        data = self._bytes(likely.token)
        return {"token": shown(data), "logprob": likely.logprob, "bytes": list(data)}

    def _entry(self, chosen: Chosen) -> dict[str, Any]:
        return {**self._about(chosen.token), "top_logprobs": [self._about(likely) for likely in chosen.top]}

    def _lists(self, chosen: Sequence[Chosen], offset: int) -> dict[str, Any]:
        """As OpenAI's completions have them: one list a field."""
        tokens = [self._bytes(c.token.token) for c in chosen]
        starts = accumulate((self._length(c) for c in chosen), initial=offset)
        return {
            "tokens": [shown(data) for data in tokens],
            "token_logprobs": [c.token.logprob for c in chosen],
            "top_logprobs": [self._top(c) for c in chosen],
            "text_offset": list(starts)[:-1],
        }

    def _top(self, chosen: Chosen) -> dict[str, float | None] | None:
        """By text; the likelier of two with the same text. The chosen one is always there, as OpenAI has it."""
        if chosen.token.logprob is None:
            return None
        likely = (chosen.token, *reversed(chosen.top))
        return {shown(self._bytes(item.token)): item.logprob for item in likely}


class Told:
    """One answer in the chunks of a stream."""

    def __init__(self, reply: Reply, index: int) -> None:
        self._reply, self._index, self._offset = reply, index, 0
        self._hearing = reply.hearing() if reply.chat else None
        self._calls = 0  # told of so far

    def chunk(self, piece: Piece, **more: Any) -> dict[str, Any] | None:
        """The next part; None where it says nothing yet."""
        logprobs = self._reply.logprobs(piece.chosen, self._offset)
        self._offset += self._reply.length(piece)
        said: dict[str, Any] = {"text": piece.text}
        if self._hearing is not None:
            said = {"delta": self._delta(self._hearing.push(piece.text, last=piece.finish is not None))}
        if not (piece.chosen or piece.finish or any(said.values())):
            return None
        finish = _finish(piece, self._calls > 0)
        return self._reply.part({"index": self._index, "logprobs": logprobs, "finish_reason": finish, **said}, **more)

    def _delta(self, part: Part) -> dict[str, Any]:
        delta: dict[str, Any] = {"content": part.content} if part.content else {}
        if part.reasoning:
            delta["reasoning_content"] = part.reasoning
        if part.calls:
            delta["tool_calls"] = [_call(call, index=self._calls + i) for i, call in enumerate(part.calls)]
            self._calls += len(part.calls)
        return delta


def _finish(piece: Piece, called: bool) -> str | None:
    return "tool_calls" if called and piece.finish == "stop" else piece.finish


def _call(call: Call, **more: Any) -> dict[str, Any]:
    """As OpenAI has it; ``index`` in the chunks of a stream."""
    return {**more, "id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
