"""The messages of a chat request, and the conversation that they are for the model's template.

Contract: tools, calls and reasoning stand in the turns where training had them (data/records/turns.py); a template of
others is given them apart, and refuses what it leaves out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from minimind.base.errors import UserError
from minimind.data.records.turns import Notes, system_turns, turn_list
from minimind.data.records.values import BadRecord
from minimind.inference.serving.fields import Strict, Text, few_fields
from minimind.inference.serving.neutral import MESSAGE_NEVER, MESSAGE_UNLESS, without_neutral
from minimind.inference.serving.tools import ToolCall, ToolDefinition
from minimind.text.chat import Role, Turn


def _joined_parts(content: Any) -> Any:
    """A message's content: a string, or a list of text parts, which are joined."""
    if not isinstance(content, list):
        return content
    for part in content:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise ValueError('every part must be {"type": "text", "text": "..."}: this model reads text only')
    return "".join(part["text"] for part in content)


def _system(role: Any) -> Any:
    """OpenAI's newer name for it."""
    return "system" if role == "developer" else role


class ChatMessage(Strict):
    """One turn of a chat. ``reasoning_content`` and ``tool_calls``: of an answer, as it was told."""

    role: Annotated[Role, BeforeValidator(_system)]
    content: Annotated[Text, BeforeValidator(_joined_parts)]
    reasoning_content: Text = ""
    tool_calls: Annotated[list[ToolCall], Field(default_factory=list)]

    @model_validator(mode="before")
    @classmethod
    def _without_neutral(cls, values: Any) -> Any:
        given = without_neutral(few_fields(values), MESSAGE_NEVER, MESSAGE_UNLESS)
        if isinstance(given, dict) and given.get("tool_calls"):
            given.setdefault("content", "")  # an answer that only calls
        return given

    @model_validator(mode="after")
    def _of_an_answer(self) -> ChatMessage:
        if self.role != "assistant" and (self.tool_calls or self.reasoning_content):
            raise ValueError("only the assistant's messages have tool_calls and reasoning_content")
        return self


def turns_of(messages: Sequence[ChatMessage], tools: Sequence[ToolDefinition]) -> list[Turn]:
    """The conversation, its tools with the system message. Raises UserError."""
    turns = [_turn(message, f"messages[{place}]") for place, message in enumerate(messages)]
    if not tools:
        return turns
    system = messages[0].content if messages[0].role == "system" else None
    try:
        told = system_turns(system, [tool.as_given for tool in tools], "tools")
    except BadRecord as error:
        raise UserError(str(error)) from None
    return [*told, *(turns if system is None else turns[1:])]


def _turn(message: ChatMessage, where: str) -> Turn:
    if not message.tool_calls and not message.reasoning_content:
        return Turn(message.role, message.content)
    calls = [call.model_dump(include={"function"}) for call in message.tool_calls]
    said = {"role": "assistant", "content": message.content, "tool_calls": calls}
    try:
        (turn,) = turn_list([{**said, "reasoning_content": message.reasoning_content}], Notes())
    except BadRecord as error:
        raise UserError(f"{where}: {str(error).removeprefix('turn 1 ')}") from None
    return turn
