"""A SentencePiece BPE vocabulary of our own training, over text as it is.

SentencePiece writes a space as U+2581 inside its pieces, so a real U+2581 would come back as a space. Here a real one
is encoded as its three UTF-8 byte pieces, and decoding goes through a table of bytes per id instead of SentencePiece's
own decoder.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece

from minimind.base.errors import UserError
from minimind.text.codec import IM_END, IM_START, ByteTable, Ids, refuse_surrogates

FILE_NAME = "tokenizer.model"
PAD_ID, BOS_ID, EOS_ID, UNK_ID = 0, 1, 2, 3
ADVICE = "`minimind train-tokenizer --help` says how to train one"
SPACE_SYMBOL = "\u2581"  # SentencePiece's spelling of a space inside a piece
_SPACE_SYMBOL_BYTES = tuple(SPACE_SYMBOL.encode("utf-8"))
_MOST_PIECES, _LONGEST_PIECE = (1 << 20, 1 << 10)  # pieces, and characters of one: what tables and merges are made of
_LONG_TEXT = 1 << 20  # characters; SentencePiece takes about 60 bytes for each character of one string
_SMALL_BATCH = 32  # below this, starting SentencePiece's thread costs more than it gives


class SentencePieceCodec:
    """A trained model held in memory. UserError for one that is not ours."""

    strips_space = False
    no_chats: str | None = None
    swallows: Mapping[str, tuple[bool, bool]] = {}
    joins_special: str | None = None
    templates: Mapping[str, str] = {}
    names: Mapping[str, str] = {}

    def __init__(self, model: bytes, path: Path) -> None:
        self.files: Mapping[str, bytes] = {FILE_NAME: model}
        self._processor = _open_model(model, path)
        self.vocab_size: int = self._processor.vocab_size()
        self.pad_id, self.bos_id, self.eos_id = PAD_ID, BOS_ID, EOS_ID
        self.im_start_id: int = self._processor.PieceToId(IM_START)
        self.im_end_id: int = self._processor.PieceToId(IM_END)
        named = (PAD_ID, BOS_ID, EOS_ID, UNK_ID, self.im_start_id, self.im_end_id)
        self.special: Mapping[int, str] = {token: self._processor.IdToPiece(token) for token in named}
        self.text_bytes, self.special_bytes = _byte_tables(self._processor, path)
        self._longest_piece = max(map(len, self.text_bytes.values()))  # bytes
        self._pairs = _inner_pairs(self.text_bytes.values())
        first_byte: int = self._processor.PieceToId("<0x00>")
        self._space_symbol_ids = np.array([first_byte + byte for byte in _SPACE_SYMBOL_BYTES], dtype=np.int32)

    def encode(self, text: str) -> list[int]:
        """The ids of ordinary text; no bos, no eos, never a control id. ValueError on a lone surrogate."""
        if SPACE_SYMBOL in text or len(text) > _LONG_TEXT:
            ids: list[int] = self._encode_in_parts(text).tolist()
        else:
            ids = self._encode_plain(text, int)
        return ids

    def least_tokens(self, text: str) -> int:
        """A number that `encode` can't stay below, at no cost: the text is its pieces' bytes, one after the other."""
        spaces = text.count(SPACE_SYMBOL)
        rest = len(text.encode("utf-8", "surrogatepass")) - spaces * len(_SPACE_SYMBOL_BYTES)
        return spaces * len(_SPACE_SYMBOL_BYTES) + -(-rest // self._longest_piece)

    def encode_batch(self, texts: Sequence[str], threads: int = 1) -> list[list[int]]:
        """`encode` of each text, in one call of SentencePiece (about 15 MB/s a thread)."""
        if len(texts) < _SMALL_BATCH:
            return [self.encode(text) for text in texts]
        plain, odd = self._separate(texts)
        encoded: list[list[int]] = self._encode_many(plain, threads, int)
        for i in odd:
            encoded[i] = self._encode_in_parts(texts[i]).tolist()
        return encoded

    def encode_behind(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode_batch`: nothing is put in front of a text."""
        return self.encode_batch(texts)

    encode_inner = encode_behind

    def encode_arrays(self, texts: Sequence[str], threads: int = 1) -> list[Ids]:
        """`encode_batch` as one read-only int32 array a text: less memory than lists, for writing stores."""
        plain, odd = self._separate(texts)
        encoded: list[Ids] = self._encode_many(plain, threads, "numpy")
        for i in odd:
            encoded[i] = self._encode_in_parts(texts[i])
        return encoded

    def _encode_many(self, texts: list[str], threads: int, return_type: Any) -> list[Any]:
        try:
            many: list[Any] = self._processor.Encode(texts, num_threads=threads, return_type=return_type)
            return many
        except TypeError:  # what the binding says of a string that has no UTF-8 form
            for number, text in enumerate(texts):
                refuse_surrogates(text, f"text {number}: ")
            raise

    def _encode_plain(self, text: str, return_type: Any) -> Any:
        try:
            return self._processor.Encode(text, return_type=return_type)
        except RuntimeError:  # the same from the binding for a single string
            refuse_surrogates(text, "")
            raise

    def _separate(self, texts: Sequence[str]) -> tuple[list[str], list[int]]:
        """The texts with the few that need `_encode_in_parts` blanked, and the indices of those."""
        odd = [i for i, text in enumerate(texts) if SPACE_SYMBOL in text or len(text) > _LONG_TEXT]
        plain = list(texts)
        for i in odd:
            plain[i] = ""
        return plain, odd

    def _encode_in_parts(self, text: str) -> Ids:
        parts = []
        for number, part in enumerate(text.split(SPACE_SYMBOL)):
            if number:
                parts.append(self._space_symbol_ids)
            parts.extend(self._encode_plain(section, "numpy") for section in self._sections(part))
        return np.concatenate(parts)

    def _sections(self, text: str) -> Iterator[str]:
        """Cut a long text where no piece can lie across the cut, which bounds memory and changes no id.

        A merge across the cut would need a piece with these two characters side by side. Where 4,096
        characters offer no such place the cut is made anyway: still exact text, perhaps one token more.
        """
        start = 0
        while len(text) - start > _LONG_TEXT:
            end = start + _LONG_TEXT
            places = range(end, end - 4096, -1)
            cut = next((i for i in places if text[i - 1 : i + 1] not in self._pairs), end)
            yield text[start:cut]
            start = cut
        yield text[start:]


