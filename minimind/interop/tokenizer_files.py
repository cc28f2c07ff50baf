"""Our SentencePiece tokenizer as the files that ``transformers.AutoTokenizer`` reads.

Contract: the same ids as ``Tokenizer.encode`` on ordinary text, after bos, which every text began with in training; for
chats the string and ids of ``chat.py``, whose bos the template writes (transformers adds none to what it has rendered).
transformers 5 builds a tokenizer from tokenizer.json only, so one is written: BPE over characters with byte fallback,
spaces spelled as spaces. (SentencePiece spells them U+2581; spelling them plainly here needs no normalizer and leaves a
real U+2581 to its bytes, as ``Tokenizer`` does.) A SentencePiece BPE joins the pair whose joined piece comes first in
the vocabulary, so the merges are all splits of each piece into two pieces, in vocabulary order.

The first four ids are spelled ``<|bos|>`` and so on instead of SentencePiece's ``<s>``: transformers takes a special
token's spelling for the token wherever it stands, and ``<s>`` is common in web text (3% of 12,394 texts here held one).

Weaknesses: the same happens to ``<|im_start|>`` typed by a user, which ``Tokenizer`` takes as text. And two
ways to join the same piece that overlap (``aa|a`` and ``a|aa``) are taken leftmost by SentencePiece and by
rank here; on 5.3 million characters of Chinese and English the ids were all the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import sentencepiece

from minimind.base.strict.json_text import parse_json
from minimind.text.huggingface_codec import CONFIG_NAME, JSON_NAME
from minimind.text.template import MARKED
from minimind.text.tokenizer import Tokenizer

_SPACE = "\u2581"


def tokenizer_files(tokenizer: Tokenizer, max_length: int) -> dict[str, bytes]:
    """File name -> content: tokenizer.json, tokenizer_config.json, chat_template.jinja."""
    processor = sentencepiece.SentencePieceProcessor()
    processor.LoadFromSerializedProto(tokenizer.model_bytes)
    pieces = [processor.IdToPiece(i) for i in range(processor.vocab_size())]
    special = [i for i in range(len(pieces)) if processor.IsControl(i) or processor.IsUnknown(i)]
    learned = dict.fromkeys(i for i in range(len(pieces)) if i not in special and not processor.IsByte(i))
    spelled = [piece.replace(_SPACE, " ") if i in learned else piece for i, piece in enumerate(pieces)]
    named = {"pad": tokenizer.pad_id, "bos": tokenizer.bos_id, "eos": tokenizer.eos_id, "unk": processor.unk_id()}
    for name, i in named.items():
        spelled[i] = f"<|{name}|>"
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_length,
        "clean_up_tokenization_spaces": False,
        "add_bos_token": True,
        **{f"{name}_token": spelled[i] for name, i in named.items()},
        "additional_special_tokens": [spelled[i] for i in special if i not in named.values()],
        "chat_template": MARKED,
    }
    contents = {
        "tokenizer.json": json.dumps(_tokenizer_json(spelled, special, learned, named), ensure_ascii=False),
        "tokenizer_config.json": json.dumps(config, indent=2, ensure_ascii=False),
        "chat_template.jinja": MARKED,
    }
    return {name: text.encode() for name, text in contents.items()}


def _tokenizer_json(
    pieces: list[str], special: Iterable[int], learned: Iterable[int], named: Mapping[str, int]
) -> dict[str, Any]:
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_added_token(i, pieces[i]) for i in special],
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": bos_in_front(pieces[named["bos"]], named["bos"]),
        "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": pieces[named["unk"]],
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": {piece: i for i, piece in enumerate(pieces)},
            "merges": _merges(pieces, learned),
        },
    }


def bos_in_front(bos: str, bos_id: int) -> dict[str, Any]:
    """The post-processor that puts bos before a text (before each of a pair), as transformers 5 builds its own."""
    before = [{"SpecialToken": {"id": bos, "type_id": kind}} for kind in (0, 1)]
    texts = [{"Sequence": {"id": name, "type_id": kind}} for kind, name in enumerate("AB")]
    return {
        "type": "TemplateProcessing",
        "single": [before[0], texts[0]],
        "pair": [before[0], texts[0], before[1], texts[1]],
        "special_tokens": {bos: {"id": bos, "ids": [bos_id], "tokens": [bos]}},
    }


def exported_files(tokenizer: Tokenizer, max_length: int, trained_on_texts: bool) -> dict[str, bytes]:
    """The tokenizer's files in an export. A tokenizer.json goes out as it came, but for one thing: where a model was
    trained on texts with it here, bos is put in front of texts, if nothing else is done to them there."""
    if tokenizer.is_sentencepiece:
        return {**tokenizer.files, **tokenizer_files(tokenizer, max_length)}
    content, files = parse_json(tokenizer.files[JSON_NAME]), dict(tokenizer.files)
    before = content.get("post_processor")
    if not trained_on_texts or adds_bos(files, tokenizer.bos_id) or (before and before.get("type") != "ByteLevel"):
        return files
    bos = bos_in_front(tokenizer.decode([tokenizer.bos_id], with_special=True), tokenizer.bos_id)
    content["post_processor"] = {"type": "Sequence", "processors": [before, bos]} if before else bos
    files[JSON_NAME] = json.dumps(content, ensure_ascii=False).encode()
    if CONFIG_NAME in files:  # else transformers 5 makes a post-processor of its own of these two
        config = parse_json(files[CONFIG_NAME])
        kept = {name: value for name, value in config.items() if name not in ("add_bos_token", "add_eos_token")}
        files[CONFIG_NAME] = json.dumps(kept, indent=2, ensure_ascii=False).encode()
    return files


def adds_bos(files: Mapping[str, bytes], bos_id: int) -> bool:
    """Whether the tokenizer.json among ``files`` puts bos in front of a text."""
    from tokenizers import Tokenizer as Library

    ids: list[int] = Library.from_str(files[JSON_NAME].decode()).encode("a").ids
    return ids[:1] == [bos_id]


def _added_token(token_id: int, content: str) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token_id, "content": content, **flags, "special": True}


def _merges(pieces: list[str], learned: Iterable[int]) -> list[list[str]]:
    """All splits of each learned piece into two learned pieces, by the piece's place in the vocabulary (its score)."""
    known = {pieces[i] for i in learned}
    return [
        [piece[:cut], piece[cut:]]
        for piece in (pieces[i] for i in learned)
        for cut in range(1, len(piece))
        if piece[:cut] in known and piece[cut:] in known
    ]
