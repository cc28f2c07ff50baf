"""The web application: OpenAI's endpoints, a health check and the chat page. Needs the extra ``serve``.

Contract. What is wrong with a request is said in OpenAI's error object, before anything is generated. A client that
leaves ends its answer; so does a server that stops. An error after the first chunk of a stream, whose status is
already sent, is a last event ``data: {"error": ...}`` without ``[DONE]``.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException

from minimind.base.defaults import CHAT_TOKENS, TEXT_TOKENS
from minimind.base.errors import UserError
from minimind.inference.answers import Question, Speaker
from minimind.inference.front import HERE, MAX_BODY, Front, Hosts
from minimind.inference.openai_schema import ApiError, ChatRequest, CompletionRequest, Reply, usage, validation_error
from minimind.inference.openai_schema import Request as AnyRequest
from minimind.text.chat import Turn, prompt_ids

PAGE = Path(__file__).with_name("chat_page.html")
# The page loads nothing and talks to this server only; a browser enforces it.
PAGE_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def make_app(
    speaker: Speaker,
    name: str,
    api_key: str | None = None,
    stopping: Callable[[], bool] = lambda: False,
    hosts: Hosts = HERE,
    max_body: int = MAX_BODY,
) -> Front:
    """The application that serves ``speaker`` as the model ``name``, behind its `Front`.

    ``api_key``: asked for everywhere but at the page and the health check. ``hosts``: whom it answers to without a key.
    ``max_body``: bytes of a request. ``stopping``: true once answers that are being made should end.
    """
    return Front(_make_engine(speaker, name, stopping), api_key, hosts, max_body)


def _make_engine(speaker: Speaker, name: str, stopping: Callable[[], bool]) -> FastAPI:
    app = FastAPI(title="MiniMind", docs_url=None, redoc_url=None, openapi_url=None)  # their pages need a CDN
    endpoints = Endpoints(speaker, name, stopping)
    app.add_api_route("/v1/models", endpoints.models, methods=["GET"], response_model=None)
    app.add_api_route("/v1/chat/completions", endpoints.chat, methods=["POST"], response_model=None)
    app.add_api_route("/v1/completions", endpoints.complete, methods=["POST"], response_model=None)
    app.add_api_route("/health", health, methods=["GET"])
    app.add_api_route("/", page, methods=["GET"], response_class=HTMLResponse)
    for kind, handler in HANDLERS.items():
        app.add_exception_handler(kind, handler)
    return app


class Endpoints:
    """What is under /v1."""

    def __init__(self, speaker: Speaker, name: str, stopping: Callable[[], bool]) -> None:
        self.speaker, self.name, self.stopping = speaker, name, stopping
        self._tokenizing = ThreadPoolExecutor(1, thread_name_prefix="tokenizing")  # off the event loop
        self.started = int(time.time())
        self.positions = speaker.model.config.max_position_embeddings

    async def models(self) -> dict[str, Any]:
        """The one model. ``max_model_len``, which vLLM has too: positions for prompt and answer together."""
        model = {
            "id": self.name,
            "object": "model",
            "created": self.started,
            "owned_by": "minimind",
            "max_model_len": self.positions,
        }
        return {"object": "list", "data": [model]}

    async def chat(self, body: ChatRequest, request: Request) -> Response:
        """The next turn of a chat."""
        tokenizer = self.speaker.tokenizer
        turns = [Turn(message.role, message.content) for message in body.messages]
        self._check_model(body)
        self._require_room([turn.content for turn in turns], "messages")
        try:
            prompt = await self._tokenize(prompt_ids, turns, tokenizer)
        except UserError as error:  # what the model's chat template can't write
            raise ApiError(400, str(error), "messages") from None
        sampling = body.sampling(CHAT_TOKENS)
        question = Question(prompt, sampling, tokenizer.stop_ids, body.stop)
        return await self._respond(body, question, request, Reply(self.name, chat=True))

    async def complete(self, body: CompletionRequest, request: Request) -> Response:
        """How a text goes on."""
        tokenizer = self.speaker.tokenizer
        self._check_model(body)
        self._require_room([body.prompt], "prompt")
        prompt = [tokenizer.bos_id, *await self._tokenize(tokenizer.encode, body.prompt)]
        question = Question(prompt, body.sampling(TEXT_TOKENS), [tokenizer.eos_id], body.stop)
        return await self._respond(body, question, request, Reply(self.name, chat=False))

    async def _tokenize(self, work: Callable[..., list[int]], *arguments: Any) -> list[int]:
        return await asyncio.get_running_loop().run_in_executor(self._tokenizing, work, *arguments)

    def _check_model(self, body: AnyRequest) -> None:
        if body.model not in (None, self.name):
            raise ApiError(
                404, f"there is no model {body.model!r} here, only {self.name!r}", "model", "model_not_found"
            )

    def _require_room(self, texts: Sequence[str], param: str) -> None:
        """Refuse a prompt that can't fit before it is tokenized, which would take time and memory."""
        least = sum(map(self.speaker.tokenizer.least_tokens, texts))
        if least >= self.positions:
            raise self._too_long(f"at least {least}", param)

    def _too_long(self, tokens: str, param: str) -> ApiError:
        message = (
            f"the prompt has {tokens} tokens; it may have at most {self.positions - 1}, "
            f"for the model has {self.positions} positions and the answer needs one: shorten it"
        )
        return ApiError(400, message, param, "context_length_exceeded")

    def _gone(self, request: Request) -> Callable[[], Awaitable[bool]]:
        async def gone() -> bool:
            if self.stopping():
                raise ApiError(503, "the server is stopping")
            return await request.is_disconnected()

        return gone

    async def _respond(self, body: AnyRequest, question: Question, request: Request, reply: Reply) -> Response:
        if len(question.prompt) >= self.positions:
            raise self._too_long(f"{len(question.prompt)}", "messages" if reply.chat else "prompt")
        gone = self._gone(request)
        if body.stream:
            with_usage = body.stream_options is not None and body.stream_options.include_usage
            events = stream_events(self.speaker, question, gone, reply, with_usage)
            return StreamingResponse(events, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        return JSONResponse(await whole_answer(self.speaker, question, gone, reply))


async def whole_answer(
    speaker: Speaker, question: Question, gone: Callable[[], Awaitable[bool]], reply: Reply
) -> dict[str, Any]:
    """The reply to a request without ``stream``."""
    parts, count, finish = [], 0, None
    async with aclosing(speaker.answer(question, gone)) as pieces:
        async for piece in pieces:
            parts.append(piece.text)
            count, finish = piece.tokens, piece.finish
    return reply.whole("".join(parts), finish, usage(len(question.prompt), count))


async def stream_events(
    speaker: Speaker, question: Question, gone: Callable[[], Awaitable[bool]], reply: Reply, with_usage: bool
) -> AsyncIterator[str]:
    """Server-sent events: chunks, the token counts if asked for, ``[DONE]``. A reader that has left gets no end."""
    empty: dict[str, Any] = {"usage": None} if with_usage else {}  # as OpenAI: null in all chunks but the last
    count, finish = 0, None
    try:
        if reply.chat:
            yield _event(reply.chunk({"role": "assistant", "content": ""}, **empty))
        async with aclosing(speaker.answer(question, gone)) as pieces:
            async for piece in pieces:
                count, finish = piece.tokens, piece.finish
                if piece.text:
                    yield _event(reply.chunk({"content": piece.text}, **empty))
    except ApiError as error:
        yield _event(error.body())
    except Exception:  # the status is sent: the reader is told here, the log by raising on
        yield _event(ApiError(500, "the server failed; its log says why").body())
        raise
    if finish is None:
        return
    yield _event(reply.chunk({}, finish, **empty))
    if with_usage:
        yield _event(reply.counts(usage(len(question.prompt), count)))
    yield "data: [DONE]\n\n"


def _event(value: dict[str, Any]) -> str:
    return f"data: {json.dumps(value, ensure_ascii=False)}\n\n"


async def health() -> dict[str, str]:
    """The model is loaded: the server listens only then."""
    return {"status": "ok"}


async def page() -> HTMLResponse:
    """The chat page."""
    return HTMLResponse(PAGE.read_text(encoding="utf-8"), headers={"Content-Security-Policy": PAGE_POLICY})


def _error(error: ApiError) -> JSONResponse:
    return JSONResponse(error.body(), error.status)


async def _on_api_error(request: Request, error: Any) -> Response:
    return _error(error)


async def _on_invalid(request: Request, error: Any) -> Response:
    return _error(validation_error(error.errors()))


async def _on_http(request: Request, error: Any) -> Response:
    where = f"{request.method} {request.url.path}"
    messages = {404: f"{where}: no such address here", 405: f"{where}: this address takes another method"}
    return _error(ApiError(error.status_code, messages.get(error.status_code, str(error.detail))))


async def _on_bug(request: Request, error: Any) -> Response:
    response = _error(ApiError(500, "the server failed; its log says why"))
    # Starlette raises the exception on and uvicorn then closes the connection: a client told of it doesn't reuse it
    response.headers["Connection"] = "close"
    return response


HANDLERS: dict[type[Exception], Callable[[Request, Any], Awaitable[Response]]] = {
    ApiError: _on_api_error,
    RequestValidationError: _on_invalid,
    HTTPException: _on_http,
    Exception: _on_bug,
}
