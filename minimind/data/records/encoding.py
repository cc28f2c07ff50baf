"""Chunks of records -> token arrays, the work that `prepare` does in parallel. Pure: no files, no state.

Contract: every record of a chunk comes back as documents (at least one) or as exactly one ``Reject``. A
pretraining document is bos, text, eos, whatever its length: packing splits it, each token trained once. A
conversation is at most ``max_seq_length + 1`` tokens (``max_seq_length`` predictions) and has a trainable
token; how it is shortened is the rule of `minimind.text.chat.fit`, and one that can't be shortened so is a
``Reject`` with ``too_long`` set: not a bad line, a choice of row length.

With ``allow_special`` a pretraining text is taken as written with begin and end marks:
``<|im_start|>A<|im_end|> <|im_start|>B<|im_end|>`` (MiniMind's pretrain_hq.jsonl; ``<s>A</s>`` in its older
form) is the two documents A and B, each with one bos and one eos, because in MiniMind's tokenizer those marks
*are* bos and eos. Where a role and a line break follow each mark the text is a rendered chat, and the marks
are the chat's own ids.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from minimind.base.defaults import ROW_LENGTH
from minimind.data.read.sources import Chunk, Record
from minimind.data.records.conversations import Conversation, Fields, Kind, detect_format, to_document, unread_fields
from minimind.data.records.options import BY_CONTENT, ReadingOptions
from minimind.data.records.unread import Unread
from minimind.data.records.values import BadRecord
from minimind.text.chat import ROLES, Fitted, NotRendered, Turn, fit, is_answer
from minimind.text.tokenizer import IM_END, IM_START, Tokenizer

_EXCERPT = 2000
_MARKS = re.compile("(" + "|".join(re.escape(mark) for mark in (IM_START, IM_END, "<s>", "</s>")) + ")")
_CHAT = re.compile(re.escape(IM_START) + f"(?:{'|'.join(ROLES)})\n")


@dataclass(frozen=True)
class Options:
    """Everything besides sources and tokenizer that decides what a store holds."""

    kind: Kind
    max_seq_length: int = ROW_LENGTH
    reading: ReadingOptions = BY_CONTENT


class EncodedDocument(NamedTuple):
    """Ids bos..eos (or a rendered chat), flags for SFT, the line, and the UTF-8 bytes of the text that carries loss."""

    tokens: npt.NDArray[np.int32]
    trainable: npt.NDArray[np.bool_] | None
    line: int
    num_bytes: int


class Reject(NamedTuple):
    """One record that is not used. ``too_long``: nothing is wrong with it but its length."""

    file: str
    line: int
    reason: str
    excerpt: str = ""
    too_long: bool = False
    element: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.told_apart}"

    @property
    def told_apart(self) -> str:
        """The reason, after which element of a list it is where the line alone doesn't say."""
        return f"record {self.element} of the list: {self.reason}" if self.element else self.reason


@dataclass
class Counts:
    """What became of the records. ``used + rejected == records``, always; ``too_long`` is part of ``rejected``."""

    records: int = 0
    used: int = 0
    rejected: int = 0
    too_long: int = 0
    documents: int = 0
    tokens: int = 0
    trainable_tokens: int = 0
    bytes: int = 0
    trimmed: int = 0  # conversations whose last turns had no answer and were cut off
    shortened: int = 0  # conversations that lost whole turns to max_seq_length
    answers_cut: int = 0  # conversations whose only exchange was too long, so that the answer lost its end
    reasoning_dropped: int = 0  # answers whose reasoning was left out

    def add(self, other: Counts) -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


@dataclass
class Encoded:
    """One chunk's documents and rejects, in order of lines, their counts, and the fields that nothing read."""

    documents: list[EncodedDocument] = field(default_factory=list)
    rejects: list[Reject] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)
    unread: Unread = field(default_factory=Unread)


def encode_chunk(chunk: Chunk, tokenizer: Tokenizer, options: Options) -> Encoded:
    """All of one chunk. Thread-safe; SentencePiece works without Python's lock, so threads run in parallel."""
    encoded = Encoded()
    texts: list[tuple[int, str]] = []
    for record in chunk.records():
        encoded.counts.records += 1
        document = document_of(record, options.kind, options.reading.fields)
        if isinstance(document, Reject):
            encoded.rejects.append(document)
            continue
        if isinstance(document, str):
            texts.append((record.line, document))
        elif not _add_conversation(encoded, document, record, tokenizer, options.max_seq_length):
            continue
        note_unread(encoded.unread, record, document, options.reading.fields)
    if options.reading.allow_special:
        _add_marked(encoded, texts, chunk.file, tokenizer)
    else:
        _add_texts(encoded, texts, tokenizer)
    return _counted(encoded)


def document_of(record: Record, kind: Kind | None, fields: Fields) -> str | Conversation | Reject:
    """The text or conversation of a record, by the rules of docs/data.md. ``kind`` None takes both."""
    try:
        if record.error is not None:
            raise BadRecord(record.error)
        found = kind or kind_of(record, fields)
        return to_document(record.value, found, fields)
    except BadRecord as error:
        excerpt = record.excerpt or excerpt_of(record)
        return Reject(record.file, record.line, str(error), excerpt, element=record.element)


def note_unread(unread: Unread, record: Record, document: str | Conversation, fields: Fields) -> None:
    """Count what the record holds beside its document."""
    names = unread_fields(record.value, document, fields)
    if names:
        of_the_list = f" record {record.element}" if record.element else ""
        unread.add(names, f"{record.file}:{record.line}{of_the_list}")


def kind_of_first(records: Iterable[Record], fields: Fields) -> Kind | None:
    """Pretraining text or conversations, by the first record that is either; None if there is none."""
    for record in records:
        try:
            return kind_of(record, fields)
        except BadRecord as error:
            if error.kind is not None:
                return error.kind
    return None


