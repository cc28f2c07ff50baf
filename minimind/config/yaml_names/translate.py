"""A YAML as people have it -> this trainer's names: sections opened, Hugging Face's and the articles' words replaced.

Nothing raises: what can't be meant here goes to ``problems`` with its place, what has no effect is a finding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from minimind.base.findings import Finding
from minimind.config.yaml_names.hugging_face import MEANINGS, TABLE
from minimind.config.yaml_names.meaning import Meaning
from minimind.config.yaml_names.schedules import schedule_end, schedule_name
from minimind.config.yaml_names.words import Words

SECTIONS = ("data", "training", "optimization", "logging")
_PATHS = ("name_or_path", "model_name_or_path")  # of `model`: a directory to start from, no shape

# One name for another
_RENAMED = {
    "max_length": "max_seq_length",
    "model_max_length": "max_seq_length",
    "cutoff_len": "max_seq_length",
    "block_size": "max_seq_length",
    "optimizer": "optim",
    "name_or_path": "model_name_or_path",
    "validation_file": "eval_file",
    "dataset_text_field": "text_field",
    "evaluation_strategy": "eval_strategy",
    "per_gpu_train_batch_size": "per_device_train_batch_size",
    "preprocessing_num_workers": "num_workers",
    "dataset_num_proc": "num_workers",
    "activation_checkpointing": "gradient_checkpointing",
    "project": "wandb_project",
    "clip_norm": "max_grad_norm",
    "growth_interval": "loss_scale_window",
    "incr_every_n_steps": "loss_scale_window",
    "decr_every_n_nan_or_inf": "hysteresis",
    "base_model": "model_name_or_path",
    "sequence_len": "max_seq_length",
    "micro_batch_size": "per_device_train_batch_size",
    "num_epochs": "num_train_epochs",
    "lr_scheduler": "lr_scheduler_type",
    "wandb_name": "run_name",
}
_ATTENTION = {"eager": "mask", "sdpa": "mask", "flash_attention_2": "varlen", "flex_attention": "flex"}


def translate(words: Words) -> None:
    """Open the sections, then replace or drop every name that is not this trainer's own."""
    for section in SECTIONS:
        if isinstance(words.values.get(section), Mapping):
            _open(words, section, words.values.pop(section))
    _split_model(words)
    _same_names(words)
    for key in [key for key in words.values if key in _RENAMED]:
        if _means_this(key, words.values[key]):
            words.move(key, _RENAMED[key], words.values[key])
    for key in [key for key in _SPECIAL if key in words.values]:
        _SPECIAL[key](words, words.values[key])
    for key in [key for key in words.values if key in MEANINGS and MEANINGS[key].status in ("unused", "refused")]:
        if _means_this(key, words.values[key]):
            _drop(words, key, words.values.pop(key), MEANINGS[key])


def _means_this(key: str, value: Any) -> bool:
    """Not what belongs into a DeepSpeed JSON: ``optimizer: {...}``, ``stage: 2``."""
    if key == "stage":
        return not isinstance(value, int)
    return not (key in ("activation_checkpointing", "optimizer") and isinstance(value, Mapping))


def _open(words: Words, section: str, inner: Mapping[Any, Any]) -> None:
    """Lift a section's keys to the top, with their places."""
    for key, value in inner.items():
        name, place = str(key), words.places.get((section, str(key)), words.place(section))
        if name in words.values and not words.overriding:
            words.problems.append(f'{place}: duplicate key "{name}" (first at {words.place(name)}): keep one')
            continue
        words.values[name] = value
        words.places |= {
            (name, *path[2:]): where for path, where in words.places.items() if path[:2] == (section, name)
        }
        words.places[(name,)] = place


def _split_model(words: Words) -> None:
    """``model: {name_or_path: ...}`` names weights; what else is in it is a shape."""
    model = words.values.get("model")
    if not isinstance(model, Mapping):
        return
    rest = {key: value for key, value in model.items() if key not in _PATHS and key not in _OF_MODEL}
    for key in model:
        if key in _PATHS or key in _OF_MODEL:
            words.places[(str(key),)] = words.places.get(("model", str(key)), words.place("model"))
            words.values[str(key)] = model[key]
    if rest:
        words.values["model"] = rest
    elif len(model):
        del words.values["model"]


