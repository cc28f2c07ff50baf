"""The tokenizer: SentencePiece BPE over text as it is; every Unicode string comes back exactly.

Contract
    ids    pad 0, bos 1, eos 2, unk 3, ``<|im_start|>`` 4, ``<|im_end|>`` 5, 256 byte pieces, learned pieces.
    text   Ordinary text never gives one of the first six ids, whatever it spells; the chat template does.
    exact  ``decode(encode(text)) == text`` for every string without lone surrogates (those: ValueError).

SentencePiece writes a space as U+2581 inside its pieces, so a real U+2581 would come back as a space. Here a real one
is encoded as its three UTF-8 byte pieces, and decoding goes through a table of bytes per id instead of SentencePiece's
own decoder. No learned piece holds a line break (training cuts at them), so the ids on the two sides of a line break do
not depend on each other. That lets the chat template encode "role, line break, content" piece by piece and still agree
with anyone who encodes the whole string; letting pieces cross line breaks would save about 3% of the tokens.

Known weakness: characters rarer than ``character_coverage`` cost one token per UTF-8 byte.
"""

from __future__ import annotations

import codecs
import hashlib
import heapq
import io
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import sentencepiece

from minimind.base.defaults import VOCABULARY
from minimind.base.errors import UserError
from minimind.base.files import read_inside, read_named, write_bytes_durably

FILE_NAME = "tokenizer.model"
PAD_ID, BOS_ID, EOS_ID, UNK_ID = 0, 1, 2, 3
IM_START, IM_END = "<|im_start|>", "<|im_end|>"

_SPACE_SYMBOL = "\u2581"  # SentencePiece's spelling of a space inside a piece
_SPACE_SYMBOL_BYTES = tuple(_SPACE_SYMBOL.encode("utf-8"))
_TRAINING_BREAKS = re.compile("[\n\0\u2581\u2585]+")  # the trainer drops or misreads lines with the last three
_SECTION = 4096  # characters of training text sampled together
_LONG_TEXT = 1 << 20  # characters; SentencePiece takes about 60 bytes for each character of one string
_SMALL_BATCH = 32  # below this, starting SentencePiece's thread costs more than it gives
_PROBE = "  a\tb \r\n\x00 Ａ①ﬁ 你好，1234 \U0001f600\ufffd <s> "  # every normaliser but identity alters it
_ADVICE = "`minimind train-tokenizer --help` says how to train one"

_Ids = npt.NDArray[np.int32]
_ByteTable = dict[int, bytes]


