"""What the user gives a run, laid over one another: a YAML, ``--set key=value``, options; later ones win.

Nothing here knows which settings there are. What can't be read goes to ``problems`` with its place, so that a user
sees all of them at once; only a file that can't be read at all raises UserError.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from minimind.base.errors import UserError
from minimind.base.strict.json_text import read_text_named
from minimind.base.strict.yaml_text import parse_yaml


@dataclass
class Given:
    """Settings by name, nested as in the YAML; the place of each by its path; and what is wrong with them."""

    values: dict[str, Any] = field(default_factory=dict)
    places: dict[tuple[str, ...], str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def place(self, path: Sequence[Any], default: str) -> str:
        """The most exact known place of a path; ``default`` if none is known."""
        names = tuple(str(part) for part in path)
        known = (self.places.get(names[:size]) for size in range(len(names), 0, -1))
        return next((place for place in known if place is not None), default)


def read_yaml(path: Path) -> Given:
    """The mapping in ``path``, with ``file:line`` of each key; a key that is there twice is a problem.

    Raises UserError for a file that can't be read, is no YAML or holds no mapping.
    """
    try:
        values, root = parse_yaml(read_text_named(path))
    except OSError as error:
        raise UserError(f"{path}: cannot read the config: {error.strerror}") from None
    except ValueError as error:
        reason = str(error)
        raise UserError(f"{path}{reason if reason.startswith(':') else f': {reason}'}") from None
    if values is not None and not isinstance(values, dict):
        raise UserError(f"{path}:1: expected a mapping (key: value lines), got a {type(values).__name__}")
    given = Given(values or {})
    _collect_places(given, root, (), path)
    return given


def _collect_places(given: Given, node: yaml.Node | None, prefix: tuple[str, ...], path: Path) -> None:
    if not isinstance(node, yaml.MappingNode):
        return
    for key, value in node.value:
        name = (*prefix, str(key.value))
        place = f"{path}:{key.start_mark.line + 1}"
        if name in given.places:
            first = given.places[name]
            given.problems.append(f'{place}: duplicate key "{".".join(name)}" (first at {first}): keep one')
        given.places.setdefault(name, place)
        _collect_places(given, value, name, path)


def apply_overrides(given: Given, texts: Sequence[str]) -> None:
    """Lay ``key=value`` texts of ``--set`` over it; the value is YAML, the key may be dotted."""
    for text in texts:
        key, equals, raw = text.partition("=")
        key = key.strip().replace("-", "_")
        if not equals or not key:
            given.problems.append(f'--set {text}: expected key=value, for example "--set learning_rate=3e-4"')
            continue
        try:
            _merge(given.values, key, parse_yaml(raw)[0])
        except ValueError as error:
            reason = str(error).partition(": ")[2]
            given.problems.append(f"--set {text[:200]}: {reason}; quote the value if it is a text")
        given.places[tuple(key.split("."))] = f"--set {text}"
        given.places[(key.split(".")[0],)] = f"--set {text}"


def apply_options(given: Given, options: Mapping[str, object]) -> None:
    """Lay command-line options, by field name, over it; ``None``: the option was not given."""
    for name, value in options.items():
        if value is not None:
            _merge(given.values, name, value)
            given.places[(name,)] = f"--{name.replace('_', '-')}"


def _merge(values: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key; ``model.hidden_size`` on top of ``model: 26m`` becomes a preset with an override."""
    head, _, tail = key.partition(".")
    if not tail:
        values[head] = value
        return
    below = values.get(head)
    below = {"preset": below} if isinstance(below, str) else dict(below or {}) if isinstance(below, dict) else {}
    _merge(below, tail, value)
    values[head] = below
