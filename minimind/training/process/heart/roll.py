"""Who of the ranks was heard, and who is lost. Pure: the only clock is ``passed``."""

from __future__ import annotations

from dataclasses import dataclass

from minimind.training.process.heart.beats import Frame, Word

GRACE = 5.0  # seconds from the end of one rank, of its own will, in which the others may end by themselves
CLOSED = 10.0  # seconds without the connection that a rank had: a living pulse makes a new one at once


@dataclass
class _Entry:
    silent: float = 0.0  # seconds since it was heard
    stopped: float | None = None  # for so many seconds
    closed: float | None = None  # its connection, for so many seconds
    ended: float | None = None  # for so many seconds
    code: int = 0


class Roll:
    """All ranks, as rank 0's pulse knows them."""

    def __init__(self, ranks: int, limit: float) -> None:
        """``limit``: seconds of silence, or of being stopped, after which a rank is lost."""
        self._limit = limit
        self._entries = [_Entry() for _ in range(ranks)]
        self._gone: int | None = None

    def heard(self, frame: Frame) -> None:
        """A beat of ``frame.rank``."""
        entry = self._entries[frame.rank]
        entry.silent, entry.closed = 0.0, None
        if frame.kind is not Word.STOPPED:
            entry.stopped = None
        elif entry.stopped is None:
            entry.stopped = 0.0
        if frame.kind is Word.ENDED and entry.ended is None:
            entry.ended, entry.code = 0.0, frame.detail
        if frame.kind is Word.GONE and self._gone is None:
            self._gone = frame.rank

    def closed(self, rank: int) -> None:
        """The rank's connection was closed, by it or on the way."""
        self._entries[rank].closed = 0.0

    def passed(self, seconds: float) -> None:
        """So much time was seen to pass."""
        running = any(entry.stopped is None and entry.ended is None for entry in self._entries)
        for entry in self._entries:
            entry.silent += seconds
            if entry.stopped is not None and running:  # else the whole job is suspended
                entry.stopped += seconds
            entry.closed = None if entry.closed is None else entry.closed + seconds
            entry.ended = None if entry.ended is None else entry.ended + seconds

    def lost(self) -> Frame | None:
        """The rank without which the run can't go on, and why."""
        if self._gone is not None:
            return Frame(Word.GONE, self._gone)
        for rank, entry in enumerate(self._entries):
            if (kind := self._verdict(entry)) is not None:
                seconds = {Word.SILENT: entry.silent, Word.STOPPED: entry.stopped, Word.ENDED: entry.code}
                return Frame(kind, rank, detail=int(seconds.get(kind) or 0))
        return None

    def over(self) -> bool:
        """Whether all ranks have ended."""
        return all(entry.ended is not None for entry in self._entries)

    def _verdict(self, entry: _Entry) -> Word | None:
        if entry.ended is not None:
            return Word.ENDED if entry.code and entry.ended > GRACE else None
        if entry.closed is not None and entry.closed > CLOSED:
            return Word.GONE
        if entry.silent > self._limit:
            return Word.SILENT
        return Word.STOPPED if (entry.stopped or 0.0) > self._limit else None
