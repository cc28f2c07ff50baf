"""Command lines: printed as a person can type them (whole, quoted for a shell, with paths that exist from here), and
read as people type them (``--train_file`` is ``--train-file``, and an unknown option is told its neighbour).

Contract. Whatever this project prints to be typed is made here, from the run's own options where it is about a run,
and under the launcher that has started it. An option's values are the words up to the next one that begins with ``--``,
as the launch scripts' parsers have it (no positional arguments, no abbreviations).
"""

from __future__ import annotations

import difflib
import os
import shlex
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minimind.base.shipped import from_here

# An option that is cut shorter is another word, not a slip of the finger
CLOSE = 0.75
RESTARTABLE = ("pretrain", "sft")  # launch scripts that `minimind launch --restarts` may start again
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
class Started:
    """What was typed to start a run: ``head`` before the launch script, ``options`` after it.

    ``remark``: how the line is to be typed, in the middle of a sentence. ``whole``: it needs nothing else.
    """

    head: tuple[str, ...]
    script: str  # a path, from here
    options: tuple[str, ...] = ()
    remark: str = ""
    whole: bool = True

    @classmethod
    def of(cls, values: Sequence[Any] | None) -> Started | None:
        """Made again of ``dataclasses.astuple``, as JSON has it; None of None."""
        if values is None:
            return None
        head, script, options, remark, whole = values
        return cls(tuple(head), script, tuple(options), remark, whole)

    def before(self, script: str) -> list[str]:
        """``head`` and the launch script of the name ``script``, which lies beside the one that was started."""
        own = Path(self.script)
        path = own if own.stem == script else own.with_name(f"{script}.py")
        head = list(self.head) if script in RESTARTABLE else without_option(self.head, "--restarts")
        return [*head, str(path if path.is_file() else from_here(Path("launch") / f"{script}.py"))]


@dataclass(frozen=True)
class NextLines:
    """How to type a run once more: ``go_on`` from its last checkpoint, ``again`` as it was started. Ends of sentences:
    "with: " and the command."""

    go_on: str
    again: str


@dataclass(frozen=True)
class OwnCommand:
    """The command that started this process. ``words``: its options, as given; ``started``: what was typed, if known.

    Otherwise the launcher of this machine with ``ranks`` ranks, of which it takes ``usual_ranks`` by itself.
    """

    script: str
    words: Sequence[str] = ()
    ranks: int = 1
    usual_ranks: int = 1
    started: Started | None = None

    @property
    def remark(self) -> str:
        """How its lines are to be typed, in the middle of a sentence; empty: just so."""
        return self.started.remark if self.started is not None else ""

    def before(self, script: str) -> list[str]:
        """The words before the options, for the launch script of this name."""
        if self.started is None:
            return launcher_words(script, self.ranks, self.usual_ranks)
        return self.started.before(script)

    def line(self, *more: object, without: Iterable[str] = (), script: str | None = None) -> str:
        """The same command with the options ``more`` and less those of ``without``, under ``script`` if given."""
        dropped = {plain(option) for option in (*ONCE, *without)}
        words = self.words if self.started is None else self.started.options
        kept = [group for group in _groups(words) if plain(group[0].partition("=")[0]) not in dropped]
        options = [word for group in kept for word in group]
        return typed(*self.before(script or self.script), *options, *more)


def without_option(words: Iterable[str], name: str) -> list[str]:
    """The words less the option ``name`` and its one value."""
    kept, left = [], iter(words)
    for word in left:
        if word == name:
            next(left, None)
        elif not word.startswith(f"{name}="):
            kept.append(word)
    return kept


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
    canonical = {plain(name): name for name in known if name.startswith("--")}
    return [_known(word, canonical) for word in words]


def _known(word: str, canonical: dict[str, str]) -> str:
    name, equals, value = word.partition("=")
    return f"{canonical.get(plain(name), name)}{equals}{value}" if name.startswith("--") else word


def plain(option: str) -> str:
    """An option's name as it may be written either way; any other word, and what follows a ``=``, stays as it is."""
    name, equals, value = option.partition("=")
    return f"{name.replace('_', '-')}{equals}{value}" if name.startswith("--") else option


def hint(word: str, known: Collection[str], settings: Collection[str] = ()) -> str:
    """What an unknown option may have meant: a known option of nearly that name, or a setting that ``--set`` takes.
    Empty if nothing is near."""
    name = word.partition("=")[0]
    field = name.removeprefix("--").replace("-", "_")
    if field in settings:
        return f"{name} is a setting: --set {field}=VALUE"
    near = difflib.get_close_matches(plain(name), sorted(known), 1, CLOSE)
    return f"{name}: did you mean {near[0]}?" if near else ""
