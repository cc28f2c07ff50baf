"""Hugging Face's schedules that are shapes of ours, and where each ends (transformers/optimization.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from minimind.config.yaml_names.words import Words


def schedule_end(words: Words, value: Any) -> None:
    """Where the schedule ends; its other parameters only with the values that the shapes here have."""
    key, kind = "lr_scheduler_kwargs", str(words.values.get("lr_scheduler_type"))
    del words.values[key]
    given = dict(value) if isinstance(value, Mapping) else {}
    for name, usual in _USUAL.get(kind, {}).items():
        if given.get(name) == usual:
            del given[name]
    names = {"lr_end"} if kind == "polynomial" else {"min_lr_rate", "min_lr"}
    if (value is not None and not isinstance(value, Mapping)) or set(given) - names or len(given) > 1:
        known = " and ".join(sorted(names))
        words.problem(key, f"{value!r}: one of {known} is known here; the shapes have no others")
    elif given:
        ((name, end),) = given.items()
        _end_at(words, key, end, share=name == "min_lr_rate")


# What Hugging Face's schedules do without a word; with others they are shapes that are not here
_USUAL: dict[str, dict[str, Any]] = {
    "cosine": {"num_cycles": 0.5},
    "cosine_with_min_lr": {"num_cycles": 0.5},
    "cosine_with_restarts": {"num_cycles": 1},
    "polynomial": {"power": 1.0},
}
_POLYNOMIAL_END = 1e-7  # transformers/optimization.py get_polynomial_decay_schedule_with_warmup


def _end_at(words: Words, key: str, end: Any, share: bool) -> None:
    """The last rate, given by ``key``: a ``share`` of the peak, or a rate."""
    peak = 1.0 if share else _rate(words.values.get("learning_rate"))
    lowest = _rate(end)
    if lowest is not None and peak:
        words.take(key, "min_lr_ratio", lowest / peak)
    else:
        words.problem(key, "min_lr needs learning_rate beside it; or write min_lr_ratio, a share of the peak")


def _rate(value: Any) -> float | None:
    """A learning rate; YAML reads ``1e-4`` as a text."""
    try:
        return float(value) if isinstance(value, (int, float, str)) and not isinstance(value, bool) else None
    except ValueError:
        return None


def schedule_name(words: Words, value: Any) -> None:
    """Hugging Face's names that are shapes of ours with what they need beside them."""
    ends = {"min_lr_ratio", "lr_scheduler_kwargs"} & words.values.keys()
    if value in ("cosine_with_min_lr", "cosine_warmup_with_min_lr") and not ends:
        words.problem(
            "lr_scheduler_type", f"{value} needs its end: min_lr_ratio, or lr_scheduler_kwargs with min_lr_rate"
        )
        words.values["lr_scheduler_type"] = "cosine"
    elif value == "polynomial":
        if not ends:
            _end_at(words, "lr_scheduler_type", _POLYNOMIAL_END, share=False)
        words.values["lr_scheduler_type"] = "linear"
    elif value == "cosine_with_restarts":
        words.values["lr_scheduler_type"] = "cosine"
