"""Checkpoints that are complete or ignored.

A checkpoint is a directory ``checkpoints/step-00000200`` holding DeepSpeed's own files and a ``manifest.json`` with
the size and SHA-256 of each. It is written under a temporary name (checkpoint/writer.py), every file is fsynced, the
manifest comes last, then one rename makes it visible and one ``os.replace`` points ``latest`` at it. DeepSpeed writes
its own ``latest`` before the other ranks have finished (runtime/engine.py ``save_checkpoint``), so that file is not
used. Weakness: ranks must share the file system, as DeepSpeed's own checkpoints require.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minimind.base.defaults import BEST, CHECKPOINTS, FINAL, HANG, LATEST, POST_MORTEM, RECOVERY, SAMPLES, STEP_NAME
from minimind.base.errors import UserError
from minimind.base.files import (
    free_name,
    is_directory,
    open_inside,
    remove_files,
    sha256_of,
    sync_directory,
    write_durably,
)
from minimind.base.findings import Finding
from minimind.base.strict.json_text import brief, is_count, read_json, read_pointer, reason_of

MANIFEST = "manifest.json"
PRODUCTS = (LATEST, BEST, CHECKPOINTS, FINAL, RECOVERY, POST_MORTEM, HANG, SAMPLES)  # what a run makes
TEMPORARY = ".incomplete-"
_NAME = re.compile(STEP_NAME)
_DEBRIS = re.compile(rf"{re.escape(TEMPORARY)}(replaced-)?{_NAME.pattern}(-\d+)?")
_FILES = re.compile(  # all that DeepSpeed and this module write into a checkpoint
    r"manifest\.json|zero_to_(fp32|torch)\.py|"
    r"\w+/((zero_pp_rank_\d+_)?mp_rank_\d+_model_states|(bf16_)?zero_pp_rank_\d+_mp_rank_\d+_optim_states)\.pt"
)


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
    aside = None
    if os.path.lexists(final):  # an earlier save of this step, from before a resume, or something of the user's
        aside = _put_aside(final)
    try:
        os.rename(temporary, final)
    except OSError:
        if aside is not None:
            os.rename(aside, final)
        raise
    sync_directory(final.parent)


def delete(path: Path) -> None:
    """Delete a checkpoint: first its name, so that a kill never leaves a part of one under it.

    Only its own files go (those that the manifest lists, or that DeepSpeed writes), and nothing of a directory that is
    no checkpoint. Raises OSError, FileExistsError naming where the rest is when there is one.
    """
    files = _files_of(path)
    if files is None:
        return
    aside = _put_aside(path)
    if not remove_files(aside, lambda name: name in files or is_ours(name)):
        rest = free_name(path, lambda n: f"other-{path.name}-{n}")
        os.rename(aside, rest)
        raise FileExistsError(errno.ENOTEMPTY, "held what is not a checkpoint's, which was kept", str(rest))


def _put_aside(path: Path) -> Path:
    """Take the name from what has it; the new one. What is no checkpoint keeps a name that can be seen."""
    start = "other" if _files_of(path) is None else f"{TEMPORARY}replaced"
    aside = free_name(path, lambda n: f"{start}-{path.name}-{n}")
    os.rename(path, aside)
    return aside


def set_aside(run_dir: Path, paths: Sequence[Path]) -> Path:
    """Move ``paths``, which are in ``run_dir``, to ``earlier-1`` (2, 3, ...) in it, whose path is returned. OSError."""
    target = free_name(run_dir / "earlier", lambda n: f"earlier-{n}")
    target.mkdir()
    for path in paths:
        os.rename(path, target / path.name)  # a link itself, not what it names
    return target


def _files_of(path: Path) -> set[str] | None:
    """The files that the manifest of the checkpoint at ``path`` lists. None if there is no checkpoint: no directory, or
    one without a manifest (it may be damaged) that holds other files than DeepSpeed's."""
    if not is_directory(path):
        return None
    try:
        files = read_json(path, MANIFEST)["files"]
    except (OSError, ValueError, KeyError, TypeError):
        files = None
    if isinstance(files, dict):
        return set(files)
    there = (file.relative_to(path).as_posix() for file in path.rglob("*") if not is_directory(file))
    return set() if all(map(is_ours, there)) else None


def is_ours(name: str) -> bool:
    """Whether a file of this path in a checkpoint's directory is one that a save writes there."""
    return _FILES.fullmatch(name) is not None


