"""Checkpoints that are complete or ignored.

A checkpoint is a directory ``checkpoints/step-00000200`` holding DeepSpeed's own files and a ``manifest.json`` with
the size and SHA-256 of each. It is written under a temporary name (saver.py), every file is fsynced, the manifest
comes last, then one rename makes it visible and one ``os.replace`` points ``latest`` at it. DeepSpeed writes its own
``latest`` before the other ranks have finished (runtime/engine.py ``save_checkpoint``), so that file is not used.
Weakness: ranks must share the file system, as DeepSpeed's own checkpoints require.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minimind.defaults import BEST, CHECKPOINTS, LATEST
from minimind.durable import sync_directory, write_durably
from minimind.errors import UserError
from minimind.findings import Finding
from minimind.strict_json import brief, is_count, read_json, read_pointer

MANIFEST = "manifest.json"
TEMPORARY = ".incomplete-"


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint on disk."""

    path: Path
    step: int

    @property
    def run_dir(self) -> Path:
        """The run directory that holds it, absolute: ``path`` may be a bare name."""
        return self.path.resolve().parents[1]


def directories(run_dir: Path, step: int) -> tuple[Path, Path]:
    """Where the checkpoint of ``step`` is written, and where it is once it is complete."""
    final = run_dir / CHECKPOINTS / f"step-{step:08d}"
    return final.parent / f"{TEMPORARY}{final.name}", final


def publish(temporary: Path, final: Path, manifest: dict[str, Any]) -> None:
    """Write the manifest into ``temporary``, whose files are all on the disk, then make it visible as ``final``.

    Raises OSError; before the rename nothing of the new checkpoint is visible.
    """
    sealed = {**manifest, "seal": _seal(manifest)}
    write_durably(temporary / MANIFEST, json.dumps(sealed, indent=1))
    aside = final.parent / f"{TEMPORARY}replaced-{final.name}"
    if final.exists():  # an earlier save of this step, from before a resume
        os.rename(final, aside)
    try:
        os.rename(temporary, final)
    except OSError:
        if aside.exists():
            os.rename(aside, final)
        raise
    sync_directory(final.parent)


def remove_debris(run_dir: Path) -> None:
    """Delete what killed or failed saves left; only when no save is running."""
    for debris in (run_dir / CHECKPOINTS).glob(f"{TEMPORARY}*"):
        shutil.rmtree(debris)


def _seal(manifest: dict[str, Any]) -> str:
    """SHA-256 of a manifest's content."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256") if hasattr(hashlib, "file_digest") else _digest(file)
    return str(digest.hexdigest())


def _digest(file: Any) -> Any:
    """hashlib.file_digest for Python 3.10."""
    digest = hashlib.sha256()
    while block := file.read(1 << 20):
        digest.update(block)
    return digest


def point(pointer: Path, target: Path) -> None:
    """Make the text file ``pointer`` (``latest`` or ``best``) name ``target``, relative to the run directory."""
    write_durably(pointer, f"{target.relative_to(pointer.parent)}\n")


def pointed(pointer: Path) -> Path | None:
    """What ``latest`` or ``best`` names, or None if it is absent, damaged, or names what is outside the run."""
    try:
        return read_pointer(pointer)
    except (OSError, ValueError):
        return None


def point_back(run_dir: Path, good: Checkpoint | None) -> None:
    """Before the checkpoints after ``good`` (None: all) go: no pointer may name one of them."""
    for pointer in (run_dir / LATEST, run_dir / BEST):
        target = pointed(pointer)
        if target is None or (good is not None and target.name <= good.path.name):
            continue
        if good is None or pointer.name == BEST:
            pointer.unlink()
        else:
            point(pointer, good.path)


def restore_best(run_dir: Path, step: int | None) -> None:
    """Point ``best`` at the checkpoint of ``step``, if there is one: a kill between the two left it behind.

    None: no evaluation has been good, so whatever ``best`` names is not (an earlier version could call a NaN the best).
    """
    if step is None:
        (run_dir / BEST).unlink(missing_ok=True)
        return
    best = directories(run_dir, step)[1]
    if best.is_dir() and pointed(run_dir / BEST) != best:
        point(run_dir / BEST, best)


def problem(path: Path) -> str | None:
    """Why the checkpoint at ``path`` can't be used (a file missing, cut or changed), or None: it is complete."""
    try:
        manifest = read_json(path / MANIFEST)
        seal, files = manifest.pop("seal"), manifest["files"]
    except (OSError, ValueError) as error:
        return f"its manifest can't be read ({error})"
    except (KeyError, TypeError, AttributeError):
        return "its manifest has no seal or no list of files"
    if seal != _seal(manifest):
        return "its manifest has changed on the disk (its SHA-256 differs)"
    if not isinstance(files, dict) or not all(_is_facts(facts) for facts in files.values()):
        return "its manifest has no size and SHA-256 of each file"
    for name, expected in files.items():
        if Path(name).is_absolute() or ".." in Path(name).parts:
            return f"its manifest names {brief(name)}, which is outside"
        file = path / name
        if not file.is_file():
            return f"{name} is missing"
        if file.stat().st_size != expected["bytes"]:
            return f"{name} has {file.stat().st_size} bytes instead of {expected['bytes']}"
        if _sha256(file) != expected["sha256"]:
            return f"{name} has changed on the disk (its SHA-256 differs)"
    return None


