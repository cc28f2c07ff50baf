"""What stands beside the curves: a run's facts, its settings as they may be passed on, and what differs between runs.

Contract. A fact is ``{"name": N, "text": T, "values": {...}}``: N and T are names of words.json, the page says them in
its reader's language; without T the value ``value`` stands for itself. Settings are the texts of `FILES` without what
should not be passed on (SECURITY.md).
"""

from __future__ import annotations

import json
import math
import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from minimind.base.defaults import ENVIRONMENT, RUN_CONFIG, RUN_JSON
from minimind.base.errors import UserError
from minimind.base.secrets import mask_command, mask_text, mask_values
from minimind.base.strict.json_text import parse_json, read_small, reason_of
from minimind.commands.page.records import TRAIN, RunRecords
from minimind.training.record.console import NA, count, number

FILES = (RUN_CONFIG, RUN_JSON, ENVIRONMENT)
LARGEST_TEXT = 4 << 20  # bytes; older environment.json files hold uncommitted changes
SKIPPED = TRAIN.index("skipped")
Fact = dict[str, Any]


def facts(run: RunRecords) -> list[Fact]:
    """The run in a column of the overview."""
    about = run.about
    steps, total = run.train.rows[-1][0] if run.train.rows else 0, about.get("total_steps", NA)
    losses = _numbers(run.train.column("loss")[-20:])
    return [
        _fact("task", about.get("task", NA)),
        _model(about),
        _fact("steps", text="of", done=f"{steps:,}", total=f"{total:,}" if isinstance(total, int) else total),
        _fact("tokens", count(run.train.rows[-1][1]) if run.train.rows else NA),
        _fact("mean loss", number(statistics.fmean(losses) if losses else None, ".4f")),
        *_held_out(run),
        _fact("speed", _median(run, "tokens_per_second")),
        _fact("skipped", str(run.train.rows[-1][SKIPPED]) if run.train.rows else NA),
        *_memory(run),
        _fact("precision", f"{about['precision']}, ZeRO {about.get('zero_stage', NA)}" if "precision" in about else NA),
        _fact("findings", str(sum(mark.kind != "resume" for mark in run.marks))),
    ]


def _fact(name: str, value: str = NA, text: str | None = None, **values: str) -> Fact:
    return {"name": name, "text": text, "values": {"value": value, **values}}


def _model(about: dict[str, Any]) -> Fact:
    if about.get("model") is None or about.get("parameters") is None:
        return _fact("model")
    return _fact("model", text="with parameters", model=about["model"], parameters=f"{about['parameters']:,}")


def _held_out(run: RunRecords) -> list[Fact]:
    """The best evaluation, and how far above the least possible loss it is where that is known."""
    rows = [row for row in run.evaluations.rows if row[1] is not None]
    if not rows:
        return [_fact("best")]
    step, loss, perplexity, bits = min(rows, key=lambda row: row[1])
    found = [
        _fact("best", text="at step", loss=number(loss, ".4f"), step=f"{step:,}"),
        _fact("perplexity", number(perplexity, ".2f")),
        _fact("bits per byte", number(bits, ".4f")),
    ]
    floor = run.about.get("nats_per_byte_floor")
    if floor and floor > 0 and bits is not None:
        found.append(_fact("floor", text="times the floor", times=f"{bits * math.log(2) / floor:.3f}"))
    return found


def _median(run: RunRecords, name: str) -> str:
    values = [value for value in run.train.column(name) if value]
    return count(statistics.median(values)) if values else NA


def _memory(run: RunRecords) -> list[Fact]:
    """The most memory seen on the host and on the device, in GiB."""
    peaks = {name: max(_numbers(run.train.column(name)), default=None) for name in ("host_memory", "device_memory")}
    return [_fact(name, f"{peak / 2**30:.2f} GiB") for name, peak in peaks.items() if peak is not None]


def _numbers(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def settings_of(directory: Path) -> dict[str, str]:
    """The texts of `FILES` that are there. Raises UserError for one that can't be read."""
    return {name: _shareable(name, _text(directory, name)) for name in FILES if os.path.lexists(directory / name)}


def _text(directory: Path, name: str) -> str:
    """A small file's text as far as it can be read. Raises UserError."""
    try:
        return read_small(directory, name, LARGEST_TEXT).decode("utf-8", "replace")
    except (OSError, ValueError) as error:
        raise UserError(f"{directory / name}: {reason_of(error)}: take it away to see the rest") from None


def _shareable(name: str, text: str) -> str:
    """A file's text as it may be passed on: no uncommitted changes (older runs have them there), secrets masked."""
    if not name.endswith(".json"):
        return mask_text(text)
    try:
        value = parse_json(text)
    except ValueError:
        return "not JSON: left out, for it may hold what should not be passed on"
    if name == ENVIRONMENT and isinstance(value, dict):
        value.pop("git_diff", None)
        if isinstance(value.get("command"), list):
            value["command"] = mask_command([str(word) for word in value["command"]])
    return json.dumps(mask_values(value), indent=2, ensure_ascii=False)


def differences(runs: Sequence[dict[str, str]]) -> list[tuple[str, list[str]]]:
    """Settings of config.yaml and ds_config.json, as `settings_of` has them, that are not the same in all runs: (name,
    value in each).
    """
    settings = [_flat(texts) for texts in runs]
    names = sorted(set().union(*settings))
    rows = [(name, [values.get(name, "-") for values in settings]) for name in names]
    return [(name, values) for name, values in rows if len(set(values)) > 1]


def _flat(texts: dict[str, str]) -> dict[str, str]:
    from minimind.base.strict.yaml_text import parse_yaml

    found: dict[str, str] = {}
    for name in (RUN_CONFIG, RUN_JSON):
        text = texts.get(name, "{}")
        try:
            value = parse_yaml(text)[0] if name == RUN_CONFIG else parse_json(text)
        except ValueError:  # a torn file: shown as text, not compared
            continue
        _flatten("" if name == RUN_CONFIG else "ds: ", value, found)
    return found


def _flatten(prefix: str, value: Any, into: dict[str, str]) -> None:
    if isinstance(value, dict):
        for key, below in value.items():
            _flatten(f"{prefix}{key}" if not prefix or prefix.endswith(" ") else f"{prefix}.{key}", below, into)
    else:
        into[prefix] = json.dumps(value, ensure_ascii=False, default=str)
