"""OpenAI's requests and replies, as far as a small text model can honour them.

Contract. A parameter that would change the answer and is not honoured is refused, unless it has the value that changes
nothing (``frequency_penalty: 0``); null means not given. Defaults are those of `minimind chat` and `minimind generate`,
and a seed that is not given is random. Every error has OpenAI's form: ``{"error": {message, type, param, code}}``.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from minimind.base.defaults import CHAT_TEMPERATURE, CHAT_TOP_P, TEXT_TEMPERATURE, TEXT_TOP_P
from minimind.inference.answers import Finish
from minimind.inference.sampling import Sampling

MAX_STOPS = 4  # OpenAI's limit
MAX_MESSAGES = 2048  # each has tokens of its own: few models here have room for as many
MAX_FIELDS = 64  # of an object
LEAST_TEMPERATURE = 1e-3  # below it logits / temperature could overflow
NEUTRAL: dict[str, Sequence[Any]] = {
    "best_of": [1],
    "echo": [False],
    "frequency_penalty": [0],
    "logit_bias": [{}],
    "logprobs": [False],
    "presence_penalty": [0],
    "response_format": [{"type": "text"}],
    "tools": [[]],
}
"""Parameters of OpenAI that are not honoured, and the values of them that change nothing."""


class ApiError(Exception):
    """An answer with an HTTP status other than 200; ``param`` names what was wrong in the request."""

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.code = status, _printable(message), code
        self.param = None if param is None else _printable(param)

    def body(self) -> dict[str, Any]:
        """OpenAI's error object."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        return {
            "error": {
                "message": self.message,
                "type": kind,
                "param": self.param and _printable(self.param),
                "code": self.code,
            }
        }


def _printable(text: str) -> str:
    """Without lone surrogates, which a request may hold (as \\ud800) and no reply can."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def validation_error(errors: Sequence[Any]) -> ApiError:
    """The first of pydantic's errors about a request body as OpenAI would put it."""
    first = errors[0]
    kind, reason = first["type"], first["msg"].removeprefix("Value error, ")
    path = [part for part in first["loc"] if part != "body"]
    if kind == "json_invalid":
        return ApiError(400, f"the body is not JSON: {first['ctx']['error']}")
    if not path and kind in ("model_type", "model_attributes_type", "dict_type", "missing"):
        reason = "the body must be a JSON object (Content-Type: application/json)"
    if not path:
        return ApiError(400, reason)
    name = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")
    if kind == "extra_forbidden":
        return ApiError(400, f"{name}: no such parameter here", name)
    return ApiError(400, f"{name}: {reason}", name)


def _given(values: Any) -> Any:
    """Without nulls. Few, for each unknown one becomes an error that takes time."""
    if isinstance(values, dict) and len(values) > MAX_FIELDS:
        raise ValueError(f"has {len(values):,} fields, {MAX_FIELDS} at most are read")
    return {k: v for k, v in values.items() if v is not None} if isinstance(values, dict) else values


def _joined_parts(content: Any) -> Any:
    """A message's content: a string, or a list of text parts, which are joined."""
    if not isinstance(content, list):
        return content
    for part in content:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise ValueError('every part must be {"type": "text", "text": "..."}: this model reads text only')
    return "".join(part["text"] for part in content)


def _unicode(text: str) -> str:
    if _printable(text) != text:
        raise ValueError("holds a lone surrogate, half of a character: not Unicode text")
    return text


def _few_messages(messages: Any) -> Any:
    if isinstance(messages, list) and len(messages) > MAX_MESSAGES:
        raise ValueError(f"has {len(messages):,} messages, {MAX_MESSAGES:,} at most are read")
    return messages


def _as_list(stop: Any) -> Any:
    if isinstance(stop, list) and len(stop) > MAX_STOPS:
        raise ValueError(f"has {len(stop):,} strings, {MAX_STOPS} at most are read")
    return [stop] if isinstance(stop, str) else stop


def _only_text(prompt: Any) -> Any:
    """A completion's prompt: a string, or a list of one."""
    if isinstance(prompt, list) and len(prompt) == 1:
        prompt = prompt[0]
    if not isinstance(prompt, str):
        raise ValueError("must be one string; token ids and several prompts are not supported")
    return prompt


Text = Annotated[str, AfterValidator(_unicode)]


