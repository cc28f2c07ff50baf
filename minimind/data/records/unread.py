"""Fields that carry something and that nothing reads: counted by name, with the first record that has each.

Contract: only fields of records that are used are counted (a rejected record is reported whole), and only those that
say something. A field of a turn is called ``name of a turn``. A file may have any number of names: the first 50 are
kept apart, what comes later is counted together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from minimind.data.records.values import says_nothing

_MAX_NAMES = 50
_OTHERS = "others"


class Unread:
    """Names -> (number of records, place of the first)."""

    def __init__(self) -> None:
        self.fields: dict[str, tuple[int, str]] = {}

    def add(self, names: Iterable[str], place: str) -> None:
        """A record at ``place`` holds these."""
        for name in names:
            self._count(str(name)[:60], 1, place)

    def merge(self, later: Unread) -> None:
        """What was found in records after these."""
        for name, (count, first) in later.fields.items():
            self._count(name, count, first)

    def to_json(self) -> dict[str, dict[str, object]]:
        return {name: {"records": count, "first": first} for name, (count, first) in self.fields.items()}

    def _count(self, name: str, count: int, place: str) -> None:
        if name not in self.fields and len(self.fields) >= _MAX_NAMES:
            name = _OTHERS
        before, first = self.fields.get(name, (0, place))
        self.fields[name] = (before + count, first)


def unread_of(record: Mapping[str, object], read: Iterable[str]) -> list[str]:
    """The fields of ``record`` that are not in ``read`` and say something."""
    return [name for name in record if name not in read and not says_nothing(record[name])]


def sentence(fields: Mapping[str, Mapping[str, Any]], shown: int = 8) -> str:
    """``id in 20 (first a.jsonl:1), ...`` of `Unread.to_json`, the most frequent first; "" if there are none."""
    most = sorted(fields.items(), key=lambda item: -int(item[1]["records"]))
    said = [f"{name} in {int(found['records']):,} (first {found['first']})" for name, found in most[:shown]]
    more = [f"and {len(most) - shown} more names"] if len(most) > shown else []
    return ", ".join(said + more)
