"""Names and types of a DeepSpeed config at every depth, and the ``Draft`` that all checks write to.

Nothing raises: each check records what it found, so that a user sees every problem at once. A wrong value is
removed after it is recorded, so that later checks meet only right types.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from minimind.base.findings import Finding
from minimind.base.problems import nearest
from minimind.config.deepspeed.homes import home_of, squeeze
from minimind.config.deepspeed.schema import MONITORS, OFFLOAD_OPTIMIZER, TOP_LEVEL, ValueKind
from minimind.config.deepspeed.source import JsonSource

AUTO = "auto"


@dataclass
class Draft:
    """A config on its way from the file to the engine: its values, and what was found wrong or worth saying."""

    source: JsonSource
    values: dict[str, Any]
    kind: str  # what the config is for: "pretrain" or "sft"
    problems: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    strict: bool = False  # a key that is not used is a problem

    def problem(self, path: str, message: str) -> None:
        """Record ``file:line: key: message``."""
        self.problems.append(f"{self.source.place(tuple(path.split('.')))}: {path}: {message}")

    def find(self, code: str, message: str, advice: str, **values: float) -> None:
        """Record one finding."""
        self.findings.append(Finding(code, message, advice, values=values))

    def unused(self, code: str, path: str, message: str, advice: str) -> None:
        """Record that a key is not used: a finding with its place; under ``--strict`` a problem."""
        if self.strict:
            self.problem(path, f"{message.removeprefix(f'{path}: ')}: {advice} (--strict)")
        else:
            self.find(code, f"{self.source.place(tuple(path.split('.')))}: {message}", advice)

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
    """Unknown keys at every depth, and values of the wrong type; right ones are coerced as pydantic would."""
    zero = draft.values.get("zero_optimization")
    if isinstance(zero, bool):  # DeepSpeed's oldest form
        draft.values["zero_optimization"] = {"stage": int(zero)}
    elif isinstance(zero, dict) and isinstance(zero.get("stage"), bool):  # pydantic's reading of true
        zero["stage"] = int(zero["stage"])
    _check_section(draft, draft.values, TOP_LEVEL, "")


def _check_section(draft: Draft, section: dict[str, Any], kinds: Mapping[str, ValueKind], prefix: str) -> None:
    for key in list(section):
        path, value = f"{prefix}{key}", section[key]
        if key.startswith(("_", "//", "#")):
            del section[key]  # JSON's usual stand-in for a comment
        elif key not in kinds:
            _unknown(draft, path, key, prefix, kinds)
            del section[key]
        elif value is None:
            del section[key]  # null is DeepSpeed's spelling of "not given"
        elif isinstance(kinds[key], dict):
            inner = value if isinstance(value, dict) else _as_section(draft, path, value, kinds[key])
            if inner is None:
                del section[key]
            else:
                section[key] = inner
                _check_section(draft, inner, kinds[key], f"{path}.")
        elif value != AUTO:
            _coerce(draft, section, key, kinds[key], path)


def _as_section(draft: Draft, path: str, value: Any, kinds: Mapping[str, ValueKind]) -> dict[str, Any] | None:
    """The section that a bare value asks for, which DeepSpeed refuses: ``"fp16": true``, ``"offload_param": "cpu"``.

    None: nothing is asked for, or it can't be told what, which is a problem.
    """
    if value in (False, "none", AUTO) and "enabled" not in kinds:
        return None
    key = "enabled" if value in (True, False, AUTO) else "device" if value in OFFLOAD_OPTIMIZER["device"] else ""
    if key not in kinds:
        wanted = '{"enabled": ...}' if "enabled" in kinds else "{...}"
        draft.problem(path, f"expected an object {wanted}, got {value!r}")
        return None
    section, given = f'{{"{key}": {json.dumps(value)}}}', json.dumps(value)
    text = f"{path} {given}: DeepSpeed 0.19.8 refuses a value without its section; taken as {section}"
    draft.unused("value-as-section", path, text, f"write {section}")
    return {key: value}


def _unknown(draft: Draft, path: str, key: str, prefix: str, kinds: Mapping[str, ValueKind]) -> None:
    """A key that is not DeepSpeed's: a problem if it is a slip, else said and not used.

    DeepSpeed stops at it in the sections that it checks, so that there a weaker likeness counts as a slip.
    """
    checked = prefix.split(".")[0] in _CHECKED_BY_DEEPSPEED
    does = "DeepSpeed 0.19.8 refuses" if checked else "DeepSpeed ignores"
    spelled_here = any(squeeze(key) == squeeze(name) for name in kinds)
    home = "" if spelled_here else home_of(key, prefix)
    if home and checked and (squeeze(key) in _OF_THE_UPDATE or "params, as" in home):
        draft.problem(path, f"unknown key: belongs {home}; DeepSpeed would refuse it")
    elif home:
        message = f"{path}: {does} it at this place, and it is not used"
        draft.unused("key-misplaced", path, message, f"it belongs {home}")
    elif slip := nearest(key, _may_be_meant(draft.get(path), kinds), cutoff=_LIKE if checked else _SLIP):
        draft.problem(path, f"unknown key{slip}; DeepSpeed would {'refuse it' if checked else 'silently ignore it'}")
    elif checked:
        draft.unused("key-dropped", path, f"{path}: no key of DeepSpeed's, which refuses it, dropped", "delete it")
    else:
        draft.unused("key-ignored", path, f"{path}: not a key of DeepSpeed's, which ignores it; not used", "delete it")


def _may_be_meant(value: Any, kinds: Mapping[str, ValueKind]) -> list[str]:
    """The keys that a misspelled one's ``value`` could be for: a section has one of its keys, or is a switch."""
    return [
        name
        for name, kind in kinds.items()
        if not isinstance(kind, Mapping)
        or value in (0, 1)  # true and false too
        or (isinstance(value, Mapping) and (not value or value.keys() & kind.keys()))
    ]


