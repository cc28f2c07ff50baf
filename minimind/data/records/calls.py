"""Calls of tools, however they are written: the function's name and its arguments as an object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from minimind.data.records.values import BadRecord, name_of, parsed, short, spelled

Call = dict[str, object]
CALL_START, CALL_END = "<tool_call>", "</tool_call>"
_ABOUT = ("id", "type", "index", "function")  # of a call, beside what is called


def calls_of(turn: Mapping[str, object], where: str) -> list[Call]:
    """OpenAI's ``tool_calls`` and ``function_call``, both also as JSON in a string. BadRecord for what names no
    function, or whose arguments are no object."""
    calls = parsed(turn.get("tool_calls") or None, f"{where}: tool_calls") or []
    if not isinstance(calls, list):
        raise BadRecord(f"{where}: tool_calls is {name_of(calls)}, not a list")
    legacy = parsed(turn.get("function_call") or None, f"{where}: function_call")
    return [_call(call, where) for call in [*calls, *([legacy] if legacy else [])]]


def spoken_calls(text: str, where: str) -> tuple[str, list[Call]]:
    """What a turn of the function_call role says: its blocks, and the calls if it is one in JSON, or a list of them.

    One call is written as it is if its arguments are an object already.
    """
    try:
        said = parsed(text, where)
        calls = [_call(call, where) for call in (said if isinstance(said, list) else [said])]
    except BadRecord:
        return block(text), []
    as_it_is = isinstance(said, dict) and not isinstance(said.get("arguments"), str)
    return block(text) if as_it_is or not calls else blocks(calls, where), calls


def blocks(calls: Sequence[Call], where: str) -> str:
    """Each call in a block of its own."""
    return "\n".join(block(spelled(call, where)) for call in calls)


def block(call: str) -> str:
    """A call as our template writes it."""
    return f"{CALL_START}\n{call}\n{CALL_END}"


def beside_calls(turn: Mapping[str, object]) -> list[str]:
    """Names of what the calls of a turn have beside a function, that nothing reads."""
    calls = turn.get("tool_calls")
    found = [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    return [name for call in found if isinstance(call.get("function"), dict) for name in call if name not in _ABOUT]


def _call(call: object, where: str) -> Call:
    """The name of the function and its arguments as an object, whatever else came with them."""
    function = call.get("function", call) if isinstance(call, dict) else call
    function = {"name": function, **call} if isinstance(function, str) and isinstance(call, dict) else function
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise BadRecord(f"{where}: a tool call that names no function")
    kept = {key: value for key, value in function.items() if key not in _ABOUT}
    for key in ("arguments", "parameters"):
        if key in kept:
            kept[key] = _arguments(kept[key], f"{where}: the arguments of {short(function['name'])}")
    return kept


def _arguments(value: object, where: str) -> object:
    found = parsed(value, where) if value not in (None, "") else {}
    if not isinstance(found, dict):
        raise BadRecord(f"{where} are {name_of(found)}, not an object")
    return found
