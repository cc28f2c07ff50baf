"""Names and types of a DeepSpeed config at every depth, and the ``Draft`` that all checks write to.

Nothing raises: each check records what it found, so that a user sees every problem at once. A wrong value is
removed after it is recorded, so that later checks meet only right types.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from minimind.base.findings import Finding
from minimind.base.problems import nearest
from minimind.config.deepspeed.schema import MONITORS, REMOVED, REMOVED_ZERO, TOP_LEVEL, ValueKind, removed_message
from minimind.config.deepspeed.source import JsonSource

AUTO = "auto"


@dataclass
class Draft:
    """A config on its way from the file to the engine: its values, and what was found wrong or worth saying."""

    source: JsonSource
    values: dict[str, Any]
    problems: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    kind: str = "pretrain"  # or "sft": what the config is for
    defaulted: list[str] = field(default_factory=list)  # "auto" keys that nobody fills: DeepSpeed's default applies

    def problem(self, path: str, message: str) -> None:
        """Record ``file:line: key: message``."""
        self.problems.append(f"{self.source.place(tuple(path.split('.')))}: {path}: {message}")

    def find(self, code: str, message: str, advice: str, **values: float) -> None:
        """Record one finding."""
        self.findings.append(Finding(code, message, advice, values=values))

    def get(self, path: str, default: Any = None) -> Any:
        """The value at a dotted path, or ``default``."""
        node: Any = self.values
        for name in path.split("."):
            if not isinstance(node, Mapping) or name not in node:
                return default
            node = node[name]
        return node

    def set(self, path: str, value: Any) -> None:
        """Set the value at a dotted path, making sections on the way."""
        *sections, last = path.split(".")
        node = self.values
        for name in sections:
            node = node.setdefault(name, {})
        node[last] = value

    def drop(self, path: str) -> None:
        """Delete a dotted path if it is there."""
        *sections, last = path.split(".")
        node = self.get(".".join(sections)) if sections else self.values
        if isinstance(node, dict):
            node.pop(last, None)

    def on(self, section: str) -> bool:
        """Whether ``section.enabled`` is true."""
        return self.get(f"{section}.enabled") is True


def check_names_and_types(draft: Draft) -> None:
    """Unknown and removed keys at every depth, and values of the wrong type; right ones are coerced as pydantic
    would.
    """
    for key in [key for key in draft.values if key in REMOVED]:
        draft.problem(key, removed_message(key, REMOVED[key]))
        del draft.values[key]
    zero = draft.values.get("zero_optimization")
    if isinstance(zero, bool):  # DeepSpeed's oldest form
        draft.values["zero_optimization"] = {"stage": int(zero)}
    elif isinstance(zero, dict):
        for key in [key for key in zero if key in REMOVED_ZERO]:
            draft.problem(f"zero_optimization.{key}", removed_message(key, REMOVED_ZERO[key]))
            del zero[key]
    _check_section(draft, draft.values, TOP_LEVEL, "")


def _check_section(draft: Draft, section: dict[str, Any], kinds: Mapping[str, ValueKind], prefix: str) -> None:
    for key in list(section):
        path, value = f"{prefix}{key}", section[key]
        if key.startswith(("_", "//", "#")):
            del section[key]  # JSON's usual stand-in for a comment
        elif key not in kinds:
            draft.problem(path, f"unknown key{nearest(key, kinds)}; {_what_deepspeed_does(prefix)}")
            del section[key]
        elif value is None:
            del section[key]  # null is DeepSpeed's spelling of "not given"
        elif isinstance(kinds[key], dict):
            if isinstance(value, dict):
                _check_section(draft, value, kinds[key], f"{path}.")
            else:
                draft.problem(path, f"expected an object {{...}}, got {value!r}")
                del section[key]
        elif value != AUTO:
            _coerce(draft, section, key, kinds[key], path)


def _what_deepspeed_does(prefix: str) -> str:
    if prefix == "compile.":  # options of torch.compile in old DeepSpeed versions
        return "DeepSpeed 0.19.8 refuses it; for torch.compile set `compile: on` in the YAML"
    checked = prefix.split(".")[0] in _CHECKED_BY_DEEPSPEED
    return "DeepSpeed would refuse it" if checked else "DeepSpeed would silently ignore it"


# The sections that are pydantic models in DeepSpeed; in the others an unknown key passes unseen
_CHECKED_BY_DEEPSPEED = {"fp16", "bf16", "zero_optimization", "compile", "timers", *MONITORS}


def check_params(draft: Draft, section: str, kinds: Mapping[str, ValueKind], owner: str) -> None:
    """The ``params`` of an optimizer or scheduler, whose keys depend on its type."""
    params = draft.get(f"{section}.params", {})
    if not isinstance(params, dict):
        draft.problem(f"{section}.params", f"expected an object {{...}}, got {params!r}")
        draft.set(f"{section}.params", {})
        return
    for key in list(params):
        path = f"{section}.params.{key}"
        if key == "max_grad_norm":
            draft.problem(path, 'DeepSpeed refuses it here: set "gradient_clipping" at the top level instead')
        elif key not in kinds:
            draft.problem(
                path, f"not a parameter of this trainer's {owner}{nearest(key, kinds)}; it takes {', '.join(kinds)}"
            )
        elif params[key] is None:
            del params[key]
        elif params[key] != AUTO:
            _coerce(draft, params, key, kinds[key], path)


def _coerce(draft: Draft, section: dict[str, Any], key: str, kind: ValueKind, path: str) -> None:
    """Replace a value by its typed form, as pydantic would ("2" -> 2, 5e8 -> 500000000). A wrong one is recorded and
    removed, so that later checks meet only right types.
    """
    value = section[key]
    try:
        section[key] = _convert(value, kind)
    except (ValueError, TypeError, OverflowError):
        wanted = " or ".join(f'"{choice}"' for choice in kind) if isinstance(kind, tuple) else _WANTED[kind]
        draft.problem(path, f"expected {wanted}, got {value!r}")
        del section[key]


_WANTED = {
    "bool": "true or false",
    "int": "a whole number",
    "number": "a number",
    "str": "a string",
    "list": "a list [...]",
}


def _convert(value: Any, kind: ValueKind) -> Any:
    if kind == "any":
        return value
    if isinstance(kind, tuple):
        return _choice(value, kind)
    if kind == "bool":
        return _boolean(value)
    if kind in ("int", "number"):
        return _number(value, whole=kind == "int")
    if not isinstance(value, str if kind == "str" else list):
        raise ValueError
    return value


def _choice(value: Any, choices: tuple[str, ...]) -> str:
    text = str(value).lower()
    if text not in choices:
        raise ValueError
    return text


def _boolean(value: Any) -> bool:
    words = {"true": True, "false": False, "1": True, "0": False}
    if str(value).lower() not in words:
        raise ValueError
    return words[str(value).lower()]


def _number(value: Any, whole: bool) -> int | float:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError
    number = float(value) if not isinstance(value, int) else value
    if not math.isfinite(number):
        raise ValueError
    if whole and number != int(number):
        raise ValueError
    return int(number) if whole else number


def modernise(draft: Draft) -> None:
    """Old spellings that DeepSpeed still accepts -> today's; Python's order of precedence is DeepSpeed's."""
    old = draft.values.pop("bfloat16", None)
    if old is not None:
        draft.values.setdefault("bf16", old)
    zero = draft.get("zero_optimization", {})
    for key, target in (("cpu_offload", "offload_optimizer"), ("cpu_offload_param", "offload_param")):
        if isinstance(zero, dict) and zero.pop(key, None) is True:
            zero.setdefault(target, {"device": "cpu"})
    if isinstance(zero, dict):
        zero.pop("cpu_offload_use_pin_memory", None)  # DeepSpeed only warns about it
        gather = zero.pop("stage3_gather_fp16_weights_on_model_save", None)
        if gather is not None:
            zero.setdefault("stage3_gather_16bit_weights_on_model_save", gather)
        for name in [name for name in zero if f"stage3_{name}" in zero]:
            draft.problem(
                f"zero_optimization.{name}", f"is given as stage3_{name} too, and DeepSpeed stops at that: keep one"
            )