# Left out, these would train differently: what DeepSpeed refuses with one of them is not run
_OF_THE_UPDATE = {
    *map(squeeze, ("gradient_clipping", "train_batch_size", "train_micro_batch_size_per_gpu")),
    *map(squeeze, ("gradient_accumulation_steps", "optimizer", "scheduler", "clip_grad", "max_grad_norm")),
}
_SLIP = 0.75  # how like a known key an unknown one is to be a misspelling: "grad_clipping" is, "monitoring" is not
_LIKE = 0.6  # the same, where DeepSpeed itself stops at every unknown key: "offload" may be "offload_param"

# The sections that are pydantic models in DeepSpeed; in the others an unknown key passes unseen
_CHECKED_BY_DEEPSPEED = {"fp16", "bf16", "zero_optimization", "compile", "timers", "comms_logger", *MONITORS}


def check_params(draft: Draft, section: str, kinds: Mapping[str, ValueKind], owner: str) -> None:
    """The ``params`` of an optimizer or scheduler, whose keys depend on its type."""
    params = draft.get(f"{section}.params", {})
    if not isinstance(params, dict):
        draft.problem(f"{section}.params", f"expected an object {{...}}, got {params!r}")
        draft.set(f"{section}.params", {})
        return
    for key in list(params):
        path = f"{section}.params.{key}"
        if key not in kinds:
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
    "names": "a list of strings",
    "count": "a whole number of at least 0",
    "amount": "a number of at least 0",
    "share": "a number from 0 to 1",
}


def _convert(value: Any, kind: ValueKind) -> Any:
    if kind == "any":
        return value
    if isinstance(kind, tuple):
        return _choice(value, kind)
    if kind == "bool":
        return _boolean(value)
    if kind in ("str", "list", "names"):
        return _text_or_list(value, kind)
    number = _number(value, whole=kind in ("int", "count"))
    if kind in ("count", "amount", "share") and not 0 <= number <= (1 if kind == "share" else math.inf):
        raise ValueError
    return number


def _text_or_list(value: Any, kind: ValueKind) -> Any:
    if not isinstance(value, str if kind == "str" else list):
        raise ValueError
    if kind == "names" and not all(isinstance(name, str) for name in value):
        raise ValueError
    return value


def _choice(value: Any, choices: tuple[str, ...]) -> str:
    text = str(value).lower()
    if text not in choices:
        raise ValueError
    return text


def _boolean(value: Any) -> bool:
    """As pydantic: also 1, 1.0 and words."""
    text = str(int(value) if value in (0, 1) else value).lower()
    if text not in _TRUE | _FALSE:
        raise ValueError
    return text in _TRUE


_TRUE, _FALSE = {"true", "1", "yes", "on", "t", "y"}, {"false", "0", "no", "off", "f", "n"}


def _number(value: Any, whole: bool) -> int | float:
    """As pydantic: true is 1; and a power in a text ("5e8"), which pydantic refuses."""
    if not isinstance(value, (int, float, str)):
        raise ValueError
    number = float(value) if not isinstance(value, int) else int(value)
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
