"""Room for checkpoints: looked at before a run and before each save, on the file system that will hold them."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

from minimind.base.errors import UserError
from minimind.base.findings import Finding

MB = 10**6
FULL = (errno.ENOSPC, errno.EDQUOT)


def with_margin(num_bytes: int) -> int:
    """``num_bytes`` of files, and what a file system needs besides: a twentieth and 2 MB."""
    return num_bytes + num_bytes // 20 + 2 * MB


def free_bytes(directory: Path) -> int:
    """What this user may still write below ``directory``; a link or a mount counts as what it leads to."""
    existing = next(path for path in (directory, *directory.parents) if path.exists())
    return shutil.disk_usage(existing).free


def require_space(directory: Path, num_bytes: int) -> None:
    """Raise the OSError of a full disk, with the figures, if ``num_bytes`` don't fit."""
    needed, free = with_margin(num_bytes), free_bytes(directory)
    if free < needed:
        figures = f"No space left on device ({needed / MB:,.0f} MB needed, {free / MB:,.0f} MB free)"
        raise OSError(errno.ENOSPC, figures, str(directory))


def room_for_saves(directory: Path, num_bytes: int) -> list[Finding]:
    """Whether a checkpoint of ``num_bytes`` and, beside it, its successor fit: each save needs room for a whole one.

    Raises UserError if not even one fits: nothing of the run could be kept.
    """
    one, free = with_margin(num_bytes), free_bytes(directory)
    figures = f"a checkpoint takes about {one / MB:,.0f} MB and {free / MB:,.0f} MB are free"
    if free < one:
        raise UserError(f"{directory}: {figures}; free space, or give an --output-dir on another file system")
    present = any(directory.glob("step-*"))
    if present or free >= 2 * one:
        return []
    return [
        Finding(
            code="disk-nearly-full",
            message=f"{directory}: {figures}: the second one won't fit, and the first is deleted only after it",
            advice="free space now, or later saves will fail while training goes on",
            values={"checkpoint_bytes": one, "free_bytes": free},
        )
    ]
