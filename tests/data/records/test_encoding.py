"""One chunk: every record becomes documents or a reject, and each number counts what its name says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from minimind.data.read.sources import Chunk, Record
from minimind.data.records.encoding import Encoded, Options, encode_chunk, excerpt_of, only_marks
from minimind.data.records.options import ReadingOptions
from minimind.text.chat import Turn, render
from minimind.text.tokenizer import Tokenizer
from tests.text.templates import TEMPLATES, write_tokenizer

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


def _bringing(template: str, tmp_path: Path) -> Tokenizer:
    return Tokenizer.load(write_tokenizer(tmp_path / "tokenizer", TEMPLATES[template]))


CALLS = [{"name": "add_two", "arguments": {"a": 3}}]
TOOLS = [{"type": "function", "function": {"name": "add_two", "parameters": {}}}]
TALKS = {
    "MiniMind-3": {
        "conversations": [
            {"role": "system", "content": "be good", "tools": json.dumps(TOOLS)},
            {"role": "user", "content": "sum"},
            {"role": "assistant", "content": "", "reasoning_content": "use it", "tool_calls": json.dumps(CALLS)},
            {"role": "tool", "content": "7"},
            {"role": "assistant", "content": "it is 7"},
        ]
    },
    "OpenAI": {
        "tools": TOOLS,
        "messages": [
            {"role": "system", "content": "be good"},
            {"role": "user", "content": [{"type": "text", "text": "sum"}]},
            {
                "role": "assistant",
                "content": None,
                "reasoning_content": "use it",
                "tool_calls": [{"id": "c", "type": "function", "function": {**CALLS[0], "arguments": '{"a": 3}'}}],
            },
            {"role": "tool", "tool_call_id": "c", "content": "7"},
            {"role": "assistant", "content": "it is 7"},
        ],
    },
    "ShareGPT": {
        "system": "be good",
        "tools": json.dumps(TOOLS),
        "conversations": [
            {"from": "human", "value": "sum"},
            {"from": "function_call", "value": json.dumps(CALLS[0])},
            {"from": "observation", "value": "7"},
            {"from": "gpt", "value": "it is 7"},
        ],
    },
}


@pytest.mark.parametrize("name", TALKS)
@pytest.mark.parametrize("template", ["thinking", "rewriting"])
def test_tools_calls_and_reasoning_reach_a_foreign_template_as_such(name: str, template: str, tmp_path: Path) -> None:
    """Whatever format they came in, the ids are transformers' for the messages that they mean."""
    ours = _bringing(template, tmp_path)
    theirs = pytest.importorskip("transformers", "5.24").AutoTokenizer.from_pretrained(ours.path.parent)
    thought = {} if name == "ShareGPT" else {"reasoning_content": "use it"}
    messages = [
        {"role": "system", "content": "be good"},
        {"role": "user", "content": "sum"},
        {"role": "assistant", "content": "", **thought, "tool_calls": [{"type": "function", "function": CALLS[0]}]},
        {"role": "tool", "content": "7"},
        {"role": "assistant", "content": "it is 7"},
    ]
    encoded = encode(ours, Options("sft"), TALKS[name])
    expected = theirs.apply_chat_template(messages, tools=TOOLS)["input_ids"]
    assert [document.tokens.tolist() for document in encoded.documents] == [expected], encoded.rejects
    spoken = encoded.documents[0].tokens[encoded.documents[0].trainable]
    said = ours.decode(spoken.tolist())
    assert (said.count("<tool_call>") == 1 and said.endswith("it is 7") and "use it" in said) or name == "ShareGPT"
    assert encoded.documents[0].num_bytes == len(said.encode())


def test_what_a_foreign_template_leaves_out_is_counted_or_refused(tmp_path: Path) -> None:
    reasoned = talk("a", "b", "c", "d")
    reasoned["conversations"][1]["reasoning_content"] = "because"  # type: ignore[index]
    counts = encode(_bringing("rewriting", tmp_path), Options("sft"), reasoned).counts
    assert (counts.used, counts.reasoning_dropped) == (1, 1)
    dropping = Options("sft", reading=ReadingOptions(reasoning="drop"))
    encoded = encode(_bringing("thinking", tmp_path), dropping, reasoned)
    assert encoded.counts.reasoning_dropped == 1
    with_system = {"conversations": [{"role": "system", "content": "s"}, *talk("q", "a")["conversations"]]}  # type: ignore[misc]
    refused = encode(_bringing("bracketed", tmp_path), Options("sft"), with_system, talk("q", "a"))
    (reject,) = refused.rejects
    assert str(reject).startswith("f:1: the chat template") and not reject.too_long
    assert refused.counts.used == 1


def test_what_holds_marks_only_is_kept_for_the_quarantine_file() -> None:
    reject = only_marks("f.jsonl", 3, "<s></s>" * 999)
    assert (reject.file, reject.line, reject.reason) == ("f.jsonl", 3, "only special tokens, no text")
    assert ("<s></s>" * 999).startswith(reject.excerpt) and 20 <= len(reject.excerpt) <= 2000


@pytest.mark.parametrize(
    ("value", "excerpt"),
    [
        ("plain", "plain"),
        (7, "7 "),
        ({"a": [1, {"b": "c"}], "d": None}, "a:  1 b:  c d:  None "),
        ([[["x"]], "y"], "x y "),
        ({}, ""),
    ],
)
def test_an_excerpt_spells_every_part_in_its_order(value: object, excerpt: str) -> None:
    assert excerpt_of(Record(value, "f.jsonl", 1)) == excerpt


def test_an_excerpt_of_something_huge_is_short() -> None:
    whole = excerpt_of(Record({"a": ["b" * 10**7] * 3, "c": "d"}, "f.jsonl", 1))
    assert whole.startswith("a:  bbb") and len(whole) <= 2000 and "d" not in whole