_OF_MODEL = ("torch_dtype", "attn_implementation", "trust_remote_code", "use_cache", "max_length", "model_max_length")


def _same_names(words: Words) -> None:
    """Hugging Face's own spellings of "not given" in keys that this trainer has too."""
    if words.values.get("max_steps") == -1:
        del words.values["max_steps"]
    warmup = words.values.get("warmup_steps")
    if isinstance(warmup, (int, float)) and not isinstance(warmup, bool):
        if warmup == 0 and words.values.get("warmup_ratio"):
            del words.values["warmup_steps"]  # Hugging Face's default, which lets the ratio hold
        elif 0 < warmup < 1:
            words.move("warmup_steps", "warmup_ratio", warmup)
    for key in ("bf16", "fp16"):
        if words.values.get(key) == "auto":
            del words.values[key]  # the JSON decides, or the hardware
    for key in ("eval_strategy", "evaluation_strategy", "save_strategy"):
        if words.values.get(key) is False:
            words.values[key] = "no"  # YAML 1.1 reads a bare `no` as false


def _drop(words: Words, key: str, value: Any, meaning: Meaning) -> None:
    """A name without meaning here: refused if it would train differently, said if it asks for something."""
    if value is None or value is False or value in meaning.off:
        return
    if meaning.status == "refused":
        words.problem(key, f"{value!r} is not supported: {meaning.text}")
        return
    owner = "Hugging Face's " if key in TABLE else ""
    words.findings.append(
        Finding(
            "yaml-unused",
            f"{words.place(key)}: {owner}{key} has no effect here: {meaning.text}",
            f"delete {key}; docs/hf_arguments.md has every name",
        )
    )


def _initial_scale(key: str) -> Callable[[Words, Any], None]:
    """A loss scale -> its power of two, downwards, which is said."""

    def translated(words: Words, value: Any) -> None:
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 1 <= value < math.inf:
            words.problem(key, f"expected a loss scale of 1 or more, got {value!r}")
            del words.values[key]
            return
        power = math.floor(math.log2(value))
        if 2.0**power != value:
            words.findings.append(
                Finding(
                    "scale-rounded",
                    f"{words.place(key)}: {key} {value:g} is no power of two: the loss scale begins at {2**power:,}",
                    f"write initial_scale_power: {power}",
                )
            )
        words.move(key, "initial_scale_power", power)

    return translated


def _compile(words: Words, value: Any) -> None:
    words.move("torch_compile", "compile", "on" if value else "off")


def _attention(words: Words, value: Any) -> None:
    words.move("attn_implementation", "attention_backend", _ATTENTION.get(value, value))


def _resume(words: Words, value: Any) -> None:
    del words.values["resume_from_checkpoint"]
    if value not in (None, False):
        words.problem("resume_from_checkpoint", "is the option --resume here: add it to the command")


def _report_to(words: Words, value: Any) -> None:
    """Hugging Face knows more trackers than there are here."""
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return
    others = [name for name in names if name in _OTHER_TRACKERS]
    if others:
        words.findings.append(
            Finding(
                "yaml-unused",
                f"{words.place('report_to')}: report_to {', '.join(others)}: no tracker here; metrics.jsonl is there",
                "write report_to: wandb, tensorboard, swanlab or none",
            )
        )
        words.values["report_to"] = [name for name in names if name not in others]


_OTHER_TRACKERS = {"all", "mlflow", "comet_ml", "clearml", "neptune", "trackio", "dvclive", "azure_ml", "codecarbon"}

_SPECIAL: dict[str, Callable[[Words, Any], None]] = {
    "lr_scheduler_kwargs": schedule_end,
    "lr_scheduler_type": schedule_name,  # after its parameters
    "init_scale": _initial_scale("init_scale"),
    "scale_init": _initial_scale("scale_init"),
    "init_loss_scaling": _initial_scale("init_loss_scaling"),
    "torch_compile": _compile,
    "attn_implementation": _attention,
    "resume_from_checkpoint": _resume,
    "report_to": _report_to,
}
