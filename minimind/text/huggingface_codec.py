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
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from minimind.base.errors import UserError
from minimind.base.strict.json_text import parse_json
from minimind.text.codec import IM_END, IM_START, ByteTable, Ids, refuse_surrogates
from minimind.text.marked_template import MARKED
from minimind.text.template import JINJA

JSON_NAME, CONFIG_NAME, TEMPLATE = "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"
BESIDE = (CONFIG_NAME, TEMPLATE)
_USUAL = {
    "bos": ("<|bos|>", "<s>", "<bos>", "<|begin_of_text|>", IM_START),
    "eos": ("<|eos|>", "</s>", "<eos>", "<|end_of_text|>", "<|endoftext|>", IM_END),
    "pad": ("<|pad|>", "<pad>", "<|endoftext|>"),
}
_SPACE = "\u2581"
_BYTE = re.compile("<0x([0-9A-Fa-f]{2})>")


class HuggingFaceCodec:
    """The tokenizer.json in ``files`` with what lies beside it. UserError if it can't be used."""

    def __init__(self, files: Mapping[str, bytes], path: Path) -> None:
        self.files = files
        content, beside = _json(files[JSON_NAME], path), files
        config = _json(beside[CONFIG_NAME], path.with_name(CONFIG_NAME)) if CONFIG_NAME in beside else {}
        self._spelled = _vocabulary(content, path)
        named = _named(config, self._spelled, path)
        self._tokenizer = _build(content, set(named.values()) | {IM_START, IM_END}, path)
        self.vocab_size = 1 + max(self._spelled.values())
        self.bos_id, self.eos_id, self.pad_id = (self._spelled[named[name]] for name in ("bos", "eos", "pad"))
        self.im_start_id = self._spelled.get(IM_START, self.eos_id)
        self.im_end_id = self._spelled.get(IM_END, self.eos_id)
        special = {token["content"] for token in content["added_tokens"] if token.get("special")}
        special |= set(named.values()) | ({IM_START, IM_END} & self._spelled.keys())
        unknown = {content["model"].get("unk_token"), *_unigram_unknown(content["model"])}
        self.special: Mapping[int, str] = {self._spelled[text]: text for text in special}
        self._never = {self._spelled[text] for text in (special - unknown) | set(named.values())}
        self._marks = re.compile("|".join(map(re.escape, sorted(special, key=len, reverse=True))))
        self.text_bytes, self.special_bytes = self._tables(content)
        self.strips_space = _adds_space(content)
        templates = _templates(config, beside)
        self.templates: Mapping[str, str] = templates or {}
        self.names: Mapping[str, str] = _names(config, named)
        self.no_chats = self._no_chats(templates)
        self.joins_special = self._joins_special()
        self._longest = max(map(len, self.special_bytes.values())) if _keeps_bytes(content) else None

    def encode(self, text: str) -> list[int]:
        """The library's ids; a spelling of a special token that still became its id is cut in two. (The library may
        find the spelling among its ordinary pieces.)"""
        refuse_surrogates(text, "")
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        if len(text) < 2 or self._never.isdisjoint(ids):
            return ids
        return [token for part in self._apart(text) for token in self.encode(part)]

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

    def _apart(self, text: str) -> Iterator[str]:
        """The text cut after the first character of each special spelling, so that no part spells one; into single
        characters where the spelling came about only in the library's own normalisation."""
        cuts = [mark.start() + 1 for mark in self._marks.finditer(text)] or range(1, len(text))
        edges = [0, *cuts, len(text)]
        yield from (text[start:end] for start, end in itertools.pairwise(edges) if start < end)

    def _tables(self, content: dict[str, Any]) -> tuple[ByteTable, ByteTable]:
        """Spelling of each id, special tokens as nothing and by name; ids that no token has are spelled as nothing."""
        added = {token["content"] for token in content["added_tokens"]}
        spell = _byte_level_bytes if _is_byte_level(content) else _plain_bytes
        special = dict.fromkeys(range(self.vocab_size), b"")
        special |= {i: text.encode() if text in added else spell(text) for text, i in self._spelled.items()}
        return {i: b"" if i in self.special else spelled for i, spelled in special.items()}, special

    def _no_chats(self, templates: Mapping[str, str] | None) -> str | None:
        if templates is None:
            return "its chat_template is no text, and no list with a default one"
        if not templates and not {IM_START, IM_END} <= self._spelled.keys():
            return f"has no {IM_START} and {IM_END}, which conversations are written with"
        return None

    def _joins_special(self) -> str | None:
        """Whether the library, given a whole text, cuts what stands beside a special token as it does alone."""
        for text in [text for text, i in self._spelled.items() if i in self.special and i in self._never]:
            pieces = ["a b ", None, " c\n", None, "d\n", None, None, "e"]
            apart = [self._spelled[text] if piece is None else self.encode(piece) for piece in pieces]
            self._tokenizer.encode_special_tokens = False
            whole = self._tokenizer.encode("".join(piece or text for piece in pieces), add_special_tokens=False).ids
            self._tokenizer.encode_special_tokens = True
            if whole != [token for part in apart for token in (part if isinstance(part, list) else [part])]:
                return f"its tokens beside {text} depend on it"
        return None


