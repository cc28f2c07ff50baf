"""Reading a DeepSpeed JSON the way DeepSpeed reads it, but keeping the line of every key.

DeepSpeed parses with hjson, so comments, trailing commas and unquoted keys are legal, and duplicate keys are
refused. hjson gives no positions for what it accepts; ``key_lines`` scans the text a second time for them.
Known weakness: the scan knows hjson's common forms; on an exotic one it may miss a key, and then a message
names the file without a line.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from minimind.base.errors import UserError
from minimind.base.shipped import CONFIG_DIRECTORY, from_here
from minimind.base.strict.json_text import read_text_named, refuse_depth
from minimind.config.run import RunConfig

Path_ = tuple[str, ...]
MAX_BYTES = 256 << 10  # DeepSpeed's own examples have some kilobytes

_SKIP = re.compile(r"(?:[\s,]|#[^\n]*|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_KEY = re.compile(r"\"((?:[^\"\\]|\\.)*)\"\s*:|'((?:[^'\\]|\\.)*)'\s*:|([^\s,:\[\]{}\"']+)\s*:")
_STRING = re.compile(r"'''.*?'''|\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'", re.DOTALL)
_BARE = re.compile(r"[^,\]}\n#]*")


@dataclass(frozen=True)
class JsonSource:
    """A parsed config: ``values``, the ``name`` to print and the line of each key (empty for a dict from
    Python).
    """

    values: dict[str, Any]
    name: str
    lines: Mapping[Path_, list[int]] = field(default_factory=dict)

    def place(self, path: Path_) -> str:
        """``file:line`` of a key, or of its nearest known section; the file alone if none is known."""
        for size in range(len(path), 0, -1):
            if path[:size] in self.lines:
                return f"{self.name}:{self.lines[path[:size]][0]}"
        return self.name


def key_lines(text: str) -> dict[Path_, list[int]]:
    """The lines (from 1) of every object key in ``text``, by its path."""
    lines: dict[Path_, list[int]] = {}
    stack: list[tuple[str, Path_]] = []  # ("{" or "[", path of that object)
    position, name = 0, ""
    while (position := _skip(text, position)) < len(text):
        character = text[position]
        inside, prefix = stack[-1] if stack else ("", ())
        key = _KEY.match(text, position) if inside == "{" else None
        if key:
            name = next(group for group in key.groups() if group is not None)
            lines.setdefault((*prefix, name), []).append(text.count("\n", 0, position) + 1)
            position = _skip(text, key.end())
            if text[position : position + 1] not in ("{", "["):
                position = _after_value(text, position)
        elif character in "{[":
            # an object in a list gets a path of its own, so that two items' equal keys are no duplicates
            below = (*prefix, name) if inside == "{" else (*prefix, f"[{position}]") if inside == "[" else prefix
            stack.append((character, below))
            position += 1
        elif character in "}]":
            stack = stack[:-1]
            position += 1
        else:
            position = max(_after_value(text, position), position + 1)
    return lines


def _skip(text: str, position: int) -> int:
    """Past white space, commas and comments."""
    match = _SKIP.match(text, position)
    assert match  # nothing, at the least
    return match.end()


def _after_value(text: str, position: int) -> int:
    match = _STRING.match(text, position) or _BARE.match(text, position)
    assert match  # nothing, at the least
    return match.end()


def _duplicates(lines: Mapping[Path_, list[int]], name: str) -> list[str]:
    return [
        f'{name}:{places[-1]}: duplicate key "{".".join(path)}" (first at line {places[0]}): keep one'
        for path, places in lines.items()
        if len(places) > 1
    ]


def chosen_source(
    option: str | Path | Mapping[str, Any] | JsonSource | None, run: RunConfig
) -> str | Path | JsonSource:
    """The config that holds: the command line's ``option``, else the YAML's ``deepspeed``, a path or a section.

    Raises UserError if there is none.
    """
    if option is not None:
        return option if isinstance(option, (str, Path)) else read_source(option)
    if run.deepspeed is None:
        raise UserError(
            "no DeepSpeed config: pass --deepspeed_config a file of ds_configs/, or write `deepspeed:` in "
            "the YAML, a path or the JSON's sections"
        )
    if isinstance(run.deepspeed, Path):
        return run.deepspeed
    name, lines = run.json_lines()
    return JsonSource(copy.deepcopy(run.deepspeed), name, lines)


def read_source(config: str | Path | Mapping[str, Any] | JsonSource) -> JsonSource:
    """Parse a path or take a dict or JsonSource (copied). Raises UserError with file:line:column for a syntax error, a
    missing file, a duplicate key or a top level that is not an object.
    """
    if isinstance(config, JsonSource):
        return replace(config, values=copy.deepcopy(config.values))
    if isinstance(config, Mapping):
        return JsonSource(copy.deepcopy(dict(config)), "the DeepSpeed config")
    path = Path(config)
    try:
        text = read_text_named(path, MAX_BYTES)
    except FileNotFoundError:
        there = from_here(CONFIG_DIRECTORY)
        raise UserError(f"{path}: no such DeepSpeed config: the shipped ones are in {there}") from None
    except OSError as error:
        raise UserError(f"{path}: cannot read the DeepSpeed config: {error.strerror}") from None
    except ValueError as error:
        raise UserError(f"{path}: {error}") from None
    # A dependency of deepspeed, kept out of `minimind --help`
    import hjson

    try:
        values = hjson.loads(text, object_pairs_hook=lambda pairs: dict(pairs))
    except hjson.HjsonDecodeError as error:
        reason = f"{error.msg[:1].lower()}{error.msg[1:]}"
        raise UserError(f"{path}:{error.lineno}:{error.colno}: not valid JSON: {reason}") from None
    except RecursionError:
        raise UserError(f"{path}: nested too deeply") from None
    except (ValueError, OverflowError) as error:  # a number of thousands of digits, or 1e400
        raise UserError(f"{path}: not valid JSON: {error}") from None
    try:
        refuse_depth(values)
    except ValueError as error:
        raise UserError(f"{path}: {error}") from None
    if not isinstance(values, dict):
        raise UserError(f"{path}:1:1: not valid JSON: the top level must be an object {{...}}")
    lines = key_lines(text)
    if found := _duplicates(lines, str(path)):
        raise UserError("; ".join(found))
    return JsonSource(values, str(path), lines)
