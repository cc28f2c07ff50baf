"""pydantic's errors in the words of this trainer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

from minimind.base.problems import nearest


def one_problem(error: Any, owner: type[BaseModel]) -> str:
    """pydantic's error about a value for ``owner`` as ``name: reason (got value)``."""
    if error["type"] == "extra_forbidden":
        *outer, key = error["loc"]
        where = f"{'.'.join(str(part) for part in outer)}: " if outer else ""
        return f'{where}unknown key "{key}"{nearest(str(key), _section(owner, outer).model_fields)}'
    name = ".".join(str(part) for part in error["loc"] if not str(part).startswith("function-"))
    message = error["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    message = "a path" if error["type"] == "path_type" else message
    wanted = "" if error["type"] == "value_error" else f"expected {message}"
    got = "" if error["type"] in ("value_error", "missing") else f", got {error['input']!r}"
    return f"{name}: {wanted or message}{got}" if name else wanted or message


def _section(owner: type[BaseModel], names: Sequence[Any]) -> type[BaseModel]:
    """The class of the section that these keys lead to."""
    for name in names:
        section = owner.model_fields[name].annotation
        assert isinstance(section, type)  # a key that isn't known is not inside a list or a union
        assert issubclass(section, BaseModel)
        owner = section
    return owner
