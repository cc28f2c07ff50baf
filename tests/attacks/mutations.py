"""Every way to put a wrong value into a file: for each place in its structure each of ``WRONG``, and its absence."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Sequence
from typing import Any

import yaml

DEEP: Any = []
for _ in range(500):
    DEEP = [DEEP]
# 1e400 is written as such: JSON's grammar knows no largest number.
HUGE_FLOAT = "<1e400>"
WRONG: dict[str, Any] = {
    "null": None,
    "true": True,
    "empty text": "",
    "text": "x",
    "formula": "$\\frac{",
    "surrogate": "\ud800",
    "minus one": -1,
    "zero": 0,
    "a half": 0.5,
    "1e400": HUGE_FLOAT,
    "NaN": float("nan"),
    "huge": 10**30,
    "large": 2**62,
    "long": "x" * 5000,
    "NUL": "a\0b",
    "empty list": [],
    "list": [1],
    "empty object": {},
    "object": {"x": {"y": 1}},
    "deep": DEEP,
    "absent": ...,
}
Place = tuple[Any, ...]


def places(value: Any, above: Place = ()) -> Iterator[Place]:
    """The path of every value in ``value``, its own (empty) one first."""
    yield above
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in inside:
        yield from places(below, (*above, key))


def mutations(value: Any, names: Sequence[str] = tuple(WRONG)) -> Iterator[tuple[str, Any]]:
    """(what was done, the value with it) for each place and each of the ``names`` of ``WRONG``."""
    for place in places(value):
        for name in names:
            wrong = WRONG[name]
            if not place:
                if wrong is not ...:
                    yield f"all: {name}", wrong
                continue
            mutated = copy.deepcopy(value)
            parent = mutated
            for key in place[:-1]:
                parent = parent[key]
            if wrong is ...:
                del parent[place[-1]]
            else:
                parent[place[-1]] = wrong
            yield f"{'.'.join(map(str, place))}: {name}", mutated


def as_json(value: Any) -> bytes:
    """As it would stand in a file; deep values, too, which json.dumps can't write."""
    return json.dumps(value).replace(f'"{HUGE_FLOAT}"', "1e400").encode()


def as_yaml(value: Any) -> bytes:
    """The same as YAML; a deep list and a surrogate by way of JSON's spelling, which YAML reads."""
    try:
        text = yaml.safe_dump(value, allow_unicode=True)
        return text.replace(HUGE_FLOAT, "1e400").encode()
    except (RecursionError, UnicodeEncodeError):
        return as_json(value)
