"""Ids of a text with spans, for tokenizers that begin each text with a space of their own."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Library
from tokenizers import normalizers, pre_tokenizers

from minimind.base.errors import UserError
from minimind.text.chat import NotRendered, Turn, prompt_ids, render
from minimind.text.marks import Marks
from minimind.text.spans import Encoder, Span
from minimind.text.tokenizer import Tokenizer
from tests.text.templates import write_tokenizer
from tests.text.test_huggingface_codec import TEXTS, byte_level, metaspace, unigram, write


def _encoder(directory: Path) -> Encoder:
    return Encoder(Tokenizer.load(directory)._codec)


@pytest.mark.parametrize(
    ("text", "span", "said"),
    [
        ("<|im_start|>hello the fox<|im_end|>", (18, 36), "the fox<|im_end|>"),
        ("a<|im_start|>b<|im_end|>c", (13, 24), "b<|im_end|>"),
        ("the fox\nran", (8, 11), "ran"),
        ("the fox", (0, 7), "the fox"),
    ],
)
def test_flags_lie_in_the_span(text: str, span: tuple[int, int], said: str, tmp_path: Path) -> None:
    directory = write_tokenizer(tmp_path, None)
    tokenizer = Tokenizer.load(directory)
    shifted = (span[0] - 1, span[1]) if text[span[0] - 1 : span[0]] == " " else span
    ids, flags = _encoder(directory).encode(text, Marks(text, re.compile("$^")), [Span(*shifted, 0)])
    assert tokenizer.decode(ids, with_special=True) == text
    spoken = [i for i, flag in zip(ids, flags, strict=True) if flag]
    assert tokenizer.decode(spoken, with_special=True).lstrip(" ") == said


def test_a_token_across_an_edge_is_refused(tmp_path: Path) -> None:
    encoder = _encoder(write_tokenizer(tmp_path, None))
    with pytest.raises(NotRendered, match=r"crosses the edge of an answer, at 'th\|e fox'"):
        encoder.encode("the fox", Marks("", re.compile("$^")), [Span(2, 7, 0)])


def test_a_space_that_the_tokenizer_adds_is_no_part_of_the_answer(tmp_path: Path) -> None:
    """Llama's old kind: each text begins with a space; what follows a line break inside one doesn't."""
    template = (
        "{% for m in messages %}{{ m.role ~ ':\\n' ~ m.content ~ eos_token }}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'assistant:\\n' }}{% endif %}"
    )
    tokenizer = Tokenizer.load(write(tmp_path, metaspace(), {"eos_token": "</s>", "chat_template": template}))
    got = render([Turn("user", "the fox"), Turn("assistant", "ran off")], tokenizer)
    spoken = [i for i, flag in zip(got.ids, got.trainable, strict=True) if flag]
    assert b"".join(tokenizer._codec.special_bytes[i] for i in spoken) == b"ran off</s>"


BRACKETS = (
    "{% for m in messages %}{% if m.role == 'user' %}{{ bos_token ~ '[INST] ' ~ m.content ~ ' [/INST]' }}"
    "{% else %}{{ ' ' ~ m.content ~ ' ' ~ eos_token }}{% endif %}{% endfor %}"
)
LINES = (
    "{% for m in messages %}{{ m.role ~ ':\\n' ~ m.content ~ eos_token ~ '\\n\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant:\\n' }}{% endif %}"
)
SPACED = {"type": "Metaspace", "replacement": "\u2581", "split": False}
STYLES: dict[str, tuple[Callable[[], Library], dict[str, Any]]] = {
    "Llama's, newer": (metaspace, {"normalizer": None, "pre_tokenizer": {**SPACED, "prepend_scheme": "first"}}),
    "always": (metaspace, {"normalizer": None, "pre_tokenizer": {**SPACED, "prepend_scheme": "always"}}),
    "by its older name": (metaspace, {"normalizer": None, "pre_tokenizer": {**SPACED, "add_prefix_space": True}}),
    "Llama's, older": (metaspace, {}),
    "Gemma's": (metaspace, {"normalizer": normalizers.Replace(" ", "\u2581")}),
    "Unigram": (unigram, {"pre_tokenizer": {**SPACED, "prepend_scheme": "first", "split": True}}),
    "RoBERTa's": (byte_level, {"pre_tokenizer": pre_tokenizers.ByteLevel(add_prefix_space=True)}),
}
CHATS = [
    [Turn("user", "the fox"), Turn("assistant", "ran 7 times")],
    [Turn("user", " a"), Turn("assistant", "b  "), Turn("user", "你好\n"), Turn("assistant", "世界 é")],
]


def _spelled(template: str, turns: list[Turn], bos: str, eos: str) -> tuple[str, list[tuple[int, int]]]:
    """What the template writes, by hand, and where the answers are in it."""
    text, spans = "", []
    for turn in turns:
        if template == LINES:
            head, said, rest = f"{turn.role}:\n", f"{turn.content}{eos}", "\n\n"
        elif turn.role == "user":
            head, said, rest = "", f"{bos}[INST] {turn.content} [/INST]", ""
        else:
            head, said, rest = "", f" {turn.content} {eos}", ""
        if turn.role == "assistant":
            spans.append((len(text + head), len(text + head + said)))
        text += head + said + rest
    return text, spans


def _plain(part: object) -> object:
    return (
        json.loads(part.__getstate__()) if isinstance(part, (normalizers.Replace, pre_tokenizers.ByteLevel)) else part
    )


@pytest.mark.parametrize("swallowing", [False, True], ids=["", "Phi-3's"])
@pytest.mark.parametrize("template", [BRACKETS, LINES], ids=["brackets", "lines"])
@pytest.mark.parametrize("style", STYLES)
def test_the_ids_are_those_of_the_whole_text(style: str, template: str, swallowing: bool, tmp_path: Path) -> None:
    """A space in front of the first piece only, of every piece or of none, and special tokens that take in the white
    space behind them."""
    make, changes = STYLES[style]
    content = json.loads(make().to_str()) | {name: _plain(part) for name, part in changes.items()}
    bos, eos = ("<|im_start|>", "<|im_end|>") if make is byte_level else ("<s>", "</s>")
    for token in content["added_tokens"]:
        token["rstrip"] = swallowing and token["content"] == eos
    library = Library.from_str(json.dumps(content))
    tokenizer = Tokenizer.load(
        write(tmp_path, library, {"bos_token": bos, "eos_token": eos, "chat_template": template})
    )
    for turns in CHATS:
        text, spans = _spelled(template, turns, bos, eos)
        expected = library.encode(text, add_special_tokens=False)
        got = render(turns, tokenizer)
        assert got.ids == expected.ids
        taken = 2 if swallowing and template == LINES else 0  # line breaks that the end token takes in
        inside = [any(start <= a and b <= end + taken for start, end in spans) for a, b in expected.offsets]
        assert got.trainable == inside
        prompt = _spelled(template, turns[:-1], bos, eos)[0] + ("assistant:\n" if template == LINES else "")
        assert prompt_ids(turns[:-1], tokenizer) == library.encode(prompt, add_special_tokens=False).ids


def test_a_tokenizer_whose_special_tokens_change_their_neighbours_is_refused(tmp_path: Path) -> None:
    """Llama's first files: special tokens are looked for in a text that has its space in front already."""
    content = json.loads(metaspace().to_str())
    for token in content["added_tokens"]:
        token["normalized"] = True
    config = {"eos_token": "</s>", "chat_template": LINES}
    tokenizer = Tokenizer.load(write(tmp_path, Library.from_str(json.dumps(content)), config))
    with pytest.raises(UserError, match=r"its tokens beside .* depend on it"):
        tokenizer.check_chats()


def test_a_spelled_special_token_gets_no_space_within_it(tmp_path: Path) -> None:
    """Unigram finds the spelling among its pieces; it is cut, and what is cut goes on the text."""
    tokenizer = Tokenizer.load(write(tmp_path, unigram([*TEXTS, "</s>"]), None))
    assert tokenizer.decode(tokenizer.encode("a</s>b")) == "a</s>b"
