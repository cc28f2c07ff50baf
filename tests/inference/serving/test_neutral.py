"""Every parameter that the official client can send is known here: honoured, taken, or refused by its name."""

from __future__ import annotations

import typing
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("openai")

from openai.types import completion_create_params as of_completions
from openai.types.chat import completion_create_params as of_chats

from minimind.inference.serving.neutral import NEVER, UNLESS
from tests.inference.running import CHAT, COMPLETIONS, HELLO, Running

BODIES: dict[str, dict[str, Any]] = {CHAT: HELLO, COMPLETIONS: {"prompt": "The river"}}
PARAMETERS = [
    (path, name)
    for path, types in ((CHAT, of_chats), (COMPLETIONS, of_completions))
    for name in sorted(typing.get_type_hints(types.CompletionCreateParamsBase))
    if name not in BODIES[path]
]


def status(api: Running, path: str, **more: Any) -> tuple[int, str]:
    reply = api.post(path, **{**BODIES[path], "max_tokens": 1, **more})
    return reply.status_code, reply.json().get("error", {}).get("message", "")


@pytest.mark.parametrize(("path", "name"), PARAMETERS)
def test_a_parameter_of_the_client_is_known(api: Running, path: str, name: str) -> None:
    """Null is as if it were left out; what is no value of it is refused by its name, if it is read at all."""
    assert status(api, path, **{name: None}) == (200, "")
    code, message = status(api, path, **{name: [["no value"]]})
    assert code == (200 if name in NEVER else 400)
    assert code == 200 or (name in message and "no such parameter" not in message)


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("name", UNLESS)
def test_a_neutral_value_is_taken(api: Running, path: str, name: str) -> None:
    for value in UNLESS[name]:
        assert status(api, path, **{name: value}) == (200, "")
