"""Collecting configuration problems, so that a user sees all of them at once instead of one a run."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from minimind.base.errors import UserError


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """`` (did you mean "x"?)`` for a misspelled name, else nothing.

    Compared without case and separators first, because ``trainBatchSize`` and ``train-batch-size`` are the
    usual slips. ``cutoff``: how alike they must be, 0 to 1.
    """
    plain = {key.lower().replace("-", "").replace("_", ""): key for key in known}
    squeezed = name.lower().replace("-", "").replace("_", "")
    close = difflib.get_close_matches(squeezed, plain, n=1, cutoff=cutoff)
    return f' (did you mean "{plain[close[0]]}"?)' if close else ""


def raise_problems(problems: Sequence[str], subject: str) -> None:
    """Raise one UserError for all ``problems`` (a single one stays a single line); nothing if there is none."""
    if len(problems) == 1:
        raise UserError(problems[0])
    if problems:
        raise UserError(f"{len(problems)} problems in {subject}:" + "".join(f"\n  - {line}" for line in problems))
