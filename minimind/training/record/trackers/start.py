"""The trackers that ``report_to`` names, begun: their ids, and what each is told of the run before its first number.

The ids are kept in ``trackers.json`` of the run directory, so that a resumed run goes on under them; a new run in the
same directory gets new ones.
"""

from __future__ import annotations

import contextlib
import json
import pkgutil
import re
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minimind.base.defaults import ENVIRONMENT, RUN_JSON
from minimind.base.files import write_durably
from minimind.base.secrets import mask_values
from minimind.base.strict.json_text import read_json
from minimind.config.run import TRACKERS
from minimind.training.record.trackers.tracker import Beginning, Tracker

if TYPE_CHECKING:
    from minimind.config.run import RunConfig

FILE_NAME = "trackers.json"
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)


def start_trackers(run_dir: Path, run_config: RunConfig, resumed_step: int | None) -> list[Tracker]:
    """One for each name in ``report_to``, of ``TRACKERS`` in config/run/values.py."""
    if not run_config.report_to:
        return []
    ids = run_ids(run_dir, run_config.report_to, resumed=resumed_step is not None)
    about = facts(run_dir, run_config)
    makers: dict[str, Callable[[Beginning], Tracker]] = {
        name: pkgutil.resolve_name(TRACKERS[name]) for name in run_config.report_to
    }
    return [make(Beginning(run_dir, run_config, ids[name], resumed_step, about)) for name, make in makers.items()]


def run_ids(run_dir: Path, names: list[str], resumed: bool) -> dict[str, str]:
    """Each tracker's id of this run; written down. One that can't be kept is only not the same the next time."""
    known = _read(run_dir / FILE_NAME) if resumed else {}
    ids = {name: known.get(name) or uuid.uuid4().hex[:8] for name in names}
    if ids.items() - known.items():
        with contextlib.suppress(OSError):  # a full disk
            write_durably(run_dir / FILE_NAME, json.dumps(known | ids) + "\n")
    return ids


def _read(path: Path) -> dict[str, str]:
    try:
        value = read_json(path.parent, path.name, limit=1 << 16)
    except (OSError, ValueError):
        return {}
    items = value.items() if isinstance(value, dict) else ()
    return {name: text for name, text in items if isinstance(text, str) and _ID.fullmatch(text)}


def facts(run_dir: Path, run_config: RunConfig) -> dict[str, Any]:
    """The settings, and what the run directory says of the DeepSpeed JSON, hardware, versions and git revision."""
    found: dict[str, Any] = run_config.model_dump(mode="json")
    for title, name in (("ds_config", RUN_JSON), ("environment", ENVIRONMENT)):
        try:
            found[title] = read_json(run_dir, name)
        except (OSError, ValueError):  # a run without a directory of its own: a test, a notebook
            continue
    masked = mask_values(found)
    assert isinstance(masked, dict)
    return masked
