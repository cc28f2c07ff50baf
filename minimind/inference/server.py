"""`minimind serve`: a model behind OpenAI's HTTP interface, until Ctrl-C.

Contract. The address is printed when connections are accepted. Ctrl-C and SIGTERM end it with exit code 0: an answer
that is being made ends within a token.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from minimind.errors import UserError

if TYPE_CHECKING:
    from minimind.inference.answers import Speaker

LOCAL = ("127.0.0.1", "::1", "localhost")
GRACE = 5  # seconds for connections to end; an answer takes one token of them


def serve(path: Path, host: str, port: int, api_key: str | None) -> None:
    """Serve the model at ``path``; returns at Ctrl-C or SIGTERM.

    Raises UserError without the extra ``serve``, for a path without a model, and for an address that can't be used.
    """
    _require_extra()
    import torch

    from minimind.inference.answers import Speaker
    from minimind.inference.generation import load_model

    if api_key == "":
        raise UserError("--api-key is empty: give a key, or leave the option out")
    speaker = Speaker(*load_model(path, "cuda" if torch.cuda.is_available() else "cpu"))
    with listen(host, port) as listener:
        _announce(model_name(path), host, listener, api_key)
        _run(speaker, model_name(path), listener, api_key)


def _require_extra() -> None:
    try:
        import fastapi  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise UserError(f"{error.name} is missing: pip install 'minimind-deepspeed[serve]'") from error


def _run(speaker: Speaker, name: str, listener: socket.socket, api_key: str | None) -> None:
    import uvicorn

    from minimind.inference.app import make_app

    app = make_app(speaker, name, api_key, stopping=lambda: server.should_exit)
    server = uvicorn.Server(
        uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=GRACE, lifespan="off")
    )
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
        return socket.create_server(address, family=family, backlog=128)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(
            f"can't listen on {host}, port {port}: {reason}; --port 0 takes a free one"
        ) from error


def _announce(name: str, host: str, listener: socket.socket, api_key: str | None) -> None:
    shown = f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{listener.getsockname()[1]}"
    print(f"{name}: chat page {address}/, OpenAI interface {address}/v1. Ctrl-C ends.", flush=True)
    if host not in LOCAL and api_key is None:
        print("note: everyone who reaches this address can use it; --api-key asks for a key", file=sys.stderr)