class Tokenizer:
    """A trained model held in memory, picklable. Make one with `Tokenizer.load`."""

    def __init__(self, model: bytes, path: Path) -> None:
        self.path = path
        self.fingerprint = hashlib.sha256(model).hexdigest()
        self._model = model
        self._processor = _open_model(model, path)
        self.vocab_size: int = self._processor.vocab_size()
        self.pad_id, self.bos_id, self.eos_id = PAD_ID, BOS_ID, EOS_ID
        self.im_start_id: int = self._processor.PieceToId(IM_START)
        self.im_end_id: int = self._processor.PieceToId(IM_END)
        self._text_bytes, self._special_bytes = _byte_tables(self._processor)
        self._longest_piece = max(map(len, self._text_bytes.values()))  # bytes
        self._pairs = _inner_pairs(self._text_bytes.values())
        first_byte: int = self._processor.PieceToId("<0x00>")
        self._space_symbol_ids = np.array([first_byte + byte for byte in _SPACE_SYMBOL_BYTES], dtype=np.int32)
        self._check()

    @classmethod
    def load(cls, path: str | Path) -> Tokenizer:
        """Read a tokenizer.model, or the one in a directory. UserError if it is absent or not one of ours."""
        path = Path(path)
        file = path / FILE_NAME if path.is_dir() else path
        try:
            model = read_inside(path, FILE_NAME) if path.is_dir() else read_named(path)
        except OSError as error:
            raise UserError(
                f"no tokenizer at {file} ({error.strerror}); give its file or directory, or {_ADVICE}"
            ) from error
        return cls(model, file)

    def __reduce__(self) -> tuple[type[Tokenizer], tuple[bytes, Path]]:
        return Tokenizer, (self._model, self.path)

    @property
    def model_bytes(self) -> bytes:
        """The SentencePiece model file, byte for byte."""
        return self._model

    def encode(self, text: str) -> list[int]:
        """The ids of ordinary text; no bos, no eos, never a control id. ValueError on a lone surrogate."""
        if _SPACE_SYMBOL in text or len(text) > _LONG_TEXT:
            ids: list[int] = self._encode_in_parts(text).tolist()
        else:
            ids = self._encode_plain(text, int)
        return ids

    def least_tokens(self, text: str) -> int:
        """A number that `encode` can't stay below, at no cost: the text is its pieces' bytes, one after the other."""
        spaces = text.count(_SPACE_SYMBOL)
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

    def encode_arrays(self, texts: Sequence[str], threads: int = 1) -> list[_Ids]:
        """`encode_batch` as one read-only int32 array a text: less memory than lists, for writing stores."""
        plain, odd = self._separate(texts)
        encoded: list[_Ids] = self._encode_many(plain, threads, "numpy")
        for i in odd:
            encoded[i] = self._encode_in_parts(texts[i])
        return encoded

    def encode_marked(self, text: str) -> list[int]:
        """As `encode`, but ``<|im_start|>`` and ``<|im_end|>`` in the text become their ids.

        Only for files written with them on purpose (``--allow-special``): elsewhere they are ordinary characters.
        """
        ids: list[int] = []
        for part in re.split(f"({re.escape(IM_START)}|{re.escape(IM_END)})", text):
            special = {IM_START: self.im_start_id, IM_END: self.im_end_id}.get(part)
            ids.extend(self.encode(part) if special is None else [special])
        return ids

    def decode(self, ids: Iterable[int], with_special: bool = False) -> str:
        """The text of the ids. Control ids are left out, or spelled (``<|im_end|>``) with `with_special`.

        Bytes that are not UTF-8 (a model may generate them) become U+FFFD. ValueError for an id outside the vocabulary.
        """
        table = self._special_bytes if with_special else self._text_bytes
        try:
            data = b"".join([table[i] for i in ids])
        except KeyError as error:
            raise _outside(error.args[0], self.vocab_size) from None
        return data.decode("utf-8", "replace")

    def stream(self) -> StreamDecoder:
        """A decoder for ids that arrive one by one."""
        return StreamDecoder(self._text_bytes)

    def _check(self) -> None:
        if self.decode(self.encode(_PROBE)) != _PROBE:
            raise UserError(f"{self.path}: this SentencePiece model alters text; {_ADVICE}")

    def _encode_many(self, texts: list[str], threads: int, return_type: Any) -> list[Any]:
        try:
            many: list[Any] = self._processor.Encode(texts, num_threads=threads, return_type=return_type)
            return many
        except TypeError:  # what the binding says of a string that has no UTF-8 form
            for number, text in enumerate(texts):
                _refuse_surrogates(text, f"text {number}: ")
            raise

    def _encode_plain(self, text: str, return_type: Any) -> Any:
        try:
            return self._processor.Encode(text, return_type=return_type)
        except RuntimeError:  # the same from the binding for a single string
            _refuse_surrogates(text, "")
            raise

    def _separate(self, texts: Sequence[str]) -> tuple[list[str], list[int]]:
        """The texts with the few that need `_encode_in_parts` blanked, and the indices of those."""
        odd = [i for i, text in enumerate(texts) if _SPACE_SYMBOL in text or len(text) > _LONG_TEXT]
        plain = list(texts)
        for i in odd:
            plain[i] = ""
        return plain, odd

    def _encode_in_parts(self, text: str) -> _Ids:
        parts = []
        for number, part in enumerate(text.split(_SPACE_SYMBOL)):
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