def remove_debris(run_dir: Path) -> None:
    """Delete what killed or failed saves left; only when no save is running.

    What is not of a save stays where it is: other files in such a directory, and what a link leads to.
    """
    directory = run_dir / CHECKPOINTS
    for debris in directory.glob(f"{TEMPORARY}*") if is_directory(directory) else ():
        if not _DEBRIS.fullmatch(debris.name):
            continue
        if debris.is_symlink():
            debris.unlink()
        else:
            listed = _files_of(debris) or set()
            remove_files(debris, lambda name, listed=listed: name in listed or is_ours(name))  # type: ignore[misc]


def _seal(manifest: dict[str, Any]) -> str:
    """SHA-256 of a manifest's content."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def point(pointer: Path, target: Path) -> None:
    """Make the text file ``pointer`` (``latest`` or ``best``) name ``target``, relative to the run directory."""
    write_durably(pointer, f"{target.relative_to(pointer.parent)}\n")


def pointed(pointer: Path) -> Path | None:
    """The checkpoint that ``latest`` or ``best`` names, or None: without one, and where it names anything else."""
    try:
        return read_pointer(pointer.parent, pointer.name)
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
    if is_directory(best) and pointed(run_dir / BEST) != best:
        point(run_dir / BEST, best)


def problem(path: Path) -> str | None:
    """Why the checkpoint at ``path`` can't be used (a file missing, cut or changed), or None: it is complete."""
    try:
        manifest = read_json(path, MANIFEST)
        seal, files = manifest.pop("seal"), manifest["files"]
    except (OSError, ValueError) as error:
        return f"its manifest can't be read ({reason_of(error)})"
    except (KeyError, TypeError, AttributeError):
        return "its manifest has no seal or no list of files"
    if seal != _seal(manifest):
        return "its manifest has changed on the disk (its SHA-256 differs)"
    if not isinstance(files, dict) or not all(_is_facts(facts) for facts in files.values()):
        return "its manifest has no size and SHA-256 of each file"
    for name, expected in files.items():
        if len(name) > 200 or not name.isprintable():
            return f"its manifest names {brief(name)}, which is no file of a checkpoint"
        try:
            with open_inside(path, name) as file:
                size = os.fstat(file.fileno()).st_size
                if size != expected["bytes"]:
                    return f"{name} has {size} bytes instead of {expected['bytes']}"
                if sha256_of(file) != expected["sha256"]:
                    return f"{name} has changed on the disk (its SHA-256 differs)"
        except FileNotFoundError:
            return f"{name} is missing"
        except OSError as error:
            return f"{name} can't be read ({error.strerror})"
    return None


def read_about(path: Path) -> dict[str, Any]:
    """What the checkpoint at ``path`` says of the run that wrote it."""
    try:
        about = read_json(path, MANIFEST)["about"]
    except (OSError, ValueError) as error:
        raise UserError(f"{path / MANIFEST}: can't be read ({reason_of(error)})") from None
    except (KeyError, TypeError):
        raise UserError(f"{path / MANIFEST}: says nothing about the run that wrote it") from None
    if not isinstance(about, dict):
        raise UserError(f"{path / MANIFEST}: about is {brief(about)}, not an object")
    return about


def _is_facts(value: Any) -> bool:
    return isinstance(value, dict) and is_count(value.get("bytes")) and isinstance(value.get("sha256"), str)


def all_checkpoints(run_dir: Path) -> list[Checkpoint]:
    """Every published checkpoint of a run, newest first, not yet verified."""
    directory = run_dir / CHECKPOINTS
    found = [
        Checkpoint(path, int(path.name[5:]))
        for path in (directory.glob("step-*") if is_directory(directory) else ())
        if _NAME.fullmatch(path.name) and is_directory(path)
    ]
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
    if (where / "checkpoints").is_symlink():
        raise UserError(f"{where / 'checkpoints'}: a symbolic link, which is not followed; put the directory there")
    if _NAME.fullmatch(where.name):
        reason = problem(where)
        if reason is not None:
            raise UserError(f"{where}: this checkpoint can't be used: {reason}; give the run directory instead")
        return Checkpoint(where, int(where.name[5:])), []
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
    old = all_checkpoints(run_dir)[max(keep, 1) :]
    removed = [checkpoint.path for checkpoint in old if checkpoint.path.resolve() not in safe]
    for path in removed:
        delete(path)
    return removed
