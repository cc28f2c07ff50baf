"""A checkpoint where each rank can read it: its own path, or on another disk a copy that the first rank sends.

The first rank's checkpoint is the one that counts. A host that does not see it gets all of its files (DeepSpeed looks
for every rank's, and another layout reads them all), below a temporary name in the run directory of that host, and they
go again once they are loaded: what a host keeps is nobody's to clean up later. A copy that a person has made there is
used if its manifest is the same and its files are whole. All on the training group, before the first step or between
two, when no other thread uses that.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

from minimind.base.errors import UserError
from minimind.base.files import read_inside, remove_files, subdirectory
from minimind.base.strict.json_text import read_json
from minimind.training.checkpoint.directory import (
    MANIFEST,
    Checkpoint,
    all_checkpoints,
    directories,
    is_ours,
    problem,
    remove_debris,
)
from minimind.training.checkpoint.space import require_space
from minimind.training.checkpoint.transfer import Inbox, send_directory
from minimind.training.process.disks import Disks
from minimind.training.process.ranks import Control


@contextmanager
def at_hand(control: Control, checkpoint: Checkpoint, run_dir: Path, disks: Disks) -> Iterator[Path]:
    """Where this rank reads ``checkpoint`` while the block lasts; all ranks call it. ``disks``: of ``run_dir``.

    Raises UserError, on all ranks, where a host has no room for it, or shares the run directory but not the checkpoint.
    """
    manifest = control.first_does(lambda: read_inside(checkpoint.path, MANIFEST))
    trusted = disks.keepers[control.rank] == 0  # the disk is the first rank's, and that has verified these files
    here = control.gather(_has(checkpoint.path, manifest, trusted))
    lacking = [rank for rank, has in enumerate(here) if not has]
    if not lacking:
        yield checkpoint.path
        return
    keepers = sorted({disks.keepers[rank] for rank in lacking})
    if keepers[0] == 0:
        host = disks.hosts[lacking[0]] or f"rank {lacking[0]}"
        raise UserError(f"{checkpoint.path}: {host} does not see it; copy it to a directory that all hosts share")
    copy = directories(run_dir, checkpoint.step)[0]
    try:
        _send(control, checkpoint, copy, keepers)
        yield checkpoint.path if here[control.rank] else copy
        control.barrier()
    finally:
        if control.rank in keepers:
            with suppress(OSError):
                remove_files(copy, is_ours)


def elsewhere(control: Control, run_dir: Path, disks: Disks) -> str:
    """Where there are checkpoints of this run, if the first rank has none, as the end of a sentence; all ranks call it.

    Hosts that have changed places in the hostfile have left them on what is now another one's disk.
    """
    own = all_checkpoints(run_dir)[:1] if disks.keepers[control.rank] == control.rank != 0 else []
    for rank, found in enumerate(control.gather([checkpoint.path.name for checkpoint in own])):
        if found:
            return f"; {disks.hosts[rank]} has {found[0]}: make it the first host, or copy {run_dir} from there"
    return ""


def _has(path: Path, manifest: bytes, trusted: bool) -> bool:
    """Whether this rank has the same checkpoint there, and complete."""
    try:
        if read_inside(path, MANIFEST) != manifest:
            return False
        return trusted or problem(path) is None
    except OSError:
        return False


def _send(control: Control, checkpoint: Checkpoint, copy: Path, keepers: list[int]) -> None:
    """The first rank sends the files to ``keepers``, one after the other. Raises UserError on all ranks."""
    files = control.first_does(lambda: read_json(checkpoint.path, MANIFEST)["files"])
    box, receives = Inbox(copy), control.rank in keepers
    control.all_do(lambda: _make_room(copy, sum(f["bytes"] for f in files.values())) if receives else None)
    for keeper in keepers:
        if control.rank == 0:
            with suppress(OSError):  # the keeper says that something is missing
                send_directory(checkpoint.path, files, lambda data, to=keeper: control.send(data, to))  # type: ignore[misc]
        elif control.rank == keeper:
            box.receive(lambda: control.receive(0))
    control.all_do(lambda: _require_whole(box, checkpoint, files) if receives else None)


def _make_room(copy: Path, num_bytes: int) -> None:
    run_dir = copy.parent.parent
    try:
        subdirectory(run_dir, copy.parent.name)
        remove_debris(run_dir)  # of a run that was killed while it held such a copy
        require_space(copy.parent, num_bytes)
        subdirectory(copy.parent, copy.name)
    except OSError as error:
        raise UserError(f"{copy.parent}: no place for the checkpoint to resume from: {error.strerror}") from None


def _require_whole(box: Inbox, checkpoint: Checkpoint, files: dict[str, object]) -> None:
    arrived = {name: asdict(facts) for name, facts in box.facts.items()}
    if box.error is not None or arrived != files:
        reason = getattr(box.error, "strerror", None) or box.error or "a file is missing or has changed"
        raise UserError(f"{checkpoint.path}: could not be brought here: {reason}; try again")
