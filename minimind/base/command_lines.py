"""Command lines: printed as a person can type them (whole, quoted for a shell, with paths that exist from here), and
read as people type them (``--train_file`` is ``--train-file``, and an unknown option is told its neighbour).

Contract. Whatever this project prints to be typed is made here, from the run's own options where it is about a run.
An option's values are the words up to the next one that begins with ``--``, as the launch scripts' parsers have it
(no positional arguments, no abbreviations).

Known weakness: flags of the launcher itself are known only as the number of ranks on one host.
"""

from __future__ import annotations

import difflib
import os
import shlex
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from minimind.base.shipped import from_here

# An option that is cut shorter is another word, not a slip of the finger
CLOSE = 0.75
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


def as_known(words: Sequence[str], known: Collection[str]) -> list[str]:
    """``words`` with every option that differs from a known one in ``_`` and ``-`` alone written as that one."""
    canonical = {_plain(name): name for name in known if name.startswith("--")}
    return [_known(word, canonical) for word in words]


def _known(word: str, canonical: dict[str, str]) -> str:
    name, equals, value = word.partition("=")
    return f"{canonical.get(_plain(name), name)}{equals}{value}" if name.startswith("--") else word


def _plain(name: str) -> str:
    return name.replace("_", "-")


def hint(word: str, known: Collection[str], settings: Collection[str] = ()) -> str:
    """What an unknown option may have meant: a known option of nearly that name, or a setting that ``--set`` takes.
    Empty if nothing is near."""
    name = word.partition("=")[0]
    field = name.removeprefix("--").replace("-", "_")
    if field in settings:
        return f"{name} is a setting: --set {field}=VALUE"
    near = difflib.get_close_matches(_plain(name), sorted(known), 1, CLOSE)
    return f"{name}: did you mean {near[0]}?" if near else ""
