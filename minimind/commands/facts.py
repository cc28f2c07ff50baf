"""What is known of a model beside its weights, for the card of an export."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from minimind.base.defaults import CHECKPOINTS, FINAL, RUN_CONFIG
from minimind.base.errors import UserError
from minimind.base.files import path_inside
from minimind.interop.model_card import Card


def card_of(path: Path, licence: str | None) -> Card:
    """The card of the model at ``path``: a run, its ``final`` or one of its checkpoints, or a model without a run."""
    from minimind.config.run import load_run_config
    from minimind.inference.server import model_name

    more: dict[str, Any] = {} if licence is None else {"licence": licence}
    run = _run_of(path)
    if run is None:
        return Card(model_name(path), **more)
    more |= _recorded(run, path)
    try:
        config = load_run_config(path_inside(run, RUN_CONFIG))
    except (UserError, OSError):  # the weights are what is exported: a damaged record of the run costs its mention
        return Card(model_name(run), **more)
    return Card.of_run(config, model_name(run), **more)


def _run_of(path: Path) -> Path | None:
    """The run that a model belongs to."""
    place = path.resolve()
    above = {FINAL: place.parent}.get(place.name, place.parent.parent if place.parent.name == CHECKPOINTS else None)
    return next((run for run in (place, above) if run is not None and (run / RUN_CONFIG).is_file()), None)


def _recorded(run: Path, path: Path) -> dict[str, Any]:
    """What metrics.jsonl says: what kind of training it was, and the held-out evaluation at the step of this model."""
    from minimind.commands.page.records import load_records

    try:
        records = load_records(run)
    except UserError:
        return {}
    place, end = path.resolve(), records.end or {}
    step = int(place.name.split("-")[-1]) if place.parent.name == CHECKPOINTS else end.get("step")
    names = records.evaluations.names
    rows = (row for row in records.evaluations.rows if row[0] == step)
    found: dict[str, Any] = next((dict(zip(names, row, strict=True)) for row in rows), {})
    numbers = _numbers(step, found.get("loss"), found.get("bits_per_byte"))
    return {"trained_on_texts": records.about.get("task") == "pretrain", "numbers": numbers}


def _numbers(step: object, loss: object, bits: object) -> dict[str, str]:
    if not isinstance(loss, float):
        return {}
    numbers = {"step": f"{step:,}", "held-out loss": f"{loss:.4f} nats a token"}
    return numbers | ({"held-out bits per byte": f"{bits:.4f}"} if isinstance(bits, float) else {})
