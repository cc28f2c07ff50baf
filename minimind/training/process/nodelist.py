"""SLURM's short form of many host names: ``node[01-03,7],login`` is node01, node02, node03, node7 and login.

Written by SLURM, but read from a variable that anybody can set: strict, and bounded. No import of weight.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from minimind.base.errors import UserError

MOST = 1 << 16  # hosts
_GROUP = re.compile(r"(?:[A-Za-z0-9._-]|\[[0-9,-]+\])+")  # one name, with or without ranges
_PART = re.compile(r"\[([^]]*)\]|([^\[]+)")
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


def expand(text: str) -> list[str]:
    """The names, in SLURM's order. Raises UserError for what is no list of hosts, and for more than ``MOST``."""
    names: list[str] = []
    place = 0
    while place < len(text) or not names:
        group = _GROUP.match(text, place)
        if group is None:
            raise _unread(text)
        names += itertools.islice(_names(group[0], text), MOST + 1)
        if len(names) > MOST:
            raise UserError(f"{_brief(text)}: more than {MOST:,} hosts")
        place = group.end()
        if place < len(text):
            if text[place] != "," or place + 1 == len(text):
                raise _unread(text)
            place += 1
    return names


def _names(group: str, text: str) -> Iterator[str]:
    """``rack[1-2]node[01-10]`` as names, the last range the fastest."""
    choices = [_numbers(ranges, text) if ranges else [plain] for ranges, plain in _PART.findall(group)]
    return map("".join, itertools.product(*choices))


def _numbers(ranges: str, text: str) -> list[str]:
    """``01-03,7`` as 01, 02, 03, 7: a range keeps the width of its first number."""
    numbers: list[str] = []
    for part in ranges.split(","):
        found = _RANGE.fullmatch(part)
        first, last = (found[1], found[2] or found[1]) if found else ("0", "")
        if not last or int(last) < int(first) or int(last) - int(first) >= MOST:
            raise _unread(text)
        numbers += [f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1)]
    return numbers


def _unread(text: str) -> UserError:
    return UserError(f"{_brief(text)}: no list of hosts such as node[01-03,7]")


def _brief(text: str) -> str:
    return repr(text if len(text) <= 80 else f"{text[:77]}...")
