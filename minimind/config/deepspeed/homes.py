"""Where a key belongs that stands somewhere else: names of DeepSpeed, of this trainer's YAML, of other frameworks.

DeepSpeed ignores what it doesn't look up. A key with a home elsewhere is a plain intention at the wrong place; one
that resembles a key of its own section is a misspelling (``lint.py`` tells them apart).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

from minimind.config.deepspeed.optimizers import OPTIMIZERS
from minimind.config.deepspeed.schema import SCHEDULERS, TOP_LEVEL, ValueKind
from minimind.config.run import RunConfig

_OPTIMIZER_PARAMS: dict[str, dict[str, ValueKind]] = {kind: dict(entry.params) for kind, entry in OPTIMIZERS.items()}

_TOP, _CLIPPING = "at the top level of the JSON", 'at the top level, as "gradient_clipping"'
_ACCUMULATION = 'at the top level, as "gradient_accumulation_steps"'
_MICRO = 'at the top level, as "train_micro_batch_size_per_gpu"'

# Words of other frameworks and of old examples
_OTHER_WORDS = {
    "min_lr": "in the YAML, as min_lr_ratio (a share of the peak), or in scheduler.params, as warmup_min_lr",
    "max_lr": "in scheduler.params, as warmup_max_lr",
    "warmup_steps": "in the YAML, or in scheduler.params, as warmup_num_steps",
    "clip_grad": _CLIPPING,
    "clip_norm": _CLIPPING,
    "grad_clip": _CLIPPING,
    "gradient_clip": _CLIPPING,
    "max_grad_norm": _CLIPPING,
    "accumulation_steps": _ACCUMULATION,
    "grad_accumulation_steps": _ACCUMULATION,
    "batch_size": 'at the top level, as "train_batch_size"',
    "micro_batch_size": _MICRO,
    "micro_batch_size_per_gpu": _MICRO,
    "per_gpu_batch_size": _MICRO,
    "tag_validation_enabled": 'in "checkpoint", as "tag_validation": "Ignore", "Warn" or "Fail"',
    "zero_stage": 'in "zero_optimization", as "stage"',
    "mixed_precision": 'in the sections "fp16" and "bf16"',
    "monitor_config": 'at the top level, as "tensorboard", "csv_monitor" or "wandb"',
    "autotuning_config": 'at the top level, as "autotuning"',
    "comms_config": 'at the top level, as "comms_logger"',
    "loss_scaling": 'in "fp16", as "loss_scale"',
    "gradient_accumulation_dtype": 'in "data_types", as "grad_accum_dtype"',
    "optimizer_params": 'in "optimizer", as "params"',
    "scheduler_params": 'in "scheduler", as "params"',
}
# Names that many sections have say nothing about where one belongs
_COMMON = {"enabled", "type", "params", "name", "device", "verbose", "debug", "mode", "passes", "profile", "project"}


def home_of(key: str, prefix: str) -> str:
    """Where ``key``, unknown in the section ``prefix`` ("" or "fp16."), belongs, as "in ..."; "" if nowhere."""
    plain = squeeze(key)
    beside = {"optimizer.": _OPTIMIZER_PARAMS, "scheduler.": SCHEDULERS}.get(prefix, {})
    if any(plain == squeeze(name) for kinds in beside.values() for name in kinds):
        return f'in {prefix}params, as "{key}"'
    if word := _other_words().get(plain, ""):
        return word
    if prefix and plain in {squeeze(name) for name in TOP_LEVEL}:
        return _TOP
    return _schema_homes().get(plain, "") or _yaml_home(plain)


def _yaml_home(plain: str) -> str:
    """Where this trainer's own settings are."""
    return next((f'in the YAML, as "{name}"' for name in RunConfig.model_fields if squeeze(name) == plain), "")


def squeeze(name: str) -> str:
    """A name without case and separators."""
    return name.lower().replace("-", "").replace("_", "")


@functools.cache
def _other_words() -> dict[str, str]:
    return {squeeze(name): home for name, home in _OTHER_WORDS.items()}


@functools.cache
def _schema_homes() -> dict[str, str]:
    """The first section that has a key of each squeezed name."""
    homes: dict[str, str] = {}
    for name, section in _inner(TOP_LEVEL, ""):
        homes.setdefault(squeeze(name), f'in "{section}", as "{name}"')
    for owner, kinds in (("optimizer", _OPTIMIZER_PARAMS), ("scheduler", SCHEDULERS)):
        for name in (name for params in kinds.values() for name in params):
            homes.setdefault(squeeze(name), f'in {owner}.params, as "{name}"')
    return {name: home for name, home in homes.items() if name not in _COMMON}


def _inner(section: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
    """Every key below the top level, with the section it is in."""
    for name, kind in section.items():
        if prefix:
            yield name, prefix
        if isinstance(kind, Mapping):
            yield from _inner(kind, f"{prefix}.{name}" if prefix else name)
