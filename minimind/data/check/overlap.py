"""Documents that stand twice: held out and trained on (stores), or in two files (`minimind check A B`). By hashing.

Contract: exact duplicates only, as the stores hold them (the same tokens from begin to end). Reads the training store
once; memory is eight bytes a held-out document and one block. What was found is remembered by the contents of both
stores, so that a run that is resumed or repeated reads nothing again.

Known weakness: a hash of 64 bits; among 10 million documents two different ones share one by chance in 1 of 370,000
cases. A document with one character changed is not found: `minimind check` counts near duplicates in a file.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from minimind.base.files import read_inside, write_durably
from minimind.data.store.rooms import room
from minimind.data.store.store import TokenStore

if TYPE_CHECKING:
    from array import array

Digests = npt.NDArray[np.uint64]
_BLOCK = 1 << 16  # documents


@dataclass(frozen=True)
class Overlap:
    """``shared`` of ``documents`` held-out documents are also in the training store. ``first``: the first of them and
    an equal training document, as indices into the stores; None if there is none."""

    documents: int
    shared: int
    first: tuple[int, int] | None = None

    @property
    def share(self) -> float:
        return self.shared / self.documents


def find_overlap(train: TokenStore, held_out: TokenStore, cache: Path) -> Overlap:
    """Which held-out documents are training documents. Both stores must be of one tokenizer."""
    memo = _memo(train, held_out, cache)
    if memo is not None:
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            known = json.loads(read_inside(memo.parent, memo.name))
            return Overlap(known["documents"], known["shared"], known["first"] and tuple(known["first"]))
    found = _compare(train, held_out)
    if memo is not None:
        with contextlib.suppress(OSError):  # only a memo: without it the stores are read again
            write_durably(memo, json.dumps(asdict(found)))
    return found


def _compare(train: TokenStore, held_out: TokenStore) -> Overlap:
    held = np.concatenate([digests for _, digests in _digests(held_out)])
    wanted = np.unique(held)
    seen = np.zeros(len(wanted), np.bool_)
    for _, digests in _digests(train):
        place = np.searchsorted(wanted, digests).clip(max=len(wanted) - 1)
        seen[place[wanted[place] == digests]] = True
    shared = np.flatnonzero(np.isin(held, wanted[seen]))
    if not len(shared):
        return Overlap(len(held), 0)
    digest = held[shared[0]]
    blocks = ((start, np.flatnonzero(digests == digest)) for start, digests in _digests(train))
    equal = next(start + int(places[0]) for start, places in blocks if len(places))
    return Overlap(len(held), len(shared), (int(shared[0]), equal))


def _digests(store: TokenStore) -> Iterator[tuple[int, Digests]]:
    """(index of the first, digests) of one block of documents after the other."""
    for start in range(0, len(store), _BLOCK):
        ends = store.offsets[start : start + _BLOCK + 1].tolist()
        tokens = store.tokens
        joined = b"".join(
            hashlib.blake2b(tokens[a:b].tobytes(), digest_size=8).digest() for a, b in itertools.pairwise(ends)
        )
        yield start, np.frombuffer(joined, np.uint64)


def _memo(train: TokenStore, held_out: TokenStore, cache: Path) -> Path | None:
    keys = [store.manifest.get("key") for store in (train, held_out)]
    if None in keys:
        return None
    return room(cache, "overlaps") / f"{hashlib.sha256(json.dumps(keys).encode()).hexdigest()[:32]}.json"


@dataclass(frozen=True)
class Shared:
    """``documents`` of the ``of`` in file ``path`` are also in ``other``, the first named file that has them."""

    path: str
    other: str
    documents: int
    of: int

    def __str__(self) -> str:
        share = f"{self.documents:,} of {self.of:,} documents ({self.documents / self.of:.1%})"
        return f"{self.path}: {share} are also in {self.other}"


def shared_documents(names: Sequence[str], digests: Sequence[array[int]]) -> list[Shared]:
    """For each file the documents that an earlier one has too. ``digests``: 64 bits for each document of each file."""
    by_file = [np.frombuffer(digest, np.uint64) for digest in digests]
    if len(by_file) < 2:
        return []
    owner = np.repeat(np.arange(len(by_file)), [len(own) for own in by_file])
    _, first, group = np.unique(np.concatenate(by_file), return_index=True, return_inverse=True)
    others = owner[first][group]  # for each document the first file that has it
    again = others < owner
    counts = Counter(zip(owner[again].tolist(), others[again].tolist(), strict=True))
    return [
        Shared(names[file], names[other], count, len(by_file[file])) for (file, other), count in sorted(counts.items())
    ]
