"""A tokenizer as the fields of a GGUF file: SentencePiece's (``llama``) or byte-level BPE (``gpt2``).

Contract: llama.cpp gives ordinary text the ids that `Tokenizer.encode` gives, or the tokenizer is refused by name.

- SentencePiece: pieces, scores and types as they are, no space put in front. The first four ids are spelled ``<|bos|>``
  and so on, as in tokenizer_files.py: llama.cpp takes a special token's spelling in a chat for the token, and ``<s>``
  is common. The same vocabulary as a tokenizer.json (what transformers saves of our export) has merges in the order
  of its pieces' scores: those are the scores.
- Byte-level BPE: pieces and merges as they are, and the name by which llama.cpp knows how text is cut before
  merging (``tokenizer.ggml.pre``). Those are patterns in its source (llama-vocab.cpp): where the file's own pattern is
  none of them, ids would differ.
- Each text begins with bos, as in training; not so where a chat template of the tokenizer's own has none.

Weaknesses: special tokens typed by a user in a chat are taken for the tokens, and for SentencePiece U+2581 for a space.
llama.cpp doesn't normalise: a tokenizer that does (NFC, Qwen's) agrees on normalised text only, which is said.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sentencepiece

from minimind.base.display import complain
from minimind.base.errors import UserError
from minimind.base.strict.json_text import parse_json
from minimind.text.codec import IM_END, IM_START
from minimind.text.huggingface_codec import CONFIG_NAME, JSON_NAME, TEMPLATE
from minimind.text.template import JINJA, MARKED
from minimind.text.tokenizer import FILE_NAME, Tokenizer

_SPACE = "\u2581"
_SHOWN = 240  # characters of what is refused
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_BYTES = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
_ONLY_BYTES = {**_BYTES, "use_regex": False}


def _split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


_LLAMA3 = _split(rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}|{_REST}")
_QWEN2 = _split(rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}|{_REST}")
_DIGITS = {"type": "Digits", "individual_digits": True}
# llama.cpp's name -> how text is cut, and whether a whole word that is a piece needs no merges
_KNOWN: Mapping[str, tuple[Sequence[dict[str, Any]], bool]] = {
    "gpt-2": ([_BYTES], False),
    "smollm": ([_DIGITS, _BYTES], False),
    "llama-bpe": ([_LLAMA3, _ONLY_BYTES], True),
    "dbrx": ([_LLAMA3, _ONLY_BYTES], False),
    "qwen2": ([_QWEN2, _ONLY_BYTES], False),
}


@dataclass
class Vocabulary:
    """What goes into the file. ``scores`` for ``llama``, ``merges`` and ``pre`` for ``gpt2``."""

    model: str
    pieces: list[str]
    types: list[int]
    pre: str = "default"
    scores: list[float] | None = None
    merges: list[str] | None = None
    space_in_front: bool = False


def vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    """What llama.cpp needs to cut text as ``tokenizer`` does. Raises UserError with the reason where it can't."""
    if tokenizer.is_sentencepiece:
        return _sentencepiece(tokenizer)
    content = parse_json(tokenizer.files[JSON_NAME])
    model = content["model"]
    if model.get("type", "BPE") != "BPE":
        raise _refusal(tokenizer, f"its model is {model['type']}, which a GGUF file of this architecture can't have")
    for name in ("continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(name):
            raise _refusal(tokenizer, f"its BPE has a {name}, which llama.cpp has not")
    return _byte_fallback(tokenizer, content) if model.get("byte_fallback") else _byte_level(tokenizer, content)


def add_tokenizer(writer: Any, tokenizer: Tokenizer) -> None:
    """Write the fields. Raises UserError for a tokenizer that llama.cpp has not."""
    found = vocabulary(tokenizer)
    writer.add_tokenizer_model(found.model)
    writer.add_tokenizer_pre(found.pre)
    writer.add_token_list(found.pieces)
    writer.add_token_types(found.types)
    if found.scores is not None:
        writer.add_token_scores(found.scores)
        writer.add_unk_token_id(found.types.index(_types()["unknown"]))
        writer.add_add_space_prefix(found.space_in_front)
        writer.add_remove_extra_whitespaces(False)
    if found.merges is not None:
        writer.add_token_merges(found.merges)
    writer.add_bos_token_id(tokenizer.bos_id)
    writer.add_eos_token_id(tokenizer.eos_id)  # ends texts
    writer.add_eot_token_id(answer_end(tokenizer))
    writer.add_pad_token_id(tokenizer.pad_id)
    writer.add_add_bos_token(_begins_with_bos(tokenizer))
    writer.add_add_eos_token(False)
    if (template := chat_template(tokenizer)) is not None:
        writer.add_chat_template(template)


def chat_template(tokenizer: Tokenizer) -> str | None:
    """What the file carries: the template that came with the tokenizer, else ours if conversations have it."""
    given = _own_template(tokenizer)
    if given not in (None, JINJA, MARKED):
        return given
    try:
        tokenizer.check_chats()
    except UserError:
        return None
    return JINJA


def answer_end(tokenizer: Tokenizer) -> int:
    """The token that ends answers; of a template that conversations can't be proven with, the likeliest."""
    try:
        return tokenizer.answer_end_id
    except UserError:
        return tokenizer.im_end_id


def _own_template(tokenizer: Tokenizer) -> str | None:
    if TEMPLATE in tokenizer.files:
        return tokenizer.files[TEMPLATE].decode("utf-8", "replace")
    config = parse_json(tokenizer.files[CONFIG_NAME]) if CONFIG_NAME in tokenizer.files else {}
    given = config.get("chat_template")
    if isinstance(given, list):  # several by name
        given = next((each.get("template") for each in given if each.get("name") == "default"), None)
    return given if isinstance(given, str) else None


def _begins_with_bos(tokenizer: Tokenizer) -> bool:
    """Whether llama.cpp is to put bos in front. Of a chat that begins with it already it takes that one away first; a
    chat whose template has no bos must not get one."""
    template = chat_template(tokenizer)
    if template in (None, JINJA):
        return True
    spelled = tokenizer.decode([tokenizer.bos_id], with_special=True)
    return tokenizer.bos_id != tokenizer.eos_id and ("bos_token" in str(template) or spelled in str(template))


def _refusal(tokenizer: Tokenizer, reason: str) -> UserError:
    return UserError(f"{tokenizer.path}: no GGUF file: {reason}; take --format hf")


def _types() -> dict[str, int]:
    from gguf import TokenType

    return {kind.name.lower(): int(kind) for kind in TokenType}


def _sentencepiece(tokenizer: Tokenizer) -> Vocabulary:
    processor = sentencepiece.SentencePieceProcessor()
    processor.LoadFromSerializedProto(tokenizer.files[FILE_NAME])
    ids, types = range(tokenizer.vocab_size), _types()
    pieces = [processor.IdToPiece(i) for i in ids]
    named = {tokenizer.pad_id: "pad", tokenizer.bos_id: "bos", tokenizer.eos_id: "eos", processor.unk_id(): "unk"}
    for i, name in named.items():
        pieces[i] = f"<|{name}|>"

    def kind(i: int) -> str:
        if processor.IsUnknown(i):
            return "unknown"
        if processor.IsControl(i):
            return "control"
        return "byte" if processor.IsByte(i) else "normal"

    scores = [processor.GetScore(i) for i in ids]
    return Vocabulary("llama", pieces, [types[kind(i)] for i in ids], scores=scores)


def _byte_fallback(tokenizer: Tokenizer, content: Mapping[str, Any]) -> Vocabulary:
    """SentencePiece's BPE as the tokenizers library has it."""
    pieces, types = _pieces(tokenizer, content)
    kinds = _types()
    bytes_ = {f"<0x{byte:02X}>" for byte in range(256)}
    if not bytes_ <= set(pieces):
        raise _refusal(tokenizer, "its BPE has not a piece for each byte")
    types = [kinds["byte"] if piece in bytes_ else kind for piece, kind in zip(pieces, types, strict=True)]
    unknown = content["model"].get("unk_token")
    if unknown not in pieces:
        raise _refusal(tokenizer, "its BPE has no piece for what is unknown")
    types[pieces.index(unknown)] = kinds["unknown"]
    spaces = _spaces(tokenizer, content)
    ranks = _ranks(tokenizer, content, {p for p, kind in zip(pieces, types, strict=True) if kind == kinds["normal"]})
    scores = [float(-ranks.get(piece, len(ranks))) for piece in pieces]
    spelled = [piece.replace(" ", _SPACE) for piece in pieces] if spaces is None else pieces
    return Vocabulary("llama", spelled, types, scores=scores, space_in_front=bool(spaces))


def _spaces(tokenizer: Tokenizer, content: Mapping[str, Any]) -> bool | None:
    """Whether a space is put in front of a text; None where pieces spell spaces as they are, as our exports do.

    Metaspace puts none in front of a text that begins with one, and llama.cpp does.
    """
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    in_front = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": _SPACE}, replace]}
    metaspace = {"type": "Metaspace", "replacement": _SPACE, "split": False}
    known: list[tuple[Any, Any, bool | None]] = [
        (None, None, None),
        (in_front, None, True),
        (replace, None, False),
        (None, {**metaspace, "prepend_scheme": "never"}, False),
    ]
    for normalizer, cutting, answer in known:
        if (content.get("normalizer"), content.get("pre_tokenizer")) == (normalizer, cutting):
            return answer
    raise _refusal(tokenizer, f"llama.cpp prepares no text for SentencePiece's BPE so: {_shown(content)}")


def _ranks(tokenizer: Tokenizer, content: Mapping[str, Any], learned: set[str]) -> dict[str, int]:
    """The place of each piece among the merges. SentencePiece joins by the joined piece: so must they, in all ways."""
    ranks: dict[str, int] = {}
    merges = _merges(content)
    before = None
    for left, right in merges:
        piece = left + right
        if piece != before and piece in ranks:
            raise _refusal(tokenizer, "its merges are not in the order of pieces, which is SentencePiece's")
        ranks.setdefault(piece, len(ranks))
        before = piece
    there = set(merges)
    ways = ((piece[:cut], piece[cut:]) for piece in learned for cut in range(1, len(piece)))
    if any(way not in there for way in ways if learned.issuperset(way)):
        raise _refusal(tokenizer, "its merges lack ways to join a piece that SentencePiece has")
    return ranks


def _byte_level(tokenizer: Tokenizer, content: Mapping[str, Any]) -> Vocabulary:
    pieces, types = _pieces(tokenizer, content)
    if any(token.get("lstrip") or token.get("rstrip") or token.get("single_word") for token in _typed(content)):
        raise _refusal(tokenizer, "an added token takes what is around it (lstrip, rstrip, single_word)")
    normalizer = content.get("normalizer")
    if normalizer is not None and normalizer != {"type": "NFC"}:
        raise _refusal(tokenizer, f"llama.cpp normalises no text: {_shown(content)}")
    if len([piece for piece in pieces if len(piece) == 1]) < 256:
        raise _refusal(tokenizer, "its BPE has not a piece for each byte")
    pre = _pre(tokenizer, content)
    if normalizer is not None:
        complain(f"{tokenizer.path}: normalises to NFC, which llama.cpp does not: other texts get other ids there")
    return Vocabulary("gpt2", pieces, types, pre, merges=[" ".join(merge) for merge in _merges(content)])


def _pre(tokenizer: Tokenizer, content: Mapping[str, Any]) -> str:
    """llama.cpp's name of how text is cut before merging."""
    whole = bool(content["model"].get("ignore_merges"))
    cutting = content.get("pre_tokenizer") or {}
    steps = cutting.get("pretokenizers", [cutting]) if cutting.get("type") == "Sequence" else [cutting]
    for name, (known, ignores) in _KNOWN.items():
        if [_of_interest(step) for step in steps] == list(known) and whole == ignores:
            return name
    merging = ", with ignore_merges" if whole else ""
    raise _refusal(tokenizer, f"llama.cpp has no pre-tokenizer that cuts text so{merging}: {_shown(content)}")


def _of_interest(step: Mapping[str, Any]) -> dict[str, Any]:
    """What of a step changes ids; what it leaves out is as the library has it."""
    if step.get("type") == "ByteLevel":
        return {**_BYTES, "add_prefix_space": True, **{name: step[name] for name in _BYTES if name in step}}
    return dict(step)


def _merges(content: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Pairs, however the file spells them; the library has taken them already."""
    merges = content["model"]["merges"]
    return [tuple(merge.split(" ") if isinstance(merge, str) else merge) for merge in merges]


def _typed(content: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Added tokens that ordinary text can spell."""
    return [token for token in content.get("added_tokens") or [] if not token.get("special")]


def _pieces(tokenizer: Tokenizer, content: Mapping[str, Any]) -> tuple[list[str], list[int]]:
    """Spelling and type of each id. An id that no token has is an unused one."""
    kinds = _types()
    pieces = [f"[PAD{i}]" for i in range(tokenizer.vocab_size)]
    types = [kinds["unused"]] * len(pieces)
    for piece, i in content["model"]["vocab"].items():
        pieces[i], types[i] = piece, kinds["normal"]
    ours = {tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id}
    for token in content.get("added_tokens") or []:
        i, text = token["id"], token["content"]
        special = token.get("special") or i in ours or text in (IM_START, IM_END)
        pieces[i], types[i] = text, kinds["control" if special else "user_defined"]
    return pieces, types


def _shown(content: Mapping[str, Any]) -> str:
    kept = {name: content.get(name) for name in ("normalizer", "pre_tokenizer") if content.get(name) is not None}
    text = json.dumps(kept)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
