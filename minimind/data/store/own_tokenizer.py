"""A tokenizer for files that came without one: trained on them once, and found again by their contents.

Contract: the same files, size and reading give the same tokenizer, byte for byte, so a run that goes on has the one it
began with although the cache was emptied between. Two runs that want the same: one works, the other waits. Where the
texts can't give as many pieces as are wanted, all that they give are taken.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
from collections.abc import Sequence
from pathlib import Path

from minimind.base.files import subdirectory
from minimind.data.read.sources import expand, remove_spool
from minimind.data.records.options import LIMITS, READING, ReadingOptions
from minimind.data.records.rejects import Tally
from minimind.data.records.texts import read_texts
from minimind.data.store.cache import Say, content_hash, locked
from minimind.data.store.rooms import default_cache, require_owner, room
from minimind.text.tokenizer import FILE_NAME, train_tokenizer

_VERSION = 1  # raise it when the same files would give another tokenizer


def tokenizer_for(
    files: Sequence[Path], vocab_size: int, reading: ReadingOptions, say: Say, cache_dir: Path | None = None
) -> Path:
    """The directory of the tokenizer of these files, made now or found.

    Raises UserError for bad files, as `prepare` does, and for a cache that isn't this user's.
    """
    cache = cache_dir or default_cache()
    with contextlib.ExitStack() as stack:
        spool = room(cache, "spool") / f"{os.getpid()}-{secrets.token_hex(8)}"
        stack.callback(remove_spool, spool)
        sources, _ = expand(files, spool)
        hashes = [content_hash(source, cache) for source in sources]
        place = room(cache, "tokenizers")
        name = _key(hashes, vocab_size, reading)[:32]
        stack.enter_context(locked(place / f"{name}.lock", say))
        directory = subdirectory(place, name)
        require_owner(directory)
        if (directory / FILE_NAME).is_file():
            require_owner(directory / FILE_NAME)
            return directory
        say(f"no --tokenizer: one of {vocab_size:,} pieces is being trained on these files (--tokenizer none asks)")
        tally = Tally(reading.skip_bad, reading.max_bad_ratio, place / f"{name}.rejected.jsonl")
        train_tokenizer(read_texts(files, tally, reading), directory, vocab_size, or_fewer=True)
    return directory


def _key(hashes: Sequence[str], vocab_size: int, reading: ReadingOptions) -> str:
    """A hash of all that decides the tokenizer, or whether it may exist."""
    read = {name: getattr(reading, name) for name in (*READING, *LIMITS)}
    return hashlib.sha256(json.dumps([_VERSION, hashes, vocab_size, read]).encode()).hexdigest()
