"""Tools in a request, and a conversation with them as turns for the model's own chat template.

Contract. Tools, calls and reasoning are written as training writes them (data/records/turns.py), or as the template of
others does, which is given them apart. What no template could write is refused by the name of its field; what this
model's leaves out, by the template itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from minimind.base.errors import UserError
from minimind.base.strict.json_text import parse_json
from minimind.data.records.turns import Notes, system_turns, turn_list
from minimind.data.records.values import BadRecord
from minimind.inference.serving.fields import Strict, Text, few_fields
from minimind.text.chat import Turn

if TYPE_CHECKING:
    from minimind.inference.serving.requests import ChatMessage


def _without_nulls(values: Any) -> Any:
    """Null means not given."""
    given = few_fields(values)
    return {name: value for name, value in given.items() if value is not None} if isinstance(given, dict) else given


def _an_object(text: str) -> str:
    if not isinstance(parse_json(text), dict):
        raise ValueError("must be the JSON text of an object")
    return text


class Function(Strict):
    """What is called. ``arguments``: JSON text, as OpenAI has it; "" for none."""

    name: Annotated[Text, Field(min_length=1)]
    arguments: Annotated[Text, AfterValidator(lambda text: text and _an_object(text))] = ""


class _Call(Strict):
    """A call that the model asked for, in a message that is sent back."""

    function: Annotated[Function, BeforeValidator(_without_nulls)]
    type: Literal["function"] = "function"
    id: str = ""
    index: int = 0


class _Offered(Strict):
    """A function that may be called; ``parameters``: a JSON schema."""

    name: Annotated[Text, Field(min_length=1)]
    description: Text = ""
    parameters: Annotated[dict[str, Any], Field(default_factory=dict)]
    strict: Literal[False] = False  # nothing holds a model to a schema


class _Tool(Strict):
    """A tool as templates take it."""

    type: Literal["function"]
    function: Annotated[_Offered, BeforeValidator(_without_nulls)]

    @property
    def as_given(self) -> dict[str, Any]:
        return self.model_dump(exclude_unset=True)


ToolCall = Annotated[_Call, BeforeValidator(_without_nulls)]
ToolDefinition = Annotated[_Tool, BeforeValidator(_without_nulls)]


def turns_of(messages: Sequence[ChatMessage], tools: Sequence[_Tool]) -> list[Turn]:
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
