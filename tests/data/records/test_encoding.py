"""One chunk: every record becomes documents or a reject, and each number counts what its name says."""

from __future__ import annotations

import pytest

from minimind.data.read.sources import Chunk, Record
from minimind.data.records.encoding import Encoded, Options, encode_chunk
from minimind.data.records.options import ReadingOptions
from minimind.text.chat import Turn, render
from minimind.text.tokenizer import Tokenizer

MARKED = Options("pretrain", reading=ReadingOptions(allow_special=True))


def encode(tokenizer: Tokenizer, options: Options, *values: object) -> Encoded:
    chunk = Chunk("f", parsed=[Record(value, "f", line) for line, value in enumerate(values, 1)])
    encoded = encode_chunk(chunk, tokenizer, options)
    assert encoded.counts.used + encoded.counts.rejected == encoded.counts.records == len(values)
    return encoded


def talk(*contents: str) -> dict[str, object]:
    roles = ("user", "assistant") * len(contents)
    return {"conversations": [{"role": r, "content": c} for r, c in zip(roles, contents, strict=False)]}


@pytest.mark.parametrize(("room", "whole"), [(0, True), (1, True), (-1, False)])
def test_a_row_of_t_holds_a_conversation_of_t_plus_one_tokens(room: int, whole: bool, tokenizer: Tokenizer) -> None:
    turns = [Turn("user", "the sea"), Turn("assistant", "is calm"), Turn("user", "and"), Turn("assistant", "of")]
    tokens = len(render(turns, tokenizer).ids)
    encoded = encode(tokenizer, Options("sft", tokens - 1 + room), talk("the sea", "is calm", "and", "of"))
    assert (len(encoded.documents[0].tokens) == tokens) == whole
    assert encoded.counts.shortened == (not whole)


def test_trimmed_counts_conversations_not_turns(tokenizer: Tokenizer) -> None:
    open_ended = talk("q", "a")
    open_ended["conversations"] += [{"role": "user", "content": "x"}] * 3  # type: ignore[operator]
    counts = encode(tokenizer, Options("sft"), open_ended, talk("q", "a")).counts
    assert (counts.used, counts.trimmed, counts.shortened, counts.answers_cut) == (2, 1, 0, 0)


def test_rejects_are_in_order_of_lines(tokenizer: Tokenizer) -> None:
    values = [{"text": "<s></s>"}, {"text": 3}, {"text": "<s>the sea</s>"}, {"text": "<|im_start|> <|im_end|>"}, {}]
    encoded = encode(tokenizer, MARKED, *values)
    assert [reject.line for reject in encoded.rejects] == [1, 2, 4, 5]
    assert [document.line for document in encoded.documents] == [3]


def test_tokens_and_bytes_are_those_of_the_documents(tokenizer: Tokenizer) -> None:
    counts = encode(tokenizer, Options("pretrain"), {"text": "the sea"}, {"text": "海很平静"}).counts
    sizes = [len(tokenizer.encode(text)) + 2 for text in ("the sea", "海很平静")]
    assert (counts.documents, counts.tokens, counts.trainable_tokens) == (2, sum(sizes), sum(sizes) - 2)
    assert counts.bytes == 7 + 12
    answer = encode(tokenizer, Options("sft"), talk("the sea", "海很")).counts
    assert (answer.trainable_tokens, answer.bytes) == (len(tokenizer.encode("海很")) + 1, 6)


def test_one_record_of_many_marked_texts_is_one_record_used(tokenizer: Tokenizer) -> None:
    text = "<|im_start|>the sea<|im_end|> <|im_start|>is calm<|im_end|>"
    counts = encode(tokenizer, MARKED, {"text": text}, {"text": "of day"}).counts
    assert (counts.records, counts.used, counts.documents) == (2, 2, 3)