def kind_of(record: Record, fields: Fields) -> Kind:
    """Whether a record is pretraining text or a conversation. Raises ``BadRecord`` if it is neither."""
    if record.error is not None:
        raise BadRecord(record.error)
    return "pretrain" if detect_format(record.value, None, fields) == "text" else "sft"


def _add_texts(encoded: Encoded, texts: list[tuple[int, str]], tokenizer: Tokenizer) -> None:
    arrays = tokenizer.encode_arrays([text for _, text in texts]) if texts else []
    for (line, text), ids in zip(texts, arrays, strict=True):
        encoded.documents.append(EncodedDocument(_framed(ids, tokenizer), None, line, len(text.encode("utf-8"))))
    encoded.counts.used += len(texts)


def _add_marked(encoded: Encoded, texts: Iterable[tuple[int, str]], file: str, tokenizer: Tokenizer) -> None:
    for line, text in texts:
        pieces = [(line, piece) for piece in split_marked(text)]
        if not pieces:
            encoded.rejects.append(only_marks(file, line, text))
        elif len(pieces) == 1 and _CHAT.search(pieces[0][1]):
            ids = np.array(tokenizer.encode_marked(text), dtype=np.int32)
            encoded.documents.append(EncodedDocument(_framed(ids, tokenizer), None, line, len(text.encode("utf-8"))))
            encoded.counts.used += 1
        else:
            used = encoded.counts.used
            _add_texts(encoded, pieces, tokenizer)
            encoded.counts.used = used + 1


def only_marks(file: str, line: int, text: str) -> Reject:
    """The reject of a text that holds marks and nothing between them."""
    return Reject(file, line, "only special tokens, no text", text[:_EXCERPT])


def split_marked(text: str) -> list[str]:
    """The documents inside a text written with begin and end marks; a rendered chat stays one piece."""
    return [text] if _CHAT.search(text) else between_marks(text)


def between_marks(text: str) -> list[str]:
    """What stands between the marks, without what is only white space."""
    return [piece for piece in _MARKS.split(text)[::2] if piece and not piece.isspace()]


def _add_conversation(
    encoded: Encoded, conversation: Conversation, record: Record, tokenizer: Tokenizer, max_seq_length: int
) -> bool:
    """Whether it can be written and an answer of it fits."""
    fitted, reason = None, f"no answer with its question fits {max_seq_length} tokens; raise max_seq_length to use it"
    too_long = True
    try:
        fitted = fit(conversation.turns, tokenizer, max_seq_length + 1)
    except NotRendered as error:
        reason, too_long = str(error), False
    if fitted is None:
        encoded.rejects.append(
            Reject(record.file, record.line, reason, excerpt_of(record), too_long=too_long, element=record.element)
        )
        return False
    counts = encoded.counts
    counts.used += 1
    counts.trimmed += conversation.trimmed > 0
    counts.reasoning_dropped += conversation.dropped + fitted.rendered.unspoken
    counts.answers_cut += fitted.answer_cut
    counts.shortened += len(fitted.turns) < len(conversation.turns)
    ids = np.array(fitted.rendered.ids, dtype=np.int32)
    trainable = np.array(fitted.rendered.trainable, dtype=np.bool_)
    encoded.documents.append(
        EncodedDocument(ids, trainable, record.line, _answer_bytes(conversation.turns, fitted, tokenizer))
    )
    return True


def _answer_bytes(turns: list[Turn], fitted: Fitted, tokenizer: Tokenizer) -> int:
    if fitted.answer_cut or tokenizer.chat_template is not None:
        spoken = [i for i, flag in zip(fitted.rendered.ids, fitted.rendered.trainable, strict=True) if flag]
        return len(tokenizer.decode(spoken).encode("utf-8"))
    return sum(len(turns[i].content.encode("utf-8")) for i in fitted.turns if is_answer(turns[i]))


def _framed(ids: npt.NDArray[np.int32], tokenizer: Tokenizer) -> npt.NDArray[np.int32]:
    framed = np.empty(len(ids) + 2, dtype=np.int32)
    framed[0], framed[1:-1], framed[-1] = tokenizer.bos_id, ids, tokenizer.eos_id
    return framed


def _counted(encoded: Encoded) -> Encoded:
    counts = encoded.counts
    encoded.rejects.sort(key=lambda reject: reject.line)
    counts.rejected = len(encoded.rejects)
    counts.too_long = sum(reject.too_long for reject in encoded.rejects)
    counts.documents = len(encoded.documents)
    for document in encoded.documents:
        counts.tokens += len(document.tokens)
        counts.bytes += document.num_bytes
        # In pretraining every token but bos is a target.
        flags = document.trainable
        counts.trainable_tokens += len(document.tokens) - 1 if flags is None else int(flags.sum())
    return encoded


def excerpt_of(record: Record) -> str:
    """The record's value, short, for the quarantine file."""
    return _spell(record.value, _EXCERPT)[:_EXCERPT]


def _spell(value: object, room: int) -> str:
    """Like ``repr``, but without walking through a huge value: stops when ``room`` characters are spelled."""
    if isinstance(value, str):
        return value[:room]
    return "".join(_clipped(value, room))


def _clipped(value: object, room: int) -> Iterator[str]:
    stack: list[object] = [value]
    while stack and room > 0:
        item = stack.pop()
        if isinstance(item, dict):
            stack.extend(part for pair in reversed(list(item.items())[:room]) for part in (pair[1], f"{pair[0]}: "))
            continue
        if isinstance(item, list):
            stack.extend(reversed(item[:room]))
            continue
        text = f"{item[:room]} " if isinstance(item, str) else f"{item} "
        room -= len(text)
        yield text