class StreamDecoder:
    """Ids in, text out, never half a character. The parts joined equal `Tokenizer.decode` of all ids."""

    def __init__(self, table: dict[int, bytes]) -> None:
        self._table = table
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """The characters that this id completes; often none while a character's bytes arrive."""
        if token_id not in self._table:
            raise _outside(token_id, len(self._table))
        return self._utf8.decode(self._table[token_id])

    def flush(self) -> str:
        """What is left at the end: U+FFFD for an unfinished character, else nothing. Starts afresh."""
        rest = self._utf8.decode(b"", final=True)
        self._utf8.reset()
        return rest


def train_tokenizer(
    texts: Iterable[str],
    output: str | Path,
    vocab_size: int = VOCABULARY,
    *,
    character_coverage: float = 0.995,
    sample_bytes: int = 64 << 20,
    seed: int = 0,
) -> Path:
    """Train on the texts and write the model atomically; the path of the model file is returned.

    `output` is a directory, or a file name that ends in ``.model``. The same texts and options give the
    same bytes. Above `sample_bytes` of UTF-8 a uniform sample of sections of 4,096 characters is used,
    which bounds memory whatever the size of the texts. `character_coverage` is the share of the characters
    that get a piece of their own: on 30 MB of mixed Chinese and English 0.995 gave 1.710 characters a
    token, and SentencePiece's own 0.9995, which spends a small vocabulary on rare Han characters, 1.568.

    UserError when the texts cannot give `vocab_size` pieces (naming the largest they can), when
    `vocab_size` cannot hold their characters, on a lone surrogate, and when the file cannot be written.
    """
    file = Path(output) if Path(output).suffix == ".model" else Path(output) / FILE_NAME
    sections = _sample(texts, sample_bytes, seed)
    model = _train(sections, vocab_size, character_coverage)
    Tokenizer(model, file)  # refuses a model that would not hold the contract, before anything is written
    _write_atomically(file, model)
    return file


def _sample(texts: Iterable[str], limit: int, seed: int) -> list[str]:
    """Sections of the texts, all of them or, above `limit` bytes, those with the smallest random keys."""
    draw = random.Random(seed).random
    kept: list[tuple[float, int, int, str]] = []  # a heap: (minus key, arrival, bytes, section)
    total = arrival = 0
    for number, text in enumerate(texts):
        _refuse_surrogates_for_user(text, number)
        for start in range(0, len(text), _SECTION):
            section = text[start : start + _SECTION]
            size = len(section.encode("utf-8"))
            heapq.heappush(kept, (-draw(), arrival, size, section))
            total, arrival = total + size, arrival + 1
            while total > limit and len(kept) > 1:
                total -= heapq.heappop(kept)[2]
    return [section for _, _, _, section in sorted(kept, key=lambda item: item[1])]


def _train(sections: list[str], vocab_size: int, character_coverage: float) -> bytes:
    lines = (line for section in sections for line in _TRAINING_BREAKS.split(section) if line)
    written = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.Train(
            sentence_iterator=lines,
            model_writer=written,
            model_type="bpe",
            vocab_size=vocab_size,
            character_coverage=character_coverage,
            byte_fallback=True,
            required_chars=_SPACE_SYMBOL,  # else text without spaces gives a model that cannot write one
            normalization_rule_name="identity",
            add_dummy_prefix=False,
            remove_extra_whitespaces=False,
            allow_whitespace_only_pieces=True,  # indentation becomes one token
            split_digits=True,
            pad_id=PAD_ID,
            bos_id=BOS_ID,
            eos_id=EOS_ID,
            unk_id=UNK_ID,
            control_symbols=[IM_START, IM_END],
            max_sentence_length=8 * _SECTION,  # bytes; longer lines would be dropped, and no line is longer
            num_threads=1,
            minloglevel=3,
        )
    except RuntimeError as error:
        raise _explain_training(str(error), vocab_size) from error
    return written.getvalue()