def read_about(path: Path) -> dict[str, Any]:
    """What the checkpoint at ``path`` says of the run that wrote it."""
    try:
        about = read_json(path / MANIFEST)["about"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path / MANIFEST}: can't be read ({error})") from None
    if not isinstance(about, dict):
        raise UserError(f"{path / MANIFEST}: about is {brief(about)}, not an object")
    return about


def _is_facts(value: Any) -> bool:
    return isinstance(value, dict) and is_count(value.get("bytes")) and isinstance(value.get("sha256"), str)


def _step(path: Path) -> int | None:
    """The step in a checkpoint's name, None in a name that is none."""
    digits = path.name[5:]
    return int(digits) if digits.isascii() and digits.isdecimal() and len(digits) < 19 else None


def all_checkpoints(run_dir: Path) -> list[Checkpoint]:
    """Every published checkpoint of a run, newest first, not yet verified."""
    named = ((path, _step(path)) for path in (run_dir / CHECKPOINTS).glob("step-*"))
    found = [Checkpoint(path, step) for path, step in named if step is not None]
    return sorted(found, key=lambda checkpoint: checkpoint.step, reverse=True)


def find_checkpoint(run_dir: Path) -> tuple[Checkpoint | None, list[Finding]]:
    """The newest checkpoint that verifies, and one finding for each newer one that does not."""
    rejected: list[Finding] = []
    for checkpoint in all_checkpoints(run_dir):
        reason = problem(checkpoint.path)
        if reason is None:
            return checkpoint, rejected
        rejected.append(
            Finding(
                code="checkpoint-damaged",
                message=f"{checkpoint.path} is not used: {reason}",
                advice="check the disk; the newest complete checkpoint before it is used instead",
                step=checkpoint.step,
            )
        )
    return None, rejected


def resolve_resume(where: Path) -> tuple[Checkpoint, list[Finding]]:
    """The checkpoint that ``--resume WHERE`` means: a run directory (its newest) or one checkpoint directory.

    Raises UserError when there is none that is complete.
    """
    step = _step(where)
    if where.name.startswith("step-") and step is not None:
        reason = problem(where)
        if reason is not None:
            raise UserError(
                f"{where}: this checkpoint can't be used: {reason}; give the run directory instead"
            )
        return Checkpoint(where, step), []
    checkpoint, rejected = find_checkpoint(where)
    if checkpoint is None:
        detail = f" ({'; '.join(finding.message for finding in rejected)})" if rejected else ""
        raise UserError(f"{where}: no complete checkpoint to resume from{detail}; start without --resume")
    return checkpoint, rejected


def clean_up(run_dir: Path, keep: int, protected: set[Path]) -> list[Path]:
    """Delete the oldest checkpoints beyond ``keep``, never the newest, `latest`, `best` or one in ``protected``.

    `latest` is not the newest by step after a resume from an earlier one. Raises OSError.
    """
    pointers = (pointed(run_dir / name) for name in (LATEST, BEST))
    safe = {path.resolve() for path in (*protected, *pointers) if path}
    removed = []
    for checkpoint in all_checkpoints(run_dir)[max(keep, 1) :]:
        if checkpoint.path.resolve() not in safe:
            shutil.rmtree(checkpoint.path)
            removed.append(checkpoint.path)
    return removed
