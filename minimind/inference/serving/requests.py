"""OpenAI's requests, as far as a small text model can honour them.

Contract. A parameter that would change the answer and is not honoured is refused by its name; one that changes nothing
is taken (neutral.py); null means not given. Defaults are those of `minimind chat` and `minimind generate`, and a seed
that is not given is random.
"""

from __future__ import annotations

import random
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from minimind.base.defaults import CHAT_TEMPERATURE, CHAT_TOP_P, TEXT_TEMPERATURE, TEXT_TOP_P
from minimind.base.strict.json_text import parse_json
from minimind.inference.sampling import Sampling
from minimind.inference.serving.errors import ApiError, validation_error
from minimind.inference.serving.fields import Strict, Text, few_fields, unicode_text
from minimind.inference.serving.messages import ChatMessage, turns_of
from minimind.inference.serving.neutral import NEVER, UNLESS, without_neutral
from minimind.inference.serving.tools import ToolDefinition
from minimind.text.chat import Turn

MAX_STOPS = 4  # OpenAI's limit
MAX_MESSAGES = 2048  # each has tokens of its own: few models here have room for as many
MAX_CHOICES = 128  # answers to one request: prompts times n
MAX_TOP = 20  # OpenAI's limit
MAX_TOOLS = 128  # OpenAI's limit
LEAST_TEMPERATURE = 1e-3  # below it logits / temperature could overflow


def _few_messages(messages: Any) -> Any:
    if isinstance(messages, list) and len(messages) > MAX_MESSAGES:
        raise ValueError(f"has {len(messages):,} messages, {MAX_MESSAGES:,} at most are read")
    return messages


def _as_list(stop: Any) -> Any:
    if isinstance(stop, list) and len(stop) > MAX_STOPS:
        raise ValueError(f"has {len(stop):,} strings, {MAX_STOPS} at most are read")
    return [stop] if isinstance(stop, str) else stop


def _is_ids(prompt: Any) -> bool:
    return isinstance(prompt, list) and bool(prompt) and all(type(token) is int for token in prompt)


def _as_prompts(prompt: Any) -> Any:
    """A completion's prompt, which is a string, token ids, or a list of either, as a list of them."""
    prompts = [prompt] if isinstance(prompt, str) or _is_ids(prompt) else prompt
    if not isinstance(prompts, list) or not prompts or not all(isinstance(p, str) or _is_ids(p) for p in prompts):
        raise ValueError("must be a string, token ids, or a list of strings or of lists of token ids")
    if len(prompts) > MAX_CHOICES:
        raise ValueError(f"has {len(prompts):,} prompts, {MAX_CHOICES} at most are answered")
    return [unicode_text(prompt) if isinstance(prompt, str) else prompt for prompt in prompts]


Word = Annotated[str, Field(pattern="^[A-Za-z0-9_-]{1,40}$")]  # the template writes it: it may spell no special token


class StreamOptions(Strict):
    """``include_usage``: a last chunk with the token counts. ``include_obfuscation``: padding; there is none."""

    include_usage: bool = False
    include_obfuscation: bool = False


class Request(Strict):
    """What both endpoints take."""

    model: str | None = None
    temperature: Annotated[float, Field(ge=0, le=2)]
    top_p: Annotated[float, Field(gt=0, le=1)]
    top_k: Annotated[int, Field(ge=-1)] = 0  # -1, as vLLM has it: all
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] = 1.0
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    stop: Annotated[
        list[Annotated[Text, Field(min_length=1)]],
        BeforeValidator(_as_list),
        Field(max_length=MAX_STOPS, default_factory=list),
    ]
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] = 1
    stream: bool = False
    stream_options: StreamOptions | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_neutral(cls, values: Any) -> Any:
        unless = {name: neutral for name, neutral in UNLESS.items() if name not in cls.model_fields}
        return without_neutral(few_fields(values), NEVER, unless)

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

    @property
    def top(self) -> int | None:
        """How many of the likeliest tokens to tell of in each place; None: nothing, 0: only the chosen one."""
        raise NotImplementedError

    def sampling(self, default_tokens: int) -> Sampling:
        """How to choose the tokens; a seed of its own if none was given."""
        given = self.max_completion_tokens if self.max_tokens is None else self.max_tokens
        tokens = default_tokens if given is None else given
        seed = random.SystemRandom().getrandbits(32) if self.seed is None else self.seed
        return Sampling(
            tokens,
            self.temperature,
            self.top_p,
            max(self.top_k, 0),
            seed=seed,
            repetition_penalty=self.repetition_penalty,
        )

    @property
    def with_usage(self) -> bool:
        """Whether the token counts end a stream."""
        return self.stream_options is not None and self.stream_options.include_usage


class ChatRequest(Request):
    """POST /v1/chat/completions. Defaults as `minimind chat`."""

    messages: Annotated[list[ChatMessage], BeforeValidator(_few_messages), Field(min_length=1)]
    temperature: Annotated[float, Field(ge=0, le=2)] = CHAT_TEMPERATURE
    top_p: Annotated[float, Field(gt=0, le=1)] = CHAT_TOP_P
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP)] = 0
    tools: Annotated[list[ToolDefinition], Field(max_length=MAX_TOOLS, default_factory=list)]
    tool_choice: Literal["auto", "none"] = "auto"
    parallel_tool_calls: bool = True
    chat_template_kwargs: Annotated[dict[Text, bool | int | float | Word], Field(default_factory=dict)]  # as vLLM

    @model_validator(mode="after")
    def _with_logprobs(self) -> ChatRequest:
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs is for logprobs: true only")
        return self

    @model_validator(mode="after")
    def _with_tools(self) -> ChatRequest:
        if self.offered and not self.parallel_tool_calls:
            raise ValueError("parallel_tool_calls: false is not supported by this server: leave it out")
        return self

    @property
    def offered(self) -> list[ToolDefinition]:
        """The tools that the model is told of."""
        return [] if self.tool_choice == "none" else self.tools

    @property
    def top(self) -> int | None:
        return self.top_logprobs if self.logprobs else None

    @property
    def turns(self) -> list[Turn]:
        """The conversation so far. Raises UserError for what no chat template could write."""
        return turns_of(self.messages, self.offered)


class CompletionRequest(Request):
    """POST /v1/completions. Defaults as `minimind generate`."""

    prompt: Annotated[list[str | list[int]], BeforeValidator(_as_prompts)]
    temperature: Annotated[float, Field(ge=0, le=2)] = TEXT_TEMPERATURE
    top_p: Annotated[float, Field(gt=0, le=1)] = TEXT_TOP_P
    echo: bool = False
    logprobs: Annotated[int, Field(ge=0, le=MAX_TOP)] | Literal[False] | None = None

    @model_validator(mode="after")
    def _few_choices(self) -> CompletionRequest:
        if len(self.prompt) * self.n > MAX_CHOICES:
            raise ValueError(f"{len(self.prompt)} prompts times n: {self.n} are more than {MAX_CHOICES} answers")
        return self

    @property
    def top(self) -> int | None:
        return None if self.logprobs is False else self.logprobs


AnyRequest = TypeVar("AnyRequest", ChatRequest, CompletionRequest)


def parsed(kind: type[AnyRequest], body: bytes) -> AnyRequest:
    """The request in a body. Raises ApiError 400."""
    try:
        return kind.model_validate(parse_json(body))
    except ValidationError as error:  # which is a ValueError, too
        raise validation_error(error.errors(include_url=False, include_context=False)) from None
    except ValueError as error:
        raise ApiError(400, f"the body is not JSON that is read here: {error}") from None
