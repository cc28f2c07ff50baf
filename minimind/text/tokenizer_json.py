"""What a tokenizer.json and the files beside it say of themselves: vocabulary, special tokens, chat templates, and
where spaces are put and taken away.

Contract: only read here; whatever a stranger wrote that can't be used is a UserError of one line, or None where its
docstring says so.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from minimind.base.errors import UserError
from minimind.base.strict.json_text import parse_json
from minimind.text.codec import IM_END, IM_START
from minimind.text.template import JINJA, MARKED

JSON_NAME, CONFIG_NAME, TEMPLATE = "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"
BESIDE = (CONFIG_NAME, TEMPLATE)
_PREFIXING = ("normalizer", "pre_tokenizer")  # parts that may put a space in front
_USUAL = {
    "bos": ("<|bos|>", "<s>", "<bos>", "<|begin_of_text|>", IM_START),
    "eos": ("<|eos|>", "</s>", "<eos>", "<|end_of_text|>", "<|endoftext|>", IM_END),
    "pad": ("<|pad|>", "<pad>", "<|endoftext|>"),
}


def templates_of(config: dict[str, Any], beside: Mapping[str, bytes]) -> dict[str, str] | None:
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


def names_of(config: dict[str, Any], named: Mapping[str, str]) -> dict[str, str]:
    """What a template calls the special tokens, as transformers tells it: those that are named, and no others."""
    if not config:
        return {f"{name}_token": text for name, text in named.items()}
    given = {name: value.get("content") if isinstance(value, dict) else value for name, value in config.items()}
    return {name: text for name, text in given.items() if name.endswith("_token") and isinstance(text, str)}


def read_object(content: bytes, path: Path) -> dict[str, Any]:
    try:
        value = parse_json(content)
    except ValueError as error:
        raise UserError(f"{path}: can't be read as JSON ({error})") from error
    if not isinstance(value, dict):
        raise UserError(f"{path}: must be a JSON object")
    return value


def vocabulary_of(content: dict[str, Any], path: Path) -> dict[str, int]:
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


def unknown_of(model: dict[str, Any]) -> list[str]:
    """The piece at ``unk_id``."""
    place = model.get("unk_id")
    return [] if place is None or model.get("type") != "Unigram" else [model["vocab"][place][0]]


def named_tokens(config: dict[str, Any], spelled: Mapping[str, int], path: Path) -> dict[str, str]:
    """The contents of bos, eos and pad."""
    found: dict[str, str | None] = {}
    for name, usual in _USUAL.items():
        given = config.get(f"{name}_token")
        given = given.get("content") if isinstance(given, dict) else given
        if given is not None and (not isinstance(given, str) or given not in spelled):
            raise UserError(f"{path}: has no token {given}, which {CONFIG_NAME} names as {name}_token")
        # What a config leaves out is not there: bos of Qwen, say
        found[name] = given if config else next((text for text in usual if text in spelled), None)
    eos = found["eos"]
    if eos is None:
        raise UserError(f"{path}: no token that ends a text; name one as eos_token in {CONFIG_NAME} beside it")
    return {"bos": found["bos"] or eos, "eos": eos, "pad": found["pad"] or eos}


def without_prefix(content: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The parts that may put a space in front of a text, for what stands behind a special token and for what goes on a
    text: without the space of a whole text only (Metaspace's ``prepend_scheme: first``), and without any."""
    behind, inner = ({name: copy.deepcopy(content.get(name)) for name in _PREFIXING} for _ in range(2))
    for parts, schemes in ((behind, ("first",)), (inner, ("first", "always"))):
        for step in [step for part in parts.values() for step in _steps(part)]:
            if step.get("type") == "Metaspace" and _scheme(step) in schemes:
                step |= {"prepend_scheme": "never", "add_prefix_space": False}
            elif step.get("type") == "Prepend" and parts is inner:
                step |= {"type": "Sequence", "normalizers": []}
            elif step.get("type") == "ByteLevel" and "add_prefix_space" in step and parts is inner:
                step["add_prefix_space"] = False
    return behind, inner


def _scheme(metaspace: dict[str, Any]) -> str:
    """When it puts a space in front of a text, by its newer or its older name."""
    return str(metaspace.get("prepend_scheme", "always" if metaspace.get("add_prefix_space", True) else "never"))


def _steps(part: Any) -> Iterator[dict[str, Any]]:
    """The steps of a normalizer, pre-tokenizer or decoder, sequences unfolded."""
    if isinstance(part, dict):
        inner = [step for name in ("normalizers", "pretokenizers", "decoders") for step in part.get(name) or []]
        yield from [found for step in inner for found in _steps(step)] if inner else [part]


def is_byte_level(content: dict[str, Any]) -> bool:
    """Whether pieces spell bytes in GPT-2's way: as the decoder says, or where there is none what cuts the text."""
    said = content.get("decoder") or content.get("pre_tokenizer")
    return any(step.get("type") == "ByteLevel" for step in _steps(said))


def swallows_of(content: dict[str, Any]) -> dict[str, tuple[bool, bool]]:
    """Of added tokens that take in the white space before or behind them: which."""
    sides = {
        token["content"]: (bool(token.get("lstrip")), bool(token.get("rstrip"))) for token in content["added_tokens"]
    }
    return {text: taken for text, taken in sides.items() if any(taken)}


def keeps_bytes(content: dict[str, Any]) -> bool:
    """Whether the pieces of any text are its bytes, none lost and none joined."""
    return is_byte_level(content) and content.get("normalizer") is None and not swallows_of(content)


def adds_space(content: dict[str, Any]) -> bool:
    """Whether decoding takes away a space that encoding put in front."""
    for step in _steps(content.get("decoder")):
        if step.get("type") == "Metaspace":
            return _scheme(step) != "never"
        if step.get("type") == "Strip" and step.get("content") == " " and step.get("start"):
            return True
    return False
