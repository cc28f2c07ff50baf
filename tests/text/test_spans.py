"""Ids of a text with spans, for tokenizers that begin each text with a space of their own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from minimind.base.errors import UserError
from minimind.text.chat import NotRendered, Turn, render
from minimind.text.marks import Marks
from minimind.text.spans import Encoder, Span
from minimind.text.tokenizer import Tokenizer
from tests.text.templates import write_tokenizer
from tests.text.test_huggingface_codec import metaspace, unigram, write


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


def test_a_tokenizer_whose_special_tokens_change_their_neighbours_is_refused(tmp_path: Path) -> None:
    first = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": True}
    config = {"eos_token": "</s>", "chat_template": "{{ messages }}"}
    tokenizer = Tokenizer.load(write(tmp_path, unigram(), config, pre_tokenizer=first))
    with pytest.raises(UserError, match=r"its tokens beside .* depend on it"):
        tokenizer.check_chats()
