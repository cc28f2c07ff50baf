"""Tools that a request offers, and the calls that a message of it has.

Contract. What no template could write is refused by the name of its field.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from minimind.base.strict.json_text import parse_json
from minimind.inference.serving.fields import Strict, Text, few_fields


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
