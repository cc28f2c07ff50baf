"""The output directory of a run, and its config.yaml, ds_config.json, environment.json and tokenizer.model."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from minimind.base.defaults import CHECKPOINTS, ENVIRONMENT, FINAL, LATEST, RECOVERY, RUN_CONFIG, RUN_JSON
from minimind.base.errors import UserError
from minimind.base.files import write_bytes_durably, write_durably
from minimind.base.findings import Finding
from minimind.base.hardware import Hardware
from minimind.base.secrets import mask_values
from minimind.config.deepspeed import Resolved
from minimind.config.memory import checkpoint_bytes
from minimind.config.run import RunConfig
from minimind.text.tokenizer import Tokenizer
from minimind.training.checkpoint import space
from minimind.training.checkpoint.directory import (
    PRODUCTS,
    Checkpoint,
    all_checkpoints,
    directories,
    point,
    point_back,
    pointed,
    restore_best,
    set_aside,
)
from minimind.training.health.ladder import write_rollbacks
from minimind.training.record.file import FILE_NAME as METRICS
from minimind.training.record.provenance import environment, write_diff
from minimind.training.record.samples import cut_back
from minimind.training.run.resume import Start

RUN_MARKS = (ENVIRONMENT, METRICS, CHECKPOINTS, FINAL, "earlier-1")  # only a run has one


def open_directory(
    config: RunConfig, resolved: Resolved, hardware: Hardware, tokenizer: Tokenizer, start: Start, best_step: int | None
) -> list[Finding]:
    """Make the output directory ready for a run that begins at ``start``; findings about it. Rank 0 only.

    ``best_step``: the step of its best held-out loss so far.

    Raises UserError when the directory can't be written, or has no room for a checkpoint.
    """
    run_dir = config.output_dir
    with _writing(run_dir):
        if start.checkpoint is not None:
            _refuse_links(run_dir)
        findings = _other_courses(run_dir, start.checkpoint)
        if start.checkpoint is not None:
            cut_back(run_dir, start.checkpoint.step)
        restore_best(run_dir, best_step)
        if start.rollbacks or os.path.lexists(run_dir / RECOVERY):
            run_dir.mkdir(parents=True, exist_ok=True)
            write_rollbacks(run_dir, start.rollbacks)
    write_run_files(run_dir, config, resolved.config, hardware, tokenizer)
    return findings + space.room_for_saves(run_dir / CHECKPOINTS, checkpoint_bytes(config, resolved))


def write_run_files(
    run_dir: Path, config: RunConfig, ds_config: dict[str, Any], hardware: Hardware, tokenizer: Tokenizer
) -> None:
    """Write the resolved configuration, the environment and the tokenizer; rank 0 only.

    The tokenizer is copied so that a checkpoint can be used after its original has moved.

    Raises UserError when the directory can't be written.
    """
    with _writing(run_dir):
        run_dir.mkdir(parents=True, exist_ok=True)
        _refuse_others(run_dir)
        write_durably(run_dir / RUN_CONFIG, config.dump_yaml())
        write_durably(run_dir / RUN_JSON, json.dumps(mask_values(ds_config), indent=2) + "\n")
        for name, content in tokenizer.files.items():
            write_bytes_durably(run_dir / name, content)
        write_durably(run_dir / ENVIRONMENT, json.dumps(environment(hardware), indent=2) + "\n")
        write_diff(run_dir)


def _refuse_links(run_dir: Path) -> None:
    """UserError where a run that goes on would read or write through a link; a new run sets such links aside."""
    for name in (*PRODUCTS, METRICS):
        if (run_dir / name).is_symlink():
            raise UserError(f"{run_dir / name}: a symbolic link, which is not followed; put what it names there")


def _refuse_others(run_dir: Path) -> None:
    """UserError where a file would be replaced in a directory that is no run's: another program's config.yaml."""
    there = [name for name in ("config.yaml", "ds_config.json") if os.path.lexists(run_dir / name)]
    if there and not any((run_dir / name).exists() for name in RUN_MARKS):
        raise UserError(f"{run_dir}: holds a {there[0]} that no run of this program wrote; give another --output-dir")


@contextmanager
def _writing(run_dir: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"{run_dir}: can't write there: {error.strerror}; give another --output-dir") from None


def _other_courses(run_dir: Path, checkpoint: Checkpoint | None) -> list[Finding]:
    """Move what does not belong to the run that begins at ``checkpoint`` to ``earlier-1`` (2, 3, ...) in ``run_dir``.

    Otherwise a later --resume would take the old checkpoints, which may be at later steps, for the run's own.
    metrics.jsonl is cut back or renamed by record/file.py.
    """
    if checkpoint is None or checkpoint.run_dir != run_dir.resolve():
        there = [run_dir / name for name in PRODUCTS if os.path.lexists(run_dir / name)]
        what, advice = "an earlier run: its checkpoints and model are", "; --resume goes on with a run"
    else:
        there = [later.path for later in all_checkpoints(run_dir) if later.step > checkpoint.step]
        what, advice = f"checkpoints after step {checkpoint.step}, of another course: they are", ""
        here = replace(checkpoint, path=directories(run_dir, checkpoint.step)[1])  # as pointers name it
        point_back(run_dir, here)
        # A kill between a checkpoint and its pointer left `latest` behind.
        if pointed(run_dir / LATEST) != here.path:
            point(run_dir / LATEST, here.path)
    if not there:
        return []
    message = f"{run_dir} holds {what} now in {set_aside(run_dir, there)}"
    return [Finding("earlier-run", message, f"delete them if they are not needed{advice}")]