def _open_model(model: bytes, path: Path) -> sentencepiece.SentencePieceProcessor:
    """Load and check the ids that everything else relies on."""
    processor = sentencepiece.SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(model)
    except RuntimeError as error:
        raise UserError(f"{path} is not a SentencePiece model; {ADVICE}") from error
    if processor.vocab_size() > _MOST_PIECES:
        raise UserError(f"{path}: {processor.vocab_size():,} pieces; the limit is {_MOST_PIECES:,}")
    special = (processor.pad_id(), processor.bos_id(), processor.eos_id())
    if special != (PAD_ID, BOS_ID, EOS_ID):
        raise UserError(f"{path}: pad, bos and eos have the ids {special}, not (0, 1, 2); {ADVICE}")
    if not all(processor.IsControl(processor.PieceToId(name)) for name in (IM_START, IM_END)):
        raise UserError(f"{path} has no control symbols {IM_START} and {IM_END}; {ADVICE}")
    if not all(processor.IsByte(processor.PieceToId(f"<0x{byte:02X}>")) for byte in range(256)):
        raise UserError(f"{path} was trained without byte fallback; {ADVICE}")
    return processor


def _byte_tables(processor: sentencepiece.SentencePieceProcessor, path: Path) -> tuple[ByteTable, ByteTable]:
    """id -> bytes of its text, with control symbols empty, and with control symbols spelled."""
    text: dict[int, bytes] = {}
    special: dict[int, bytes] = {}
    for i in range(processor.vocab_size()):
        piece: str = processor.IdToPiece(i)
        if len(piece) > _LONGEST_PIECE:
            raise UserError(f"{path}: piece {i} has {len(piece):,} characters; the limit is {_LONGEST_PIECE:,}")
        if processor.IsByte(i):
            text[i] = special[i] = bytes([int(piece[3:5], 16)])
        elif processor.IsControl(i) or processor.IsUnknown(i):
            text[i], special[i] = b"", piece.encode("utf-8")
        else:
            text[i] = special[i] = piece.replace(SPACE_SYMBOL, " ").encode("utf-8")
    return text, special


def _inner_pairs(pieces: Iterable[bytes]) -> frozenset[str]:
    """All two-character strings that occur inside a piece."""
    texts = (piece.decode("utf-8") for piece in pieces if len(piece) > 1)
    return frozenset(text[i : i + 2] for text in texts for i in range(len(text) - 1))
