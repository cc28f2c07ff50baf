"""What a corpus is like: scripts, lengths, exact and near duplicates. Streaming; memory per document is a few numbers.

Near duplicates: texts are reduced to their letters and digits in lower case, cut into overlapping pieces of 8
characters and described by a MinHash of 16 values in 4 bands (Broder 1997; Leskovec et al., Mining of Massive
Datasets, ch. 3). A document is a near duplicate when it shares a band with an earlier one and at least 12 of
the 16 values, which estimates that three quarters of the pieces are the same.

Known weakness: near duplicates are looked for among the first 200,000 documents only, which bounds the memory.
"""

from __future__ import annotations

import hashlib
import re
from array import array
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

SCRIPTS = ("han", "latin", "kana", "hangul", "cyrillic", "arabic", "digits", "punctuation", "emoji", "other")
_NEAR_LIMIT = 200_000
_PIECE, _VALUES, _BANDS, _AGREE = 8, 16, 4, 12
_LONGEST = 100_000  # characters of one document that its MinHash looks at
# First code point of a range and its script; a range ends where the next begins.
_RANGES: tuple[tuple[int, str | None], ...] = (
    (0x00, None),  # white space and control characters are not counted
    (0x21, "punctuation"),
    (0x30, "digits"),
    (0x3A, "punctuation"),
    (0x41, "latin"),
    (0x5B, "punctuation"),
    (0x61, "latin"),
    (0x7B, "punctuation"),
    (0x7F, None),
    (0xA1, "punctuation"),
    (0xC0, "latin"),
    (0x370, "other"),
    (0x400, "cyrillic"),
    (0x530, "other"),
    (0x600, "arabic"),
    (0x700, "other"),
    (0x1100, "hangul"),
    (0x1200, "other"),
    (0x1E00, "latin"),
    (0x1F00, "other"),
    (0x2000, None),
    (0x2010, "punctuation"),
    (0x2028, None),
    (0x2030, "punctuation"),
    (0x2070, "other"),
    (0x2600, "emoji"),
    (0x27C0, "other"),
    (0x2E80, "han"),
    (0x3000, None),
    (0x3001, "punctuation"),
    (0x3040, "kana"),
    (0x3100, "other"),
    (0x3130, "hangul"),
    (0x3190, "other"),
    (0x31F0, "kana"),
    (0x3200, "other"),
    (0x3400, "han"),
    (0xA000, "other"),
    (0xAC00, "hangul"),
    (0xD7B0, "other"),
    (0xF900, "han"),
    (0xFB00, "other"),
    (0xFF01, "punctuation"),
    (0xFF10, "digits"),
    (0xFF1A, "punctuation"),
    (0xFF21, "latin"),
    (0xFF3B, "punctuation"),
    (0xFF41, "latin"),
    (0xFF5B, "punctuation"),
    (0xFF66, "kana"),
    (0xFFA0, "other"),
    (0x1F000, "emoji"),
    (0x1FB00, "other"),
    (0x20000, "han"),
    (0x323B0, "other"),
)
_STARTS = np.array([start for start, _ in _RANGES], np.uint32)
_SCRIPT_OF_RANGE = np.array([len(SCRIPTS) if s is None else SCRIPTS.index(s) for _, s in _RANGES])
_NOT_WORD = re.compile(r"[\W_]+")


def count_scripts(text: str) -> npt.NDArray[np.int64]:
    """Characters of each of ``SCRIPTS``, int64 [len(SCRIPTS)]; white space and control characters count nowhere."""
    ranges = np.searchsorted(_STARTS, _code_points(text), side="right") - 1
    by_range = np.bincount(ranges, minlength=len(_RANGES))
    return np.bincount(_SCRIPT_OF_RANGE, by_range, len(SCRIPTS) + 1)[:-1].astype(np.int64)


def percentiles(lengths: npt.ArrayLike) -> dict[str, int]:
    """Minimum, 5th, 50th, 95th, 99th percentile and maximum; each is a length that occurs."""
    values = np.asarray(lengths)
    if not values.size:
        return {}
    points = np.percentile(values, [0, 5, 50, 95, 99, 100], method="nearest")
    names = ("min", "p5", "p50", "p95", "p99", "max")
    return {name: int(value) for name, value in zip(names, points, strict=True)}


@dataclass
class Duplicates:
    """Feed it documents; ask for counts at the end."""

    digests: array[int] = field(default_factory=lambda: array("Q"))
    _bands: dict[bytes, int] = field(default_factory=dict)
    _sketches: list[npt.NDArray[np.uint32]] = field(default_factory=list)
    _seen: set[int] = field(default_factory=set)
    near: int = 0

    def add(self, text: str) -> None:
        digest = int.from_bytes(hashlib.blake2b(text.encode("utf-8"), digest_size=8).digest(), "little")
        self.digests.append(digest)
        if len(self.digests) > _NEAR_LIMIT or digest in self._seen:
            return
        self._seen.add(digest)
        if (sketch := minhash(text)) is not None:
            self.near += self._is_near(sketch)

    @property
    def exact(self) -> int:
        """Documents that equal an earlier one."""
        return len(self.digests) - len(np.unique(np.frombuffer(self.digests, np.uint64)))

    @property
    def compared(self) -> int:
        """How many documents near duplicates were looked for in."""
        return min(len(self.digests), _NEAR_LIMIT)

    def _is_near(self, sketch: npt.NDArray[np.uint32]) -> bool:
        keys = [bytes([i]) + band.tobytes() for i, band in enumerate(sketch.reshape(_BANDS, -1))]
        found = {self._bands[key] for key in keys if key in self._bands}
        if any(int((self._sketches[index] == sketch).sum()) >= _AGREE for index in found):
            return True
        for key in keys:
            self._bands.setdefault(key, len(self._sketches))
        self._sketches.append(sketch)
        return False


def minhash(text: str) -> npt.NDArray[np.uint32] | None:
    """uint32 [16]; None for a text of fewer than 16 letters and digits, where near means little."""
    points = _code_points(_NOT_WORD.sub("", text[:_LONGEST]).lower())
    if len(points) < 2 * _PIECE:
        return None
    pieces = np.zeros(len(points) - _PIECE + 1, np.uint64)
    for offset in range(_PIECE):  # a polynomial hash of each window, modulo 2**64
        pieces = pieces * np.uint64(0x9E3779B97F4A7C15) + points[offset : offset + len(pieces)].astype(np.uint64)
    pieces ^= pieces >> np.uint64(31)
    draw = np.random.default_rng(0)
    factors = draw.integers(1, 1 << 63, _VALUES, np.uint64) | np.uint64(1)
    return np.array([((pieces * factor) >> np.uint64(32)).min() for factor in factors], np.uint32)


def _code_points(text: str) -> npt.NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