def _templates(config: dict[str, Any], beside: Mapping[str, bytes]) -> dict[str, str] | None:
    """The chat templates that are not ours, by name; that of a file of its own comes first, as in transformers. None
    for what is no template."""
    found = config.get("chat_template")
    if TEMPLATE in beside:
        try:
            found = beside[TEMPLATE].decode("utf-8")
        except UnicodeDecodeError:
            return None
    if isinstance(found, list):
        found = {str(each.get("name")): each.get("template") for each in found if isinstance(each, dict)}
    named = {"default": found} if isinstance(found, str) else found
    if named is None or named in ({"default": JINJA}, {"default": MARKED}):
        return {}
    if not isinstance(named, dict) or not isinstance(named.get("default"), str):
        return None
    return {name: named[name] for name in ("default", "tool_use") if isinstance(named.get(name), str)}


def _names(config: dict[str, Any], named: Mapping[str, str]) -> dict[str, str]:
    """What a template calls the special tokens, as transformers tells it: those that are named, and no others."""
    if not config:
        return {f"{name}_token": text for name, text in named.items()}
    given = {name: value.get("content") if isinstance(value, dict) else value for name, value in config.items()}
    return {name: text for name, text in given.items() if name.endswith("_token") and isinstance(text, str)}


def _json(content: bytes, path: Path) -> dict[str, Any]:
    try:
        value = parse_json(content)
    except ValueError as error:
        raise UserError(f"{path}: can't be read as JSON ({error})") from error
    if not isinstance(value, dict):
        raise UserError(f"{path}: must be a JSON object")
    return value


def _vocabulary(content: dict[str, Any], path: Path) -> dict[str, int]:
    """Spelling -> id of the model's pieces and of added tokens. UserError for what isn't BPE or Unigram."""
    given = content.get("model")
    model: dict[str, Any] = given if isinstance(given, dict) else {}
    kind = model.get("type", "BPE" if "merges" in model else None)
    if kind not in ("BPE", "Unigram"):
        raise UserError(f"{path}: a tokenizer of type {kind}; BPE and Unigram can be used")
    if model.get("dropout"):
        raise UserError(f"{path}: its BPE drops merges at random (dropout); set that to null")
    content["added_tokens"] = content.get("added_tokens") or []
    try:
        pieces = dict(model["vocab"]) if kind == "BPE" else {piece: i for i, (piece, _) in enumerate(model["vocab"])}
        return {**pieces, **{token["content"]: token["id"] for token in content["added_tokens"]}}
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path}: not a tokenizer.json ({type(error).__name__}: {error})") from error


def _unigram_unknown(model: dict[str, Any]) -> list[str]:
    """The piece at ``unk_id``."""
    place = model.get("unk_id")
    return [] if place is None or model.get("type") != "Unigram" else [model["vocab"][place][0]]


def _named(config: dict[str, Any], spelled: Mapping[str, int], path: Path) -> dict[str, str]:
    """The contents of bos, eos and pad."""
    found: dict[str, str | None] = {}
    for name, usual in _USUAL.items():
        given = config.get(f"{name}_token")
        given = given.get("content") if isinstance(given, dict) else given
        if given is not None and given not in spelled:
            raise UserError(f"{path}: has no token {given}, which {CONFIG_NAME} names as {name}_token")
        # What a config leaves out is not there: bos of Qwen, say
        found[name] = given if config else next((text for text in usual if text in spelled), None)
    eos = found["eos"]
    if eos is None:
        raise UserError(f"{path}: no token that ends a text; name one as eos_token in {CONFIG_NAME} beside it")
    return {"bos": found["bos"] or eos, "eos": eos, "pad": found["pad"] or eos}


def _build(content: dict[str, Any], special: set[str], path: Path) -> Any:
    """The library's tokenizer; ``special`` tokens are special whether the file says so or not."""
    from tokenizers import Tokenizer as Library

    for token in content["added_tokens"]:
        token["special"] = token.get("special", False) or token["content"] in special
    try:
        tokenizer = Library.from_str(json.dumps(content))
    except Exception as error:  # the library raises nothing narrower
        raise UserError(f"{path}: the tokenizers library can't read it: {str(error)[:200]}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True
    return tokenizer


def _steps(part: Any) -> Iterator[dict[str, Any]]:
    """The steps of a normalizer, pre-tokenizer or decoder, sequences unfolded."""
    if isinstance(part, dict):
        inner = [step for name in ("normalizers", "pretokenizers", "decoders") for step in part.get(name) or []]
        yield from [found for step in inner for found in _steps(step)] if inner else [part]


def _is_byte_level(content: dict[str, Any]) -> bool:
    return any(step.get("type") == "ByteLevel" for step in _steps(content.get("decoder")))


def _keeps_bytes(content: dict[str, Any]) -> bool:
    """Whether the pieces of any text are its bytes, none lost and none joined."""
    swallows = any(token.get("lstrip") or token.get("rstrip") for token in content["added_tokens"])
    return _is_byte_level(content) and content.get("normalizer") is None and not swallows


def _adds_space(content: dict[str, Any]) -> bool:
    """Whether decoding takes away a space that encoding put in front."""
    for step in _steps(content.get("decoder")):
        if step.get("type") == "Metaspace":
            return bool(
                step.get("prepend_scheme", "always" if step.get("add_prefix_space", True) else "never") != "never"
            )
        if step.get("type") == "Strip" and step.get("content") == " " and step.get("start"):
            return True
    return False


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