class Strict(BaseModel):
    """No unknown fields and no conversions ("1" is not 1)."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    _drop_nulls = model_validator(mode="before")(_given)


class Message(Strict):
    """One turn of a chat."""

    role: Literal["system", "user", "assistant"]
    content: Annotated[Text, BeforeValidator(_joined_parts)]


class StreamOptions(Strict):
    """``include_usage``: a last chunk with the token counts."""

    include_usage: bool = False


class Request(Strict):
    """What both endpoints take."""

    model: str | None = None
    temperature: Annotated[float, Field(ge=0, le=2)]
    top_p: Annotated[float, Field(gt=0, le=1)]
    top_k: Annotated[int, Field(ge=0)] = 0
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    stop: Annotated[
        list[Annotated[Text, Field(min_length=1)]], BeforeValidator(_as_list), Field(max_length=MAX_STOPS)
    ] = []
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    n: Literal[1] = 1
    stream: bool = False
    stream_options: StreamOptions | None = None
    user: str | None = None  # says who asks; changes nothing

    @model_validator(mode="before")
    @classmethod
    def _without_neutral(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        refused = [
            name
            for name, value in values.items()
            if name in NEUTRAL and value is not None and value not in NEUTRAL[name]
        ]
        if refused:
            raise ValueError(f"{refused[0]} is not supported by this server: leave it out")
        return {name: value for name, value in values.items() if name not in NEUTRAL}

    @model_validator(mode="after")
    def _consistent(self) -> Request:
        both = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(both) > 1:
            raise ValueError("max_tokens and max_completion_tokens differ: give one")
        if 0 < self.temperature < LEAST_TEMPERATURE:
            raise ValueError(f"temperature must be 0, or {LEAST_TEMPERATURE} or more")
        if self.stream_options and not self.stream:
            raise ValueError("stream_options is for stream: true only")
        return self

    def sampling(self, default_tokens: int) -> Sampling:
        """How to choose the tokens; a seed of its own if none was given."""
        tokens = self.max_tokens or self.max_completion_tokens or default_tokens
        seed = random.SystemRandom().getrandbits(32) if self.seed is None else self.seed
        return Sampling(tokens, self.temperature, self.top_p, self.top_k, seed)


class ChatRequest(Request):
    """POST /v1/chat/completions. Defaults as `minimind chat`."""

    messages: Annotated[list[Message], BeforeValidator(_few_messages), Field(min_length=1)]
    temperature: Annotated[float, Field(ge=0, le=2)] = CHAT_TEMPERATURE
    top_p: Annotated[float, Field(gt=0, le=1)] = CHAT_TOP_P


class CompletionRequest(Request):
    """POST /v1/completions. Defaults as `minimind generate`."""

    prompt: Annotated[Text, BeforeValidator(_only_text)]
    temperature: Annotated[float, Field(ge=0, le=2)] = TEXT_TEMPERATURE
    top_p: Annotated[float, Field(gt=0, le=1)] = TEXT_TOP_P


def usage(prompt: int, completion: int) -> dict[str, int]:
    """Token counts; the token that ends an answer is not counted."""
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


@dataclass(frozen=True)
class Reply:
    """The objects of one answer, which share id and time."""

    model: str
    chat: bool
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    created: int = field(default_factory=lambda: int(time.time()))

    def _object(self, kind: str, choice: dict[str, Any] | None, **more: Any) -> dict[str, Any]:
        choices = [] if choice is None else [{"index": 0, "logprobs": None, **choice}]
        prefix = "chatcmpl" if self.chat else "cmpl"
        about = {"id": f"{prefix}-{self.id}", "object": kind, "created": self.created, "model": self.model}
        return {**about, "choices": choices, **more}

    def whole(self, text: str, finish: Finish | None, counts: dict[str, int]) -> dict[str, Any]:
        """The answer of a request without ``stream``."""
        if not self.chat:
            return self._object("text_completion", {"text": text, "finish_reason": finish}, usage=counts)
        message = {"role": "assistant", "content": text, "refusal": None}
        return self._object("chat.completion", {"message": message, "finish_reason": finish}, usage=counts)

    def chunk(self, delta: dict[str, str], finish: Finish | None = None, **more: Any) -> dict[str, Any]:
        """A part of a streamed answer; ``delta`` holds ``content`` and, in the first, ``role``."""
        if not self.chat:
            choice = {"text": delta.get("content", ""), "finish_reason": finish}
            return self._object("text_completion", choice, **more)
        return self._object("chat.completion.chunk", {"delta": delta, "finish_reason": finish}, **more)

    def counts(self, counts: dict[str, int]) -> dict[str, Any]:
        """The last chunk, for ``stream_options.include_usage``: no choice, only token counts."""
        return self._object("chat.completion.chunk" if self.chat else "text_completion", None, usage=counts)
