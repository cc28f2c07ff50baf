"""What a conversation is made of, and what rendering one gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

Role = Literal["system", "user", "assistant", "tool"]
ROLES: tuple[Role, ...] = get_args(Role)


@dataclass(frozen=True)
class Turn:
    """One message. ValueError for a role that no template knows. ``trained`` False: an answer as context.

    ``content`` is all that the turn says, as our own template writes it: a block of tools, calls, reasoning. Where a
    template of others is to write these, ``message`` has them apart, as transformers takes a message (None: role and
    content; empty: the turn is no message), and ``tools`` is what the turn brought as such, a list or its JSON. Turns
    that say the same are equal.
    """

    role: Role
    content: str
    trained: bool = True
    message: Mapping[str, Any] | None = field(default=None, compare=False)
    tools: object = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise ValueError(f"unknown role {self.role!r}; known: {', '.join(ROLES)}")


@dataclass(frozen=True)
class Rendered:
    """Token ids and, for each, whether it is a training target. Both lists have the same length.

    ``unspoken``: answers whose reasoning the template leaves out.
    """

    ids: list[int]
    trainable: list[bool]
    unspoken: int = 0


@dataclass(frozen=True)
class Fitted:
    """A conversation that fits. `turns`: indices of those kept; `answer_cut`: the last answer lost its end."""

    rendered: Rendered
    turns: tuple[int, ...]
    answer_cut: bool


class NotRendered(ValueError):
    """A conversation that the chat template can't render, or whose answers can't be told apart. The text says why."""


def is_answer(turn: Turn) -> bool:
    """Whether the turn's content is what the model learns to say."""
    return turn.role == "assistant" and turn.trained
