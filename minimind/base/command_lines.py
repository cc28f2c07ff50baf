"""Command lines that a person can type as they stand: whole, quoted for a shell, with paths that exist from here.

Contract. Whatever this project prints to be typed is made here, from the run's own options where it is about a run.
An option's values are the words up to the next one that begins with ``--``, as the launch scripts' parsers have it
(no positional arguments, no abbreviations).

Known weakness: flags of the launcher itself are known only as the number of ranks on one host.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from minimind.base.shipped import from_here

ONCE = ("--resume", "--restarted", "--dry-run", "--local_rank", "--debug")  # belong to one start, not to the run


def typed(*words: object) -> str:
    """The words as one line for a shell."""
    return shlex.join(map(str, words))


def launcher_words(script: str, ranks: int = 1, usual_ranks: int = 1) -> list[str]:
    """``deepspeed [--num_gpus N] launch/SCRIPT.py``; ``usual_ranks``: what the launcher takes by itself."""
    several_hosts = int(os.environ.get("CROSS_SIZE", "1")) > 1
    count = [] if ranks == usual_ranks or several_hosts else ["--num_gpus", str(ranks)]
    return ["deepspeed", *count, str(from_here(Path("launch") / f"{script}.py"))]


@dataclass(frozen=True)
class OwnCommand:
    """The command that started this process. ``words``: its options, as given."""

    script: str
    words: Sequence[str] = ()
    ranks: int = 1
    usual_ranks: int = 1

    def line(self, *more: object, without: Iterable[str] = (), script: str | None = None) -> str:
        """The same command with the options ``more`` and less those of ``without``, under ``script`` if given."""
        dropped = {*ONCE, *without}
        kept = [group for group in _groups(self.words) if group[0].partition("=")[0] not in dropped]
        options = [word for group in kept for word in group]
        return typed(*launcher_words(script or self.script, self.ranks, self.usual_ranks), *options, *more)


def _groups(words: Sequence[str]) -> list[list[str]]:
    """Each option with its values."""
    groups: list[list[str]] = []
    for word in words:
        if word.startswith("--") or not groups:
            groups.append([word])
        else:
            groups[-1].append(word)
    return groups
