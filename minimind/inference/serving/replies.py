"""OpenAI's replies: whole, and in the chunks of a stream, with the probabilities of tokens.

Contract. The token that ends an answer is in no text and is not counted. A token is shown as its text, or as
``bytes:\\xe6`` where its bytes are no whole characters, as OpenAI's completions do; ``bytes`` has them always.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from minimind.inference.answers import Chosen, Likely, Piece
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


@dataclass(frozen=True)
class Reply:
    """The objects of one request's answers, which share id and time."""

    model: str
    chat: bool
    tokenizer: Tokenizer
    about: dict[str, Any] = field(default_factory=dict)  # fields of ours beside OpenAI's
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
        about = {"index": index, "logprobs": self._logprobs(answer.chosen, 0), "finish_reason": answer.finish}
        if not self.chat:
            return {**about, "text": answer.text}
        return {**about, "message": {"role": "assistant", "content": answer.text, "refusal": None}}

    def begin(self, index: int, **more: Any) -> dict[str, Any]:
        """The first chunk of a chat's answer."""
        delta = {"role": "assistant", "content": ""}
        return self._chunk({"index": index, "delta": delta, "logprobs": None, "finish_reason": None}, **more)

    def chunk(self, index: int, piece: Piece, offset: int, **more: Any) -> dict[str, Any]:
        """A part of a streamed answer; ``offset``: of its first token in the text."""
        logprobs = self._logprobs(piece.chosen, offset)
        about = {"index": index, "logprobs": logprobs, "finish_reason": piece.finish}
        if not self.chat:
            return self._chunk({**about, "text": piece.text}, **more)
        return self._chunk({**about, "delta": {"content": piece.text} if piece.text else {}}, **more)

    def counts(self, counts: dict[str, int]) -> dict[str, Any]:
        """The last chunk, for ``stream_options.include_usage``: no choice, only token counts."""
        return self._chunk(usage=counts)

    def _chunk(self, *choices: dict[str, Any], **more: Any) -> dict[str, Any]:
        return self._object("chat.completion.chunk" if self.chat else "text_completion", list(choices), **more)

    def _logprobs(self, chosen: Sequence[Chosen], offset: int) -> dict[str, Any] | None:
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
