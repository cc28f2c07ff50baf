"""``load_run_config``: a run's settings from the defaults, the YAML, ``--set key=value`` and command-line options.

Later sources win. Every problem of every source is reported in one error, each with its place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError

from minimind.base.findings import Finding
from minimind.base.problems import nearest, raise_problems
from minimind.config.run.settings import RunConfig
from minimind.config.run.sources import Given, apply_options, apply_overrides, read_yaml
from minimind.config.run.wording import one_problem
from minimind.config.yaml_names.hugging_face import MEANINGS
from minimind.config.yaml_names.json_homes import json_home
from minimind.config.yaml_names.translate import translate
from minimind.config.yaml_names.words import Words


def load_run_config(
    yaml_path: str | Path | None, set_overrides: Sequence[str] = (), cli: Mapping[str, object] | None = None
) -> RunConfig:
    """Read, merge and check a run's configuration.

    ``cli`` holds command-line options by field name; ``None`` values are options that were not given. Raises
    one UserError that lists every problem with its place: ``file:line``, the ``--set`` text or the option.
    """
    given = read_yaml(Path(yaml_path)) if yaml_path is not None else Given()
    findings = _translate(given)
    if yaml_path is not None:
        _find_json(given, Path(yaml_path).parent)
    apply_overrides(given, set_overrides)
    apply_options(given, cli or {})
    findings += _translate(given, overriding=True)
    config = _check(given, default_place=str(yaml_path) if yaml_path is not None else "the command line")
    raise_problems(given.problems, "the run configuration")
    assert config is not None  # a problem was raised otherwise
    config.remember(given.places, findings)
    return config


def _find_json(given: Given, directory: Path) -> None:
    """A JSON that is not where the run starts is looked for in the YAML's own ``directory``."""
    name = given.values.get("deepspeed")
    if isinstance(name, str) and not Path(name).exists() and (directory / name).is_file():
        given.values["deepspeed"] = str(directory / name)


def _translate(given: Given, overriding: bool = False) -> list[Finding]:
    """Put other people's names for ours, in place; what of them has no effect."""
    words = Words(given.values, given.places, given.problems, overriding=overriding)
    translate(words)
    return words.findings


def _check(given: Given, default_place: str) -> RunConfig | None:
    """The settings, or None with the reasons among the problems; a name that is no setting is one of them."""
    for name in [name for name in given.values if name not in RunConfig.model_fields]:
        given.problems.append(f'{given.place([name], default_place)}: unknown key "{name}"{_hint(str(name))}')
        del given.values[name]
    for name in [name for name in _numbers() if isinstance(given.values.get(name), bool)]:
        shown = str(given.values.pop(name)).lower()  # pydantic would make 1 or 0 of it
        given.problems.append(f"{given.place([name], default_place)}: {name}: expected a number, got {shown}")
    try:
        return RunConfig(**given.values)
    except ValidationError as error:
        for item in error.errors():
            given.problems.append(f"{given.place(item['loc'], default_place)}: {one_problem(item, RunConfig)}")
        return None


def _numbers() -> list[str]:
    """The fields that hold an int, or a float, or none; a cadence, which is either, refuses a switch itself."""
    kinds = {name: set(_parts(field.annotation)) & _PLAIN for name, field in RunConfig.model_fields.items()}
    return [name for name, found in kinds.items() if found in ({int}, {float})]


_PLAIN: set[Any] = {int, float, bool, str}


def _parts(annotation: Any) -> Iterator[Any]:
    """Every type inside a union or an Annotated."""
    yield annotation
    for part in get_args(annotation):
        yield from _parts(part)


def _hint(name: str) -> str:
    """Where an unknown key belongs, or the nearest name."""
    known = f": here it is {MEANINGS[name].text}" if name in MEANINGS and MEANINGS[name].status == "other" else ""
    return known or json_home(name) or nearest(name, [*RunConfig.model_fields, *MEANINGS])
