"""What a YAML may write for a setting -> the setting's value: short forms, Hugging Face's words, mappings.

Contract. Each function is a pydantic BeforeValidator: a ValueError's text becomes one problem with its place, and what
is no short form passes unchanged, to be judged by the field's type.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from minimind.base.defaults import MAX_WEIGHT
from minimind.base.errors import UserError
from minimind.base.problems import nearest
from minimind.config.model import ModelConfig
from minimind.config.run.wording import one_problem
from minimind.config.schedules import SHAPES
from minimind.config.yaml_names.optimizers import optimizer_type

# Hugging Face spells some of our schedules differently; a YAML written for it should run.
_SCHEDULE_ALIASES = {
    "warmup_stable_decay": "wsd",
    "constant_with_warmup": "constant",
    "cosine_with_min_lr": "cosine",
    "cosine_warmup_with_min_lr": "cosine",
}
# What ``report_to`` may name: "module:class" of a Tracker (training/record/trackers), looked up when a run has it
TRACKERS = {
    "wandb": "minimind.training.record.trackers.wandb_run:WandbRun",
    "tensorboard": "minimind.training.record.trackers.tensorboard_run:TensorboardRun",
    "swanlab": "minimind.training.record.trackers.swanlab_run:SwanlabRun",
}


def _one_of(value: Any, names: Collection[str]) -> Any:
    """``value`` if it is one of ``names``; ValueError in pydantic's words for a Literal."""
    if value in names:
        return value
    *first, last = map(repr, names)
    raise ValueError(f"expected {', '.join(first)} or {last}, got {value!r}")


def as_schedule(value: Any) -> Any:
    """A name of ``SHAPES``, or Hugging Face's for it."""
    return _one_of(_SCHEDULE_ALIASES.get(value, value) if isinstance(value, str) else value, SHAPES)


def as_cadence(value: Any) -> Any:
    """A whole number of steps, or a share of the run between 0 and 1; also as text."""
    try:
        number = float(value) if isinstance(value, (int, float, str)) and not isinstance(value, bool) else 0.0
    except (ValueError, OverflowError):
        number = 0.0
    if number >= 1 and number == number // 1 and number != float("inf"):
        return int(number)
    if 0 < number < 1:
        return number
    raise ValueError(f"expected a whole number of steps, or a share of the run between 0 and 1, got {value!r}")


def steps_of(cadence: float, total_steps: int) -> int:
    """``logging_steps``, ``eval_steps`` or ``save_steps`` in optimizer steps; a share of the run is rounded up."""
    return int(cadence) if cadence >= 1 else math.ceil(cadence * total_steps)


def as_trackers(value: Any) -> Any:
    """Names of ``TRACKERS``, each once; null, false, "none" and an empty list are none, "a,b" is a list (``--set``)."""
    if value in (None, False):
        return []
    names = [name.strip() for name in value.split(",")] if isinstance(value, str) else value
    if not isinstance(names, list):
        return _one_of(value, ("none", *TRACKERS))
    known = [_one_of(name, ("none", *TRACKERS)) for name in names]
    return [name for name in dict.fromkeys(known) if name != "none"]


def as_model(value: Any) -> Any:
    """A preset name, or a mapping with an optional ``preset`` and overrides -> ModelConfig."""
    if isinstance(value, str):
        value = {"preset": value}
    if not isinstance(value, Mapping):
        return value
    fields = dict(value)
    unknown = [
        f'unknown key "{key}"{nearest(str(key), ModelConfig.model_fields)}'
        for key in fields
        if key not in ModelConfig.model_fields and key != "preset"
    ]
    if unknown:
        raise ValueError("; ".join(unknown))
    preset = fields.pop("preset", None)
    try:
        return ModelConfig(**fields) if preset is None else ModelConfig.preset(str(preset), **fields)
    except UserError as error:  # pydantic collects ValueErrors only
        raise ValueError(str(error)) from None
    except ValidationError as error:
        raise ValueError("; ".join(one_problem(item, ModelConfig) for item in error.errors())) from None


def as_switch(value: Any) -> Any:
    """YAML 1.1 reads bare ``on`` and ``off`` as booleans."""
    return {True: "on", False: "off"}.get(value, value) if isinstance(value, bool) else value


def as_optimizer(value: Any) -> Any:
    """Hugging Face's ``optim`` -> the optimizer's type; the JSON's own types stay."""
    return optimizer_type(value) if isinstance(value, str) else value


def as_json(value: Any) -> Any:
    """``deepspeed:`` a path, or the JSON's sections; an empty text and null are none."""
    if value is None or value == "":
        return None
    if not isinstance(value, (str, Path, dict)):
        raise ValueError(f"expected a path, or the JSON's own sections, got {value!r}")
    return value


def as_section(value: Any) -> Any:
    """``watchdog: off`` for ``watchdog: {enabled: false}``."""
    return {"enabled": value} if isinstance(value, bool) else value


def as_paths(value: Any) -> Any:
    """One path is a list of one."""
    return [value] if isinstance(value, (str, Path)) else value


class WeightedFile(BaseModel):
    """A training source that is read ``weight`` times an epoch; 0.5: half of it, the other half in the next."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: Path
    weight: Annotated[float, Field(gt=0, le=MAX_WEIGHT)] = 1.0


def as_train_file(value: Any) -> Any:
    """A path, or a mapping with ``path`` and ``weight`` -> Path or WeightedFile."""
    if isinstance(value, str):
        return Path(value)
    if not isinstance(value, Mapping):
        if isinstance(value, (Path, WeightedFile)):
            return value
        raise ValueError(f"expected a path or {{path: ..., weight: ...}}, got {value!r}")
    try:
        return WeightedFile(**value)
    except ValidationError as error:  # pydantic would report it once for each type that is possible here
        raise ValueError("; ".join(one_problem(item, WeightedFile) for item in error.errors())) from None


def as_train_files(value: Any) -> Any:
    """One training source is a list of one."""
    return [value] if isinstance(value, (str, Path, Mapping, WeightedFile)) else value


def as_field_map(value: Any) -> Any:
    """``{prompt: question}`` is easier to write in YAML than ``prompt=question``; both are the same."""
    return ",".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, Mapping) else value


TrainFile = Annotated[Path | WeightedFile, BeforeValidator(as_train_file)]
