"""The web application: OpenAI's endpoints, a health check and the chat page. Needs the extra ``serve``.

Contract. What is wrong with a request is said in OpenAI's error object, before anything is generated. Bodies are parsed
and tokenized in a thread of their own, so that the event loop only passes things on: `/health` answers at once whatever
is being read or made. A client that leaves ends its answers; so does a server that stops. An error after the first
chunk of a stream, whose status is already sent, is a last event ``data: {"error": ...}`` without ``[DONE]``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from minimind.base.defaults import CHAT_TOKENS, TEXT_TOKENS, Context
from minimind.base.errors import UserError
from minimind.inference.about import About
from minimind.inference.answers import Piece, Question
from minimind.inference.serving.errors import ApiError
from minimind.inference.serving.fitting import Fitting
from minimind.inference.serving.front import HERE, MAX_BODY, Front, Hosts
from minimind.inference.serving.page import page_routes
from minimind.inference.serving.replies import Reply, Told, spelled, usage
from minimind.inference.serving.requests import ChatRequest, CompletionRequest, parsed
from minimind.inference.serving.requests import Request as AnyRequest
from minimind.inference.serving.streams import answers, merged, together
from minimind.inference.speaker import Speaker, Stopped
from minimind.text.messages import THOUGHT_START

FEW_TOKENS = 16  # whose probabilities are written within a millisecond
CLIENT_CLOSED_REQUEST = 499  # nginx's number for it


@dataclass(frozen=True)
class Served:
    """What is served: ``name`` is the model's in requests; ``about``: what it knows and questions to try, or None.

    ``context``: what becomes of a conversation that outgrows the model.
    """

    name: str
    about: About | None = None
    context: Context = "error"


def make_app(
    speaker: Speaker, served: Served, api_key: str | None = None, hosts: Hosts = HERE, max_body: int = MAX_BODY
) -> Front:
    """The application that serves ``speaker``, behind its `Front`.

    ``api_key``: asked for everywhere but at the page and the health check. ``hosts``: whom it answers to without a key.
    ``max_body``: bytes of a request.
    """
    endpoints = Endpoints(speaker, served)
    routes = [
        Route("/v1/models", endpoints.models),
        Route("/v1/models/{name:path}", endpoints.model),
        Route("/v1/chat/completions", endpoints.chat, methods=["POST"]),
        Route("/v1/completions", endpoints.complete, methods=["POST"]),
        Route("/health", health),
        *page_routes(),
    ]
    return Front(Starlette(routes=routes, exception_handlers=HANDLERS), api_key, hosts, max_body)


@dataclass(frozen=True)
class Asked:
    """A request as it is answered: a question for each prompt and choice, and the tokens of its prompts."""

    body: AnyRequest
    reply: Reply
    questions: list[Question]
    prompt_tokens: int


class Endpoints:
    """What is under /v1."""

    def __init__(self, speaker: Speaker, served: Served) -> None:
        self.speaker, self.served = speaker, served
        self.started = int(time.time())
        self.positions = speaker.model.config.max_position_embeddings
        self.fitting = Fitting(speaker.tokenizer, self.positions, served.context)
        self._reading = ThreadPoolExecutor(1, thread_name_prefix="reading")

    async def models(self, request: Request) -> Response:
        """The one model."""
        return JSONResponse({"object": "list", "data": [self._model()]})

    async def model(self, request: Request) -> Response:
        """It, by its name."""
        self._check_model(request.path_params["name"])
        return JSONResponse(self._model())

    def _model(self) -> dict[str, Any]:
        """``max_model_len``, which vLLM has too: positions for prompt and answer together."""
        known = self.served.about and asdict(self.served.about)
        about = {"id": self.served.name, "object": "model", "created": self.started, "owned_by": "minimind"}
        return {**about, "max_model_len": self.positions, "about": known}

    async def chat(self, request: Request) -> Response:
        """The next turn of a chat."""
        return await self._answer(request, self._read_chat)

    async def complete(self, request: Request) -> Response:
        """How texts go on."""
        return await self._answer(request, self._read_completion)

    def _read_chat(self, data: bytes) -> Asked:
        body, tokenizer = parsed(ChatRequest, data), self.speaker.tokenizer
        self._check_model(body.model)
        sampling = body.sampling(CHAT_TOKENS)
        try:
            prompt, dropped = self.fitting.chat(body.turns, sampling.max_new_tokens, body.chat_template_kwargs)
        except UserError as error:  # what the model's chat template can't write
            raise ApiError(400, str(error), "messages") from None
        about = {"dropped_messages": dropped} if dropped else {}
        thinking = (
            tokenizer.decode(prompt[-len(THOUGHT_START) - 2 :], with_special=True).rstrip().endswith(THOUGHT_START)
        )
        calls = bool(body.offered)
        reply = Reply(self.served.name, True, tokenizer, about=about, calls=calls, thinking=thinking)
        question = Question(prompt, sampling, tokenizer.stop_ids, body.stop, body.top)
        return Asked(body, reply, _choices(question, body.n), len(prompt))

    def _read_completion(self, data: bytes) -> Asked:
        body, tokenizer = parsed(CompletionRequest, data), self.speaker.tokenizer
        self._check_model(body.model)
        sampling = body.sampling(TEXT_TOKENS)
        prompts = [self.fitting.text(prompt, sampling.max_new_tokens) for prompt in body.prompt]
        reply, ends = Reply(self.served.name, chat=False, tokenizer=tokenizer), [tokenizer.eos_id]
        asked = [Question(ids, sampling, ends, body.stop, top=body.top, echo=body.echo) for ids in prompts]
        questions = [choice for question in asked for choice in _choices(question, body.n)]
        return Asked(body, reply, questions, sum(map(len, prompts)))

    def _check_model(self, name: str | None) -> None:
        if name not in (None, self.served.name):
            raise ApiError(
                404, f"there is no model {name!r} here, only {self.served.name!r}", "model", "model_not_found"
            )

    async def _answer(self, request: Request, read: Callable[[bytes], Asked]) -> Response:
        data = await request.body()
        asked = await self._aside(lambda: read(data))
        if asked.body.stream:
            headers = {"Cache-Control": "no-cache"}
            return StreamingResponse(self._events(asked), media_type="text/event-stream", headers=headers)
        try:
            made = await together(self.speaker, asked.questions, request)
        except Stopped as error:
            raise ApiError(503, str(error)) from None
        if made is None:
            return Response(status_code=CLIENT_CLOSED_REQUEST)  # nobody reads it
        counts = usage(asked.prompt_tokens, sum(answer.tokens for answer in made))
        content = await self._aside(lambda: "".join(spelled(asked.reply.whole(made, counts))))
        return Response(content.encode("utf-8", "backslashreplace"), media_type="application/json")

    async def _aside(self, work: Callable[[], Any]) -> Any:
        """Off the event loop, one after the other."""
        return await asyncio.get_running_loop().run_in_executor(self._reading, work)

    async def _told(self, told: Told, piece: Piece, more: dict[str, Any]) -> str | None:
        """The event of a piece, if there is one; an echoed prompt with its probabilities may be megabytes."""
        if len(piece.chosen) > FEW_TOKENS:
            return f"data: {await self._aside(lambda: ''.join(spelled(told.chunk(piece, **more))))}\n\n"
        chunk = told.chunk(piece, **more)
        return None if chunk is None else _event(chunk)

    async def _events(self, asked: Asked) -> AsyncIterator[str]:
        """Server-sent events: chunks, the token counts if asked for, ``[DONE]``."""
        empty: dict[str, Any] = {"usage": None} if asked.body.with_usage else {}  # as OpenAI: null in all but the last
        counts, reply = [0] * len(asked.questions), asked.reply
        told = [Told(reply, index) for index in range(len(asked.questions))]
        try:
            for index in range(len(asked.questions) if reply.chat else 0):
                yield _event(reply.begin(index, **empty))
            async with contextlib.aclosing(merged(answers(self.speaker, asked.questions))) as made:
                async for index, piece in made:
                    counts[index] = piece.tokens
                    if event := await self._told(told[index], piece, empty):
                        yield event
        except Stopped as error:
            yield _event(ApiError(503, str(error)).body())
            return
        except Exception:  # the status is sent: the reader is told here, the log by raising on
            yield _event(ApiError(500, "the server failed; its log says why").body())
            raise
        if asked.body.with_usage:
            yield _event(reply.counts(usage(asked.prompt_tokens, sum(counts))))
        yield "data: [DONE]\n\n"


def _choices(question: Question, count: int) -> list[Question]:
    """The same question as often, each with a seed of its own, the first with the one that was asked for."""
    sampling = question.sampling
    return [replace(question, sampling=replace(sampling, seed=_seed(sampling.seed + i))) for i in range(count)]


def _seed(number: int) -> int:
    """Within what a generator takes."""
    return number if number < 2**63 else number - 2**64


def _event(value: dict[str, Any]) -> str:
    return f"data: {json.dumps(value, ensure_ascii=False, separators=(',', ':'))}\n\n"


async def health(request: Request) -> Response:
    """The model is loaded: the server listens only then."""
    return JSONResponse({"status": "ok"})


def _error(error: ApiError) -> JSONResponse:
    return JSONResponse(error.body(), error.status)


async def _on_api_error(request: Request, error: Any) -> Response:
    return _error(error)


async def _on_http(request: Request, error: Any) -> Response:
    where = f"{request.method} {request.url.path}"
    messages = {404: f"{where}: no such address here", 405: f"{where}: this address takes another method"}
    return _error(ApiError(error.status_code, messages.get(error.status_code, str(error.detail))))


async def _on_bug(request: Request, error: Any) -> Response:
    response = _error(ApiError(500, "the server failed; its log says why"))
    # Starlette raises the exception on and uvicorn then closes the connection: a client told of it doesn't reuse it
    response.headers["Connection"] = "close"
    return response


HANDLERS: dict[Any, Callable[[Request, Any], Awaitable[Response]]] = {
    ApiError: _on_api_error,
    HTTPException: _on_http,
    Exception: _on_bug,
}