def _explain_training(message: str, vocab_size: int) -> UserError:
    """SentencePiece's reasons in our words; a reason that we don't know is passed on as it is."""
    if "!sentences_.empty()" in message:
        return UserError("no text to train the tokenizer on: the files are empty; give a file with text")
    if found := re.search(r"Vocabulary size too high.*<= (\d+)", message):
        return UserError(
            f"too little text for a vocabulary of {vocab_size}: these files give at most {found[1]} pieces; "
            f"add text or use --vocab-size {found[1]} or less"
        )
    if found := re.search(r"smaller than required_chars\. \d+ vs (\d+)", message):
        return UserError(
            f"a vocabulary of {vocab_size} is too small for the characters of these files; "
            f"use --vocab-size {found[1]} or more"
        )
    return UserError(f"SentencePiece could not train the tokenizer: {message.strip()}")


def _open_model(model: bytes, path: Path) -> sentencepiece.SentencePieceProcessor:
    """Load and check the ids that everything else relies on."""
    processor = sentencepiece.SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(model)
    except RuntimeError as error:
        raise UserError(f"{path} is not a SentencePiece model; {_ADVICE}") from error
    special = (processor.pad_id(), processor.bos_id(), processor.eos_id())
    if special != (PAD_ID, BOS_ID, EOS_ID):
        raise UserError(f"{path}: pad, bos and eos have the ids {special}, not (0, 1, 2); {_ADVICE}")
    if not all(processor.IsControl(processor.PieceToId(name)) for name in (IM_START, IM_END)):
        raise UserError(f"{path} has no control symbols {IM_START} and {IM_END}; {_ADVICE}")
    if not all(processor.IsByte(processor.PieceToId(f"<0x{byte:02X}>")) for byte in range(256)):
        raise UserError(f"{path} was trained without byte fallback; {_ADVICE}")
    return processor


def _outside(token_id: int, vocab_size: int) -> ValueError:
    return ValueError(f"token id {token_id} is outside the vocabulary of {vocab_size}")


def _byte_tables(processor: sentencepiece.SentencePieceProcessor) -> tuple[_ByteTable, _ByteTable]:
    """id -> bytes of its text, with control symbols empty, and with control symbols spelled."""
    text: dict[int, bytes] = {}
    special: dict[int, bytes] = {}
    for i in range(processor.vocab_size()):
        piece: str = processor.IdToPiece(i)
        if processor.IsByte(i):
            text[i] = special[i] = bytes([int(piece[3:5], 16)])
        elif processor.IsControl(i) or processor.IsUnknown(i):
            text[i], special[i] = b"", piece.encode("utf-8")
        else:
            text[i] = special[i] = piece.replace(_SPACE_SYMBOL, " ").encode("utf-8")
    return text, special


def _inner_pairs(pieces: Iterable[bytes]) -> frozenset[str]:
    """All two-character strings that occur inside a piece."""
    texts = (piece.decode("utf-8") for piece in pieces if len(piece) > 1)
    return frozenset(text[i : i + 2] for text in texts for i in range(len(text) - 1))


def _refuse_surrogates(text: str, where: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        code = f"U+{ord(text[error.start]):04X} at character {error.start}"
        raise ValueError(f"{where}lone surrogate {code}: not Unicode text") from None


def _refuse_surrogates_for_user(text: str, number: int) -> None:
    try:
        _refuse_surrogates(text, f"text {number + 1}: ")
    except ValueError as error:
        raise UserError(f"{error}; remove it from the file") from None


def _write_atomically(file: Path, data: bytes) -> None:
    """All of the data under its name, or nothing new."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_bytes_durably(file, data)
    except OSError as error:
        raise UserError(f"cannot write {file}: {error.strerror}") from error
