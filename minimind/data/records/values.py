"""Values of a record as what they must be, or `BadRecord` with the reason: nothing is guessed from the wrong type."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from minimind.base.defaults import Kind
from minimind.data.read.json_text import JsonParser
from minimind.data.read.tables import Unusable


class BadRecord(ValueError):
    """The record can't be used; the text is the reason shown after file:line.

    ``kind``: what the record was meant for, where that is known although it can't be used.
    """

    def __init__(self, reason: str, kind: Kind | None = None) -> None:
        super().__init__(reason)
        self.kind = kind


def says_nothing(value: object) -> bool:
    """Whether a field might as well be missing: null, or empty."""
    return value is None or (isinstance(value, (str, list, dict)) and not value)


def visible(value: object, where: str) -> str:
    """A string with a visible character."""
    text = clean(string(value, where), where)
    if not text or text.isspace():
        raise BadRecord(f"{where} is empty")
    return text


def string(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise BadRecord(f"{where} is {name_of(value)}, not a string")
    return value


def parsed(value: object, where: str) -> object:
    """The value that a string of JSON spells (MiniMind, OpenAI and CSV nest JSON so); any other value as it is."""
    if not isinstance(value, str):
        return value
    try:
        return JsonParser().parse(value)
    except ValueError as error:
        raise BadRecord(f"{where} is a string that is {str(error).removeprefix('not JSON: ')}, not JSON") from None


def spelled(value: object, where: str) -> str:
    """The value as JSON."""
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):  # a cell of a table that is no JSON, or nested too deeply
        raise BadRecord(f"{where} can't be written as JSON") from None


_UNUSABLE = re.compile("[\0\ud800-\udfff]")


def clean(text: str, where: str) -> str:
    """The text, unless it holds NUL or half of a surrogate pair (which is also how undecodable bytes arrive)."""
    if found := _UNUSABLE.search(text):
        code = ord(found[0])
        what = "a NUL character" if not code else f"a lone surrogate (U+{code:04X})"
        if 0xDC80 <= code <= 0xDCFF:  # below: a byte of a seven-bit encoding, or half of a pair
            what = f"a byte that is not text in the file's encoding (0x{code - 0xDC00:02X}) or a lone surrogate"
        raise BadRecord(f"{where} holds {what} at character {found.start() + 1}")
    return text


def name_of(value: object) -> str:
    """What a value is, in a reason: "null", "a number", "an object"."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return "a number"
    if isinstance(value, Unusable):
        return str(value)
    return {"str": "a string", "list": "a list", "dict": "an object"}.get(
        type(value).__name__, f"a {type(value).__name__}"
    )


def keys_of(record: Mapping[str, object]) -> str:
    keys = [str(key)[:40] for key in record]
    return ", ".join(keys[:8]) + (", ..." if len(keys) > 8 else "") if keys else "no fields"


def short(value: object) -> str:
    return repr(value)[:60] if isinstance(value, str) else name_of(value)
