"""The plain text of any mix of files, for training a tokenizer: documents and the contents of conversations.

Lines that can't be read are left out here: `minimind check` names them, and preparing a store refuses them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from minimind.data.conversations import BadRecord, Fields, Kind, detect, to_document
from minimind.data.sources import Source, expand, read_chunks


def read_texts(files: Sequence[Path | str]) -> Iterator[str]:
    """Every text in ``files`` (files, directories, globs, ``-``), in order and one at a time.

    Raises UserError for a file that can't be read as a whole.
    """
    with tempfile.TemporaryDirectory() as spool:
        sources, _ = expand(files, Path(spool))
        for source in sources:
            yield from _texts_of(source)


def _texts_of(source: Source) -> Iterator[str]:
    fields = Fields.parse(None, None, None)
    for chunk in read_chunks(source):
        for record in chunk.records():
            if record.error is not None:
                continue
            try:
                kind: Kind = "pretrain" if detect(record.value, None, fields) == "text" else "sft"
                document = to_document(record.value, kind, fields)
            except BadRecord:
                continue
            yield from [document] if isinstance(document, str) else (turn.content for turn in document.turns)
