"""What is answered to a request that can't be: OpenAI's error object, ``{"error": {message, type, param, code}}``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class ApiError(Exception):
    """An answer with an HTTP status other than 200; ``param`` names what was wrong in the request."""

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.code = status, printable(message), code
        self.param = None if param is None else printable(param)

    def body(self) -> dict[str, Any]:
        """OpenAI's error object."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def printable(text: str) -> str:
    """Without lone surrogates, which a request may hold (as \\ud800) and no reply can."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def validation_error(errors: Sequence[Any]) -> ApiError:
    """The first of pydantic's errors about a request body as OpenAI would put it."""
    first = errors[0]
    kind, reason, path = first["type"], first["msg"].removeprefix("Value error, "), first["loc"]
    if not path and kind in ("model_type", "model_attributes_type", "dict_type"):
        reason = "the body must be a JSON object (Content-Type: application/json)"
    if not path:
        return ApiError(400, reason)
    name = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")
    if kind == "extra_forbidden":
        return ApiError(400, f"{name}: no such parameter here", name)
    return ApiError(400, f"{name}: {reason}", name)
