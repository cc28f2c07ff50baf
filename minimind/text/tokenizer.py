"""The tokenizer: our SentencePiece BPE, by which every Unicode string comes back exactly, or a Hugging Face
tokenizer.json, whose ids are the ``tokenizers`` library's (huggingface_codec.py). Of ours:

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
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path

from minimind.base.defaults import VOCABULARY
from minimind.base.errors import UserError
from minimind.base.files import write_bytes_durably
from minimind.base.strict.json_text import read_small, read_small_named
from minimind.text.chat_template import ChatTemplate
from minimind.text.codec import IM_END, IM_START, Codec, Ids, outside
from minimind.text.huggingface_codec import BESIDE, JSON_NAME, TEMPLATE, HuggingFaceCodec
from minimind.text.sentencepiece_codec import (
    ADVICE,
    BOS_ID,
    EOS_ID,
    FILE_NAME,
    PAD_ID,
    UNK_ID,
    SentencePieceCodec,
)
from minimind.text.sentencepiece_training import TooLittleText, sample, train
from minimind.text.turn import ROLES

__all__ = [
    "BOS_ID",
    "EOS_ID",
    "FILE_NAME",
    "IM_END",
    "IM_START",
    "NAMES",
    "PAD_ID",
    "UNK_ID",
    "StreamDecoder",
    "Tokenizer",
    "train_tokenizer",
]

NAMES = (FILE_NAME, JSON_NAME)

_PROBE = "  a\tb \r\n\x00 Ａ①ﬁ 你好，1234 \U0001f600\ufffd <s> "  # every normaliser but identity alters it
_LARGEST_MODEL, _LARGEST_JSON = 16 << 20, 64 << 20  # bytes; 256,000 pieces take five MiB, as JSON some 20


class Tokenizer:
    """A trained model held in memory, picklable. Make one with `Tokenizer.load`."""

    def __init__(self, files: Mapping[str, bytes], path: Path) -> None:
        self.path = path
        self._codec: Codec
        if JSON_NAME in files:
            self._codec = HuggingFaceCodec(files, path)
        else:
            self._codec = SentencePieceCodec(files[FILE_NAME], path)
        codec = self._codec
        self.files = codec.files
        self.fingerprint = _fingerprint(codec.files)
        self.vocab_size = codec.vocab_size
        self.pad_id, self.bos_id, self.eos_id = codec.pad_id, codec.bos_id, codec.eos_id
        self.im_start_id, self.im_end_id = codec.im_start_id, codec.im_end_id
        self._check()

    @classmethod
    def load(cls, path: str | Path) -> Tokenizer:
        """Read a tokenizer.model or tokenizer.json, or the one in a directory. UserError if it is absent or can't be
        used."""
        path = Path(path)
        names = [name for name in NAMES if (path / name).is_file()] or [FILE_NAME]
        file = path / names[0] if path.is_dir() else path
        try:
            return cls(_files(file, named=not path.is_dir()), file)
        except OSError as error:
            raise UserError(
                f"no tokenizer at {file} ({error.strerror}); give its file or directory, or {ADVICE}"
            ) from error
        except ValueError as error:
            raise UserError(f"{file}: no tokenizer: {error}; give its file or directory") from None
        except UserError:
            if not path.is_dir() or names[-1] == file.name:
                raise
        return cls.load(path / JSON_NAME)  # a foreign tokenizer.model, and what it is as a tokenizer.json

    @staticmethod
    def there(directory: Path) -> bool:
        """Whether the directory holds one of either kind."""
        return any((directory / name).is_file() for name in NAMES)

    def __reduce__(self) -> tuple[type[Tokenizer], tuple[Mapping[str, bytes], Path]]:
        return Tokenizer, (self.files, self.path)

    @property
    def is_sentencepiece(self) -> bool:
        """Whether it is one of ours; else a tokenizer.json."""
        return FILE_NAME in self.files

    @property
    def model_bytes(self) -> bytes:
        """The SentencePiece model file, byte for byte. UserError for a tokenizer that is none."""
        if not self.is_sentencepiece:
            raise UserError(f"{self.path}: is no SentencePiece model, which this format needs: take --format hf")
        return self.files[FILE_NAME]

    @cached_property
    def chat_template(self) -> ChatTemplate | None:
        """The chat template that came with it; None for ours. UserError for one whose answers can't be proven."""
        codec = self._codec
        return ChatTemplate(codec.templates, codec.names, codec, str(self.path)) if codec.templates else None

    @property
    def template_hash(self) -> str | None:
        """SHA-256 of the chat template that came with it; None for ours."""
        templates = self._codec.templates
        return hashlib.sha256(json.dumps(templates, sort_keys=True).encode()).hexdigest() if templates else None

    def check_chats(self) -> None:
        """UserError for a tokenizer that conversations can't be written with."""
        if self._codec.no_chats is not None:
            raise UserError(f"{self.path}: {self._codec.no_chats}; take it for texts, or another --tokenizer")
        _ = self.chat_template  # raises

    @property
    def answer_end_id(self) -> int:
        """The token that the chat template ends an answer with. UserError as `check_chats`."""
        self.check_chats()
        template = self.chat_template
        return self.im_end_id if template is None else template.stop_id

    @property
    def stop_ids(self) -> list[int]:
        """The tokens that end an answer: that of the chat template, and eos. UserError as `check_chats`."""
        return sorted({self.answer_end_id, self.eos_id})

    def encode(self, text: str) -> list[int]:
        """The ids of ordinary text; no bos, no eos, never a control id. ValueError on a lone surrogate."""
        return self._codec.encode(text)

    def encode_behind(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each where it stands behind a special token or within a text; `encode`'s, unless the tokenizer
        begins a text otherwise than what follows in it."""
        return self._codec.encode_behind(texts)

    @cached_property
    def headers(self) -> Mapping[str, list[int]]:
        """What a turn begins with in our template, by role: ``<|im_start|>``, the role, a line break."""
        names = self.encode_behind([f"{role}\n" for role in ROLES])
        return {role: [self.im_start_id, *ids] for role, ids in zip(ROLES, names, strict=True)}

    @cached_property
    def line_break(self) -> list[int]:
        """What a turn ends with in our template, behind ``<|im_end|>``."""
        return self.encode_behind(["\n"])[0]

    def least_tokens(self, text: str) -> int:
        """A number that `encode` can't stay below, at no cost."""
        return self._codec.least_tokens(text)

    def encode_batch(self, texts: Sequence[str], threads: int = 1) -> list[list[int]]:
        """`encode` of each text, in one call of the library."""
        return self._codec.encode_batch(texts, threads)

    def encode_arrays(self, texts: Sequence[str], threads: int = 1) -> list[Ids]:
        """`encode_batch` as one int32 array a text: less memory than lists, for writing stores."""
        return self._codec.encode_arrays(texts, threads)

    def encode_marked(self, text: str) -> list[int]:
        """As `encode`, but ``<|im_start|>`` and ``<|im_end|>`` in the text become their ids.

        Only for files written with them on purpose (``--allow-special``): elsewhere they are ordinary characters.
        """
        first, *rest = re.split(f"({re.escape(IM_START)}|{re.escape(IM_END)})", text)
        ids = self.encode(first)
        for mark, part in zip(rest[::2], self.encode_behind(rest[1::2]), strict=True):
            ids += [self.im_start_id if mark == IM_START else self.im_end_id, *part]
        return ids

    def decode(self, ids: Iterable[int], with_special: bool = False) -> str:
        """The text of the ids. Control ids are left out, or spelled (``<|im_end|>``) with `with_special`.

        Bytes that are not UTF-8 (a model may generate them) become U+FFFD. ValueError for an id outside the vocabulary.
        """
        table = self._codec.special_bytes if with_special else self._codec.text_bytes
        try:
            data = b"".join([table[i] for i in ids])
        except KeyError as error:
            raise outside(error.args[0], self.vocab_size) from None
        text = data.decode("utf-8", "replace")
        return text.removeprefix(" ") if self._codec.strips_space else text

    def token_bytes(self, token: int) -> bytes:
        """What the id spells, a control id its name; often no whole character."""
        return self._codec.special_bytes.get(token, b"")

    def stream(self) -> StreamDecoder:
        """A decoder for ids that arrive one by one; they continue a text, so a first space stays."""
        return StreamDecoder(self._codec.text_bytes)

    def _check(self) -> None:
        if self.is_sentencepiece and self.decode(self.encode(_PROBE)) != _PROBE:
            raise UserError(f"{self.path}: this SentencePiece model alters text; {ADVICE}")


def _files(file: Path, named: bool) -> dict[str, bytes]:
    """A tokenizer's file, ``named`` by the user or found in a directory, and what is beside a .json. OSError."""
    limit = _LARGEST_JSON if file.suffix == ".json" else _LARGEST_MODEL
    content = read_small_named(file, limit) if named else read_small(file.parent, file.name, limit)
    if file.name != JSON_NAME and content.lstrip()[:1] != b"{":
        return {FILE_NAME: content}
    there = [name for name in BESIDE if (file.parent / name).is_file()]
    return {JSON_NAME: content, **{name: read_small(file.parent, name) for name in there}}


def _fingerprint(files: Mapping[str, bytes]) -> str:
    """Of what decides the ids: the model alone, or the tokenizer.json with what names its special tokens."""
    return hashlib.sha256(b"".join(files[name] for name in sorted(files) if name != TEMPLATE)).hexdigest()


class StreamDecoder:
    """Ids in, text out, never half a character. The parts joined equal `Tokenizer.decode` of all ids."""

    def __init__(self, table: dict[int, bytes]) -> None:
        self._table = table
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """The characters that this id completes; often none while a character's bytes arrive."""
        if token_id not in self._table:
            raise outside(token_id, len(self._table))
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
    or_fewer: bool = False,
) -> Path:
    """Train on the texts and write the model atomically; the path of the model file is returned.

    `output` is a directory, or a file name that ends in ``.model``. The same texts and options give the
    same bytes. Above `sample_bytes` of UTF-8 a uniform sample of sections of 4,096 characters is used,
    which bounds memory whatever the size of the texts. `character_coverage` is the share of the characters
    that get a piece of their own: on 30 MB of mixed Chinese and English 0.995 gave 1.710 characters a
    token, and SentencePiece's own 0.9995, which spends a small vocabulary on rare Han characters, 1.568.

    UserError when the texts cannot give `vocab_size` pieces (naming the largest they can; with `or_fewer` that
    many are taken), when `vocab_size` cannot hold their characters, on a lone surrogate, and when the file cannot be
    written.
    """
    file = Path(output) if Path(output).suffix == ".model" else Path(output) / FILE_NAME
    sections = sample(texts, sample_bytes, seed)
    try:
        model = train(sections, vocab_size, character_coverage)
    except TooLittleText as error:
        if not or_fewer:
            raise
        model = train(sections, error.most, character_coverage)
    Tokenizer({FILE_NAME: model}, file)  # refuses a model that would not hold the contract, before anything is written
    _write_atomically(file, model)
    return file


def _write_atomically(file: Path, data: bytes) -> None:
    """All of the data under its name, or nothing new."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_bytes_durably(file, data)
    except OSError as error:
        raise UserError(f"cannot write {file}: {error.strerror}") from error
