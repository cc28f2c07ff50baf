"""`minimind serve`: a model behind OpenAI's HTTP interface, until Ctrl-C.

Contract. The address is printed when connections are accepted. Ctrl-C and SIGTERM end it with exit code 0: an answer
that is being made ends within a token.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from minimind.base.defaults import Context
from minimind.base.display import complain, say
from minimind.base.errors import UserError

if TYPE_CHECKING:
    from minimind.inference.serving.listener import Server

SWITCH_SECONDS = 0.0005  # a tenth of Python's: how long the event loop waits for a thread that reads or makes an answer
KEY_VARIABLE = "MINIMIND_API_KEY"


def serve(
    path: Path,
    host: str,
    port: int,
    api_key: str | None,
    max_body: int | None = None,
    *,
    tokenizer: Path | None = None,
    context: Context = "error",
) -> None:
    """Serve the model at ``path``; returns at Ctrl-C or SIGTERM. ``max_body``: bytes of a request, None the usual.
    ``context``: a conversation that outgrows the model is refused, or loses its oldest turns.

    Raises UserError without the extra ``serve``, for a key that is none, a path without a model, and an address that
    can't be used.
    """
    _check_key(api_key)
    _require_extra()
    import torch

    from minimind.inference.about import about_model
    from minimind.inference.generation import load_model
    from minimind.inference.serving.app import Served, make_app
    from minimind.inference.serving.front import MAX_BODY, Hosts
    from minimind.inference.serving.listener import make_server
    from minimind.inference.speaker import Speaker

    model, text = load_model(path, "cuda" if torch.cuda.is_available() else "cpu", tokenizer=tokenizer)
    with listen(host, port) as listener:
        hosts = Hosts.of(host, listener.getsockname()[0])
        speaker = Speaker(model, text, stopping=lambda: server.should_exit)
        served = Served(model_name(path), about_model(path), context)
        app = make_app(speaker, served, api_key, hosts, max_body=max_body or MAX_BODY)
        server = make_server(app)
        _announce(model_name(path), host, listener, api_key)
        _run(server, listener)


def _check_key(api_key: str | None) -> None:
    """An empty key would serve without one, unnoticed: typer takes an empty variable for one that is not set."""
    source = "--api-key" if api_key is not None else KEY_VARIABLE
    key = os.environ.get(KEY_VARIABLE) if api_key is None else api_key
    if key is None:
        return
    if not key.strip():
        raise UserError(f"{source} is empty: give a key, or leave it out")
    if key != key.strip() or not key.isprintable():
        raise UserError(f"{source} has blanks around it or control characters in it: no request could send it")


def _require_extra() -> None:
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise UserError(f"{error.name} is missing: pip install 'minimind-deepspeed[serve]'") from error


def _run(server: Server, listener: socket.socket) -> None:
    from minimind.inference.serving.listener import log_few_lines

    log_few_lines()
    sys.setswitchinterval(SWITCH_SECONDS)
    # uvicorn ends in order and then raises the signal again, for the handler that was there before.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt):
        server.run(sockets=[listener])


def model_name(path: Path) -> str:
    """What requests call the model: the directory's name, or the file's without its suffix."""
    path = Path(os.path.abspath(path))  # noqa: PTH100 (resolve() would follow a link and lose its name)
    return path.stem if path.is_file() else path.name


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0: a free one. Raises UserError."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.create_server(address, family=family, backlog=128)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(f"can't listen on {host}, port {port}: {reason}; --port 0 takes a free one") from error
    # Connections inherit it. asyncio sets it only on sockets that name their protocol, which these don't: the second
    # part of each answer would wait 40 ms for the client's delayed acknowledgement.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def _announce(name: str, host: str, listener: socket.socket, api_key: str | None) -> None:
    shown = f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{listener.getsockname()[1]}"
    say(f"{name}: chat page {address}/, OpenAI interface {address}/v1. Ctrl-C ends.")
    if api_key is None and not ipaddress.ip_address(listener.getsockname()[0]).is_loopback:
        complain("note: everyone who reaches this address can use it; --api-key asks for a key")
