"""The plain text of any mix of files, for training a tokenizer: documents and the contents of conversations.

Contract: the same rules as for preparing a store (docs/data.md). Every record is used or rejected; bad records end it
with the first 20 as ``file:line: reason``, or with ``skip_bad`` go to the quarantine file, up to ``max_bad_ratio``.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from minimind.data.read.sources import Chunk, Source, expand, read_chunks
from minimind.data.records.conversations import Conversation
from minimind.data.records.encoding import Encoded, Reject, between_marks, document_of, only_marks
from minimind.data.records.options import BY_CONTENT, ReadingOptions
from minimind.data.records.rejects import Tally


def read_texts(files: Sequence[Path | str], tally: Tally, reading: ReadingOptions = BY_CONTENT) -> Iterator[str]:
    """Every text in ``files`` (files, directories, globs, ``-``), in order and one at a time.

    ``tally`` counts, and decides about bad records. With ``allow_special`` the marks that texts were written with are
    left out, since they are tokens of their own. Raises UserError for a file that can't be read as a whole.
    """
    with tempfile.TemporaryDirectory() as spool, tally:
        sources, _ = expand(files, Path(spool))
        for source in sources:
            yield from _texts_of(source, tally, reading)


def _texts_of(source: Source, tally: Tally, reading: ReadingOptions) -> Iterator[str]:
    seen = Encoded()
    for chunk in read_chunks(source, reading.format, reading.encoding, reading.fields.columns):
        seen.rejects.clear()
        for text in _texts_in(chunk, seen, reading):
            seen.counts.bytes += len(text.encode("utf-8"))
            yield text
        seen.counts.rejected += len(seen.rejects)
        tally.add(seen, seen.counts)
    tally.finish_source(source.name, seen.counts)


def _texts_in(chunk: Chunk, seen: Encoded, reading: ReadingOptions) -> Iterator[str]:
    """The chunk's texts; what is rejected is added to ``seen``."""
    for record in chunk.records():
        seen.counts.records += 1
        document = document_of(record, None, reading.fields)
        if isinstance(document, str) and reading.allow_special:
            texts = between_marks(document)
            document = document if texts else only_marks(record.file, record.line, document)
        else:
            texts = _spoken(document)
        if isinstance(document, Reject):
            seen.rejects.append(document)
        else:
            seen.counts.used += 1
            yield from texts


def _spoken(document: str | Conversation | Reject) -> list[str]:
    if isinstance(document, Conversation):
        return [turn.content for turn in document.turns]
    return [document] if isinstance(document, str) else []
