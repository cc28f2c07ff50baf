"""A Hugging Face tokenizer.json as a codec: the ``tokenizers`` library cuts the text, this finds what training needs.

Contract: the ids of ordinary text are the library's own with ``add_special_tokens=False``. Text that spells a special
token stays text: the library splits at such spellings, so it is told not to. Special tokens are found by content, as
tokenizer_config.json beside the file names them, else by the usual spellings; where there is no token that begins a
text, the one that ends it stands between texts. Truncation and padding that the file asks for are left out.

The chat template that comes with it is handed on as text (chat_template.py renders it). Without one conversations are
written in ours, which needs our two tokens.

Weakness: one very long text is cut in one piece, at some hundred bytes of memory a character.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from minimind.base.errors import UserError
from minimind.text.codec import IM_END, IM_START, ByteTable, Ids, refuse_surrogates, strip_beside
from minimind.text.tokenizer_json import (
    BESIDE,
    CONFIG_NAME,
    JSON_NAME,
    TEMPLATE,
    adds_space,
    is_byte_level,
    keeps_bytes,
    named_tokens,
    names_of,
    read_object,
    swallows_of,
    templates_of,
    unknown_of,
    vocabulary_of,
    without_prefix,
)

__all__ = ["BESIDE", "CONFIG_NAME", "JSON_NAME", "TEMPLATE", "HuggingFaceCodec"]

_SPACE = "\u2581"
_PROBE = "The fox, isn't 7  é\n 你"
_UNSEEN = "\U000f0000\U0010fffd \x00\ufffe"  # what no vocabulary has a piece for
_MOST = 1 << 22  # ids: tables are made of them
_BYTE = re.compile("<0x([0-9A-Fa-f]{2})>")


class HuggingFaceCodec:
    """The tokenizer.json in ``files`` with what lies beside it. UserError if it can't be used."""

    def __init__(self, files: Mapping[str, bytes], path: Path) -> None:
        self.files = files
        content, beside = read_object(files[JSON_NAME], path), files
        config = read_object(beside[CONFIG_NAME], path.with_name(CONFIG_NAME)) if CONFIG_NAME in beside else {}
        named = named_tokens(config, vocabulary_of(content, path), path)
        self._tokenizer = _build(content, set(named.values()) | {IM_START, IM_END}, path)
        self._spelled = _ids(self._tokenizer, named.values(), path)
        self._behind, self._inner = self._without_prefix(content)
        self.vocab_size = 1 + max(self._spelled.values())
        self.bos_id, self.eos_id, self.pad_id = (self._spelled[named[name]] for name in ("bos", "eos", "pad"))
        self.im_start_id = self._spelled.get(IM_START, self.eos_id)
        self.im_end_id = self._spelled.get(IM_END, self.eos_id)
        special = {token["content"] for token in content["added_tokens"] if token.get("special")}
        special = (special | set(named.values()) | {IM_START, IM_END}) & self._spelled.keys()
        self.swallows: Mapping[str, tuple[bool, bool]] = swallows_of(content)
        unknown = {content["model"].get("unk_token"), *unknown_of(content["model"])}
        self.special: Mapping[int, str] = {self._spelled[text]: text for text in special}
        self._never = {self._spelled[text] for text in (special - unknown) | set(named.values())}
        self._marks = re.compile("|".join(map(re.escape, sorted(special, key=len, reverse=True))))
        self.text_bytes, self.special_bytes = self._tables(content)
        self.strips_space = adds_space(content)
        self._refuse_another_decoder(content, path)
        templates = templates_of(config, beside)
        self.templates: Mapping[str, str] = templates or {}
        self.names: Mapping[str, str] = names_of(config, named)
        self.no_chats = _more_templates(path) or self._no_chats(templates)
        self.joins_special = self._joins_special()
        self._longest = max(map(len, self.special_bytes.values())) if keeps_bytes(content) else None

    def encode(self, text: str) -> list[int]:
        """The library's ids; a spelling of a special token that still became its id is cut in two. (The library may
        find the spelling among its ordinary pieces.)"""
        return self._encode(text, self._tokenizer)

    def encode_behind(self, texts: Sequence[str]) -> list[list[int]]:
        """The library's ids of each where something stands before it: without the space that it puts in front of the
        first piece of a whole text only (Metaspace's ``prepend_scheme: first``)."""
        return [self._encode(text, self._behind) for text in texts]

    def encode_inner(self, texts: Sequence[str]) -> list[list[int]]:
        """The library's ids of each where it goes on a text: without any space in front."""
        return [self._encode(text, self._inner) for text in texts]

    def _encode(self, text: str, tokenizer: Any) -> list[int]:
        refuse_surrogates(text, "")
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        if len(text) < 2 or self._never.isdisjoint(ids):
            return ids
        first, *rest = self._apart(text)
        return [*self._encode(first, tokenizer), *(token for part in rest for token in self._encode(part, self._inner))]

    def encode_batch(self, texts: Sequence[str], threads: int = 1) -> list[list[int]]:
        """``encode`` of each text; on all cores where more than one thread is wanted."""
        if threads == 1 or len(texts) < 2:
            return [self.encode(text) for text in texts]
        for text in texts:
            refuse_surrogates(text, "")
        found = [each.ids for each in self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]
        return [
            ids if self._never.isdisjoint(ids) else self.encode(text) for text, ids in zip(texts, found, strict=True)
        ]

    def encode_arrays(self, texts: Sequence[str], threads: int = 1) -> list[Ids]:
        """``encode_batch`` as arrays."""
        return [np.array(ids, dtype=np.int32) for ids in self.encode_batch(texts, threads)]

    def least_tokens(self, text: str) -> int:
        """By the longest piece where pieces are the text's bytes; 0 where text may be altered first."""
        return 0 if self._longest is None else -(-len(text.encode("utf-8", "surrogatepass")) // self._longest)

    def _without_prefix(self, content: dict[str, Any]) -> tuple[Any, Any]:
        """The same tokenizer for what stands behind a special token, and for what goes on a text."""
        behind, inner = without_prefix(content)
        first = _variant(content, behind, self._tokenizer)
        return first, first if inner == behind else _variant(content, inner, self._tokenizer)

    def _apart(self, text: str) -> Iterator[str]:
        """The text cut after the first character of each special spelling, so that no part spells one; into single
        characters where the spelling came about only in the library's own normalisation."""
        cuts = [mark.start() + 1 for mark in self._marks.finditer(text)] or range(1, len(text))
        edges = [0, *cuts, len(text)]
        yield from (text[start:end] for start, end in itertools.pairwise(edges) if start < end)

    def _tables(self, content: dict[str, Any]) -> tuple[ByteTable, ByteTable]:
        """Spelling of each id, special tokens as nothing and by name; ids that no token has are spelled as nothing."""
        added = {token["content"] for token in content["added_tokens"]}
        spell = _byte_level_bytes if is_byte_level(content) else _plain_bytes
        special = dict.fromkeys(range(self.vocab_size), b"")
        special |= {i: text.encode() if text in added else spell(text) for text, i in self._spelled.items()}
        return {i: b"" if i in self.special else spelled for i, spelled in special.items()}, special

    def _refuse_another_decoder(self, content: dict[str, Any], path: Path) -> None:
        """UserError where the library spells tokens otherwise than the table of bytes that decoding goes by here."""
        if content.get("decoder") is None:  # the library then joins pieces by spaces, which nobody wants
            return
        ids = [token for token in self.encode(_PROBE) if token not in self.special]
        ours = b"".join(self.text_bytes[token] for token in ids).decode("utf-8", "replace")
        theirs = self._tokenizer.decode(ids).replace(_SPACE, " ")  # some decoders leave that to whoever shows the text
        if (ours.removeprefix(" ") if self.strips_space else ours) != theirs:
            raise UserError(f"{path}: its decoder writes {theirs!r} for {ours!r}, which is not known here")

    def _no_chats(self, templates: Mapping[str, str] | None) -> str | None:
        if templates is None:
            return "its chat_template is no text, and no list with a default one"
        if not templates and not {IM_START, IM_END} <= self._spelled.keys():
            return f"has no {IM_START} and {IM_END}, which conversations are written with"
        return None

    def _joins_special(self) -> str | None:
        """Whether the library, given a whole text, cuts what stands beside a special token as it does alone."""
        for text in [text for text, i in self._spelled.items() if i in self.special and i in self._never]:
            pieces = ["a b ", " c\n", "d\n", "", "e"]
            shown = [strip_beside(piece, self._swallowed(text, place)) for place, piece in enumerate(pieces)]
            apart = [self.encode(shown[0]), *self.encode_behind(shown[1:])]
            self._tokenizer.encode_special_tokens = False
            whole = self._tokenizer.encode(text.join(pieces), add_special_tokens=False).ids
            self._tokenizer.encode_special_tokens = True
            expected = [token for part in apart for token in (self._spelled[text], *part)]
            if whole != expected[1:]:
                return f"its tokens beside {text} depend on it"
        return None

    def _swallowed(self, text: str, place: int) -> tuple[bool, bool]:
        """Whether the start and the end of the piece at ``place`` between these tokens are theirs."""
        before, after = self.swallows.get(text, (False, False))
        return after and place > 0, before and place < 4


def _build(content: dict[str, Any], special: set[str], path: Path) -> Any:
    """The library's tokenizer; ``special`` tokens are special whether the file says so or not."""
    from tokenizers import Tokenizer as Library

    for token in content["added_tokens"]:
        token["special"] = token.get("special", False) or token["content"] in special
    tokenizer = _asked(partial(Library.from_str, json.dumps(content)), f"{path}: the tokenizers library can't read it")
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True
    for text in (_PROBE, _UNSEEN):
        _asked(partial(tokenizer.encode, text), f"{path}: the tokenizers library can't cut every text with it")
    return tokenizer


def _asked(call: Callable[[], Any], trouble: str) -> Any:
    """What the library answers. UserError for whatever it raises: nothing narrower than Exception, or a panic, which is
    not even one."""
    try:
        return call()
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise UserError(f"{trouble}: {reason[:200]}") from error


def _ids(tokenizer: Any, needed: Iterable[str], path: Path) -> dict[str, int]:
    """Spelling -> id of all pieces and added tokens, as the library has them: added tokens get ids of its own where the
    file's don't follow the vocabulary's."""
    found: dict[str, int] = tokenizer.get_vocab(with_added_tokens=True)
    if not found or max(found.values()) >= _MOST:
        raise UserError(f"{path}: its ids reach {max(found.values(), default=0):,}; the limit is {_MOST:,}")
    if missing := [text for text in needed if text not in found]:
        raise UserError(f"{path}: the tokenizers library knows no token {missing[0]!r} in it")
    return found


def _more_templates(path: Path) -> str | None:
    """Templates that transformers chooses from where a conversation has tools, say."""
    there = (path.parent / "additional_chat_templates").is_dir()
    return (
        "has several chat templates (additional_chat_templates beside it), of which one can be used here"
        if there
        else None
    )


def _variant(content: dict[str, Any], parts: dict[str, Any], tokenizer: Any) -> Any:
    """The tokenizer with these parts; itself if they are its own."""
    from tokenizers import Tokenizer as Library

    if all(parts[name] == content.get(name) for name in parts):
        return tokenizer
    found = Library.from_str(json.dumps({**content, **parts, "truncation": None, "padding": None}))
    found.encode_special_tokens = True
    return found


def _byte_characters() -> dict[str, int]:
    """GPT-2's spelling of bytes: printable ones as themselves, the others from U+0100 on."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_BYTES = _byte_characters()


def _byte_level_bytes(piece: str) -> bytes:
    return bytes(_BYTES[character] for character in piece) if _BYTES.keys() >= set(piece) else piece.encode()


def _plain_bytes(piece: str) -> bytes:
    found = _BYTE.fullmatch(piece)
    return bytes([int(found[1], 16)]) if found else piece.replace(_SPACE, " ").encode()
