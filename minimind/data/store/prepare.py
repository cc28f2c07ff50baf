"""Files -> a finished token store, cached by content. One pass, in parallel, in bounded memory.

Contract
    every record is used or rejected and counted: ``used + rejected == records``, per source and in all, in
    the manifest. Strict by default: bad lines end it with the first 20 as ``file:line: reason``. With
    ``skip_bad`` they go to ``STORE.rejected.jsonl``, and only a share above ``max_bad_ratio`` ends it. A
    store is finished or absent (see store.py). Its name holds a hash of the contents of the sources, the
    tokenizer and every option that decides what it holds, so a change of any makes a new one and a second run
    finds the first. Two runs that prepare the same store: one works, the other waits and then finds it. The
    lock is the kernel's (``flock``), so that of a killed process is free at once.

Threads, not processes: SentencePiece encodes outside Python's lock and is three quarters of the CPU
time, workers need no start-up and share the tokenizer. Measured in benchmarks/prepare.py.

Known weakness: the other quarter (parsing, rules, writing) holds Python's lock, so many cores add little.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from minimind.base.defaults import ROW_LENGTH
from minimind.base.display import complain
from minimind.base.errors import UserError
from minimind.base.files import is_directory
from minimind.base.strict.json_text import read_json
from minimind.data.read import streams
from minimind.data.read.remote import Remote
from minimind.data.read.sources import Chunk, Source, chunks_of, container, expand, read_chunks, remove_spool
from minimind.data.records.conversations import Kind
from minimind.data.records.encoding import Counts, Options, encode_chunk, kind_of_first
from minimind.data.records.options import BY_CONTENT, ReadingOptions
from minimind.data.records.rejects import Tally
from minimind.data.records.unread import Unread, sentence
from minimind.data.store.cache import Say, content_hash, locked
from minimind.data.store.files import MANIFEST, holds_store
from minimind.data.store.rooms import default_cache, require_owner, room
from minimind.data.store.store import StoreWriter, TokenStore
from minimind.text.tokenizer import Tokenizer

_FORMAT_VERSION = 1  # part of every store's key, so of every run that can go on: raise it when all inputs give others
_READING = 2  # raise it when some inputs would give other tokens: stores of before are made again under their key
_IN_FLIGHT = 16 << 20  # bytes of records that are being encoded at once
_SAY_SECONDS = 10.0
_T = TypeVar("_T")
_U = TypeVar("_U")


def say_on_stderr(line: str) -> None:
    complain(line)


def default_workers() -> int:
    """The cores that this process may use, eight at most (see the module's weakness)."""
    return min(8, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


def prepare(
    files: Sequence[Path | str | Remote],
    tokenizer: Tokenizer,
    output: Path | None = None,
    kind: Kind | None = "pretrain",
    max_seq_length: int = ROW_LENGTH,
    *,
    reading: ReadingOptions = BY_CONTENT,
    workers: int | None = None,
    cache_dir: Path | None = None,
    say: Say = say_on_stderr,
) -> Path:
    """The path of a finished store of these files, made now or found. ``output`` names it; else it lies in the cache.

    ``kind`` None goes by the first record that is text or a conversation. Raises ``UserError`` for anything wrong with
    the files, the options or the disk.
    """
    cache = cache_dir or default_cache()
    with contextlib.ExitStack() as stack:
        sources = _gathered(files, cache, stack, say)
        options = Options(kind or _kind_of(sources, reading), max_seq_length, reading)
        if options.kind == "sft":
            tokenizer.check_chats()
        job = Job(tokenizer, options, workers or default_workers(), say)
        hashes = [content_hash(source, cache) for source in sources]
        key = job.key([(Path(source.name).name, digest) for source, digest in zip(sources, hashes, strict=True)])
        store = output or room(cache, "stores") / f"{_slug(sources[0].name)}-{key[:16]}"
        with _failing_clearly(store):
            store.parent.mkdir(parents=True, exist_ok=True)
            with locked(store.with_name(store.name + ".lock"), say):
                if not _found(store, key, output is None, say):
                    job.replace(sources, hashes, store, key)
    return store


@dataclass
class Job:
    """One store to build. ``build`` is called under the store's lock."""

    tokenizer: Tokenizer
    options: Options
    workers: int
    say: Say

    def key(self, sources: list[tuple[str, str]]) -> str:
        """A hash of all that decides what the store holds, or whether it may exist."""
        options, reading = self.options, self.options.reading
        # Pretraining stores whole documents: their rows are cut later, whatever max_seq_length is.
        length = options.max_seq_length if options.kind == "sft" else None
        parts = [
            _FORMAT_VERSION,
            sources,
            self.tokenizer.fingerprint,
            options.kind,
            length,
            reading.format,
            sorted(reading.fields.names.items()),
            reading.allow_special,
            reading.encoding,
            reading.skip_bad,
            reading.max_bad_ratio,
            *([reading.reasoning] if reading.reasoning != "train" else []),
            *([self._template] if self._template else []),
        ]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    @property
    def _template(self) -> str | None:
        """The hash of the chat template that came with the tokenizer, where there is one and it is used."""
        return self.tokenizer.template_hash if self.options.kind == "sft" else None

    def replace(self, sources: Sequence[Source], hashes: Sequence[str], store: Path, key: str) -> None:
        """Build the store; one that is there already goes when the new one is finished, not before."""
        self.build(sources, hashes, store, key, replace=_is_old_store(store))

    def build(self, sources: Sequence[Source], hashes: Sequence[str], store: Path, key: str, replace: bool) -> None:
        started = time.monotonic()
        reading = self.options.reading
        heads = [streams.inspect(source.path, source.name, reading.encoding) for source in sources]
        for head in heads:
            if reading.encoding is None and not head.encoding.startswith("utf-"):
                self.say(
                    f"{head.name}: read as {head.encoding.upper()} "
                    f"(confidence {head.confidence:.2f}; --encoding sets it)"
                )
        tally = Tally(reading.skip_bad, reading.max_bad_ratio, store.with_name(store.name + ".rejected.jsonl"))
        writer = StoreWriter(store, self.tokenizer.vocab_size, self.options.kind, replace)
        unread = [Unread() for _ in heads]
        try:
            with tally:
                for index, head in enumerate(heads):
                    chunks = chunks_of(head, reading.format, reading.fields.columns)
                    tally.finish_source(head.name, self._source(chunks, index, writer, tally, unread[index]))
            writer.finish(self._manifest(heads, hashes, key, tally, unread))
        except BaseException:
            writer.abort()
            raise
        self._report(store, tally.total, time.monotonic() - started)
        if fields := not_read([{"fields_not_read": found.to_json()} for found in unread]):
            self.say(f"  fields not read: {fields}")

    def _source(self, chunks: Iterable[Chunk], index: int, writer: StoreWriter, tally: Tally, unread: Unread) -> Counts:
        counts, said = Counts(), time.monotonic()
        work = partial(encode_chunk, tokenizer=self.tokenizer, options=self.options)
        for encoded in in_order(work, chunks, self.workers, lambda chunk: chunk.num_bytes):
            for document in encoded.documents:
                writer.add(document.tokens, document.trainable, index, document.line, document.num_bytes)
            counts.add(encoded.counts)
            unread.merge(encoded.unread)
            tally.add(encoded, counts)
            if time.monotonic() - said > _SAY_SECONDS:
                said = time.monotonic()
                self.say(f"preparing: {counts.records:,} records, {counts.tokens:,} tokens so far")
        return counts

    def _manifest(
        self, heads: Sequence[streams.Head], hashes: Sequence[str], key: str, tally: Tally, unread: Sequence[Unread]
    ) -> dict[str, object]:
        sources = [
            {
                "path": head.name,
                "sha256": digest,
                "container": container(head, self.options.reading.format),
                "encoding": head.encoding,
                "confidence": head.confidence,
                **vars(counts),
                "fields_not_read": found.to_json(),
            }
            for head, digest, counts, found in zip(heads, hashes, tally.sources, unread, strict=True)
        ]
        return {
            "key": key,
            "reading": _READING,
            "sources": sources,
            "counts": vars(tally.total),
            "tokenizer": self.tokenizer.fingerprint,
            **({"chat_template": self._template} if self._template else {}),
            "max_seq_length": self.options.max_seq_length,
            "allow_special": self.options.reading.allow_special,
        }

    @property
    def _why_dropped(self) -> str:
        return "reasoning=drop" if self.options.reading.reasoning == "drop" else "by the chat template"

    def _report(self, store: Path, total: Counts, seconds: float) -> None:
        self.say(
            f"prepared {total.used:,} of {total.records:,} records: {total.documents:,} documents, "
            f"{total.tokens:,} tokens, "
            f"{total.trainable_tokens:,} trainable, in {seconds:.1f} s -> {store}"
        )
        notes = (
            (total.rejected - total.too_long, f"bad records left out, see {store}.rejected.jsonl"),
            (total.trimmed, "conversations ended without an answer: those last turns were cut off"),
            (total.shortened, f"conversations lost their first turns to max_seq_length {self.options.max_seq_length}"),
            (total.answers_cut, "answers lost their end, because no whole exchange fits max_seq_length"),
            (total.reasoning_dropped, f"answers without their reasoning, which was left out ({self._why_dropped})"),
            (total.too_long, f"conversations have no answer that fits: left out, see {store}.rejected.jsonl"),
        )
        for number, what in notes:
            if number:
                self.say(f"  {number:,} {what}")


def _gathered(files: Sequence[Path | str | Remote], cache: Path, stack: contextlib.ExitStack, say: Say) -> list[Source]:
    spool = room(cache, "spool") / f"{os.getpid()}-{secrets.token_hex(8)}"
    stack.callback(remove_spool, spool)
    sources, ignored = expand(files, spool)
    if ignored:
        say(f"left out {len(ignored)} files that are no data: {', '.join(ignored[:5] + ['...'] * (len(ignored) > 5))}")
    if not sources:
        raise UserError("no file to prepare: name at least one")
    return sources


def _kind_of(sources: Sequence[Source], reading: ReadingOptions) -> Kind:
    """By the first record that is either; without one pretraining, whose rules then name every line."""
    fields, encoding = reading.fields, reading.encoding
    chunks = (chunk for source in sources for chunk in read_chunks(source, fields.format, encoding, fields.columns))
    return kind_of_first((record for chunk in chunks for record in chunk.records()), fields) or "pretrain"


@contextlib.contextmanager
def _failing_clearly(store: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{store}: can't be written: {error.strerror or error}; free space or name another place"
        ) from error


def _found(store: Path, key: str, cached: bool, say: Say) -> bool:
    """Whether the store is there, with this key, and is what was prepared. One that is not is said.

    Raises UserError for one in the cache that belongs to another user.
    """
    if _key_of(store) != key:
        return False
    if cached:
        for path in (store, *store.iterdir()):
            require_owner(path)
    try:
        manifest = TokenStore.open(store).manifest
    except UserError as error:
        say(f"made again: {error}")
        return False
    if cached and manifest.get("reading") != _READING:
        say(f"made again: {store}: made when some fields of records were read otherwise")
        return False
    if cached and "sha256" not in manifest:
        say(f"made again: {store}: made before stores had hashes, so it can't be verified")
        return False
    return True


def _key_of(store: Path) -> str | None:
    try:
        manifest = read_json(store, MANIFEST)
    except (OSError, ValueError):
        return None
    key = manifest.get("key") if isinstance(manifest, dict) else None
    return key if isinstance(key, str) else None


def _is_old_store(store: Path) -> bool:
    """Whether a store is there, to be replaced; raises ``UserError`` if it is something of the user's, or holds it."""
    if holds_store(store):
        return True
    if os.path.lexists(store) and not (is_directory(store) and not any(store.iterdir())):
        raise UserError(f"{store}: exists and is no token store, or holds more than one; name another output")
    return False


def not_read(sources: Sequence[Mapping[str, Any]]) -> str:
    """The fields of a manifest's ``sources`` that say something and were not read, with the first record of each."""
    fields: dict[str, dict[str, Any]] = {}
    for source in sources:
        for name, found in source.get("fields_not_read", {}).items():
            before = fields.setdefault(name, {**found, "records": 0})
            before["records"] += found["records"]
    return sentence(fields)


def _slug(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", Path(name).name.split(".")[0])[:40].strip("-") or "data"


def in_order(
    work: Callable[[_T], _U],
    items: Iterable[_T],
    workers: int,
    size: Callable[[_T], int] = lambda item: 0,
    budget: int = _IN_FLIGHT,
) -> Iterator[_U]:
    """``map`` over a pool of threads, in order, never more than ``workers + 2`` items ahead of the consumer.

    Nor more than ``budget`` bytes by ``size``: what is being worked on takes about ten times its size, so that a file
    of huge records would otherwise need gigabytes. One that is larger alone is worked on alone.
    """
    with ThreadPoolExecutor(workers, thread_name_prefix="encode") as pool:
        waiting: deque[tuple[int, Future[_U]]] = deque()
        try:
            for item in items:
                weight = size(item)
                while waiting and sum(w for w, _ in waiting) + weight > budget:
                    yield waiting.popleft()[1].result()
                waiting.append((weight, pool.submit(work, item)))
                if len(waiting) > workers + 2:
                    yield waiting.popleft()[1].result()
            while waiting:
                yield waiting.popleft()[1].result()
        finally:
            for _, future in waiting:
                future.cancel()
