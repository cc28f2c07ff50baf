"""Records -> documents: every format, and every row of the rule table in docs/data.md."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from minimind.base.errors import UserError
from minimind.data.records.conversations import BadRecord, Conversation, Fields, detect_format, text_of, to_document
from minimind.text.chat import Turn

DOCS = Path(__file__).parents[3] / "docs" / "data.md"
Q, A = Turn("user", "q"), Turn("assistant", "a")
SYSTEM = Turn("system", "s")


def u(content: object = "q") -> dict[str, object]:
    return {"role": "user", "content": content}


def a(content: object = "a") -> dict[str, object]:
    return {"role": "assistant", "content": content}


def s(content: object = "s") -> dict[str, object]:
    return {"role": "system", "content": content}


def talk(*turns: object, **more: object) -> dict[str, object]:
    return {"conversations": list(turns), **more}


def used(*turns: Turn, trimmed: int = 0, unread: tuple[str, ...] = (), dropped: int = 0) -> Conversation:
    return Conversation(list(turns), trimmed, unread, dropped)


def called(role: str = "assistant", content: object = "", **more: object) -> dict[str, object]:
    return talk(u(), {"role": role, "content": content, **more})


CONTEXT, THOUGHT = Turn("assistant", "b", trained=False), Turn("assistant", "<think>\nr\n</think>\n\na")
TOOL_N = Turn("system", '# Tools\n[{"n": 1}]')
TALK = used(Q, A)
TWO_CALLS = "\n".join('<tool_call>\n{"name": "' + name + '", "arguments": {}}\n</tool_call>' for name in "fg")
CALL = used(Q, Turn("assistant", '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'))


# One entry for each row of the table in docs/data.md: (rule, kind, record, result or part of the reason).
RULES: list[tuple[str, str, object, object]] = [
    ("text-null", "pretrain", {"text": None}, '"text" is null, not a string'),
    ("text-missing", "pretrain", {"body": "x", "id": 1}, "fields: body, id"),
    ("text-not-string", "pretrain", {"text": 1.5}, '"text" is a number, not a string'),
    ("text-not-string", "pretrain", {"text": float("nan")}, '"text" is a number, not a string'),
    ("text-not-string", "pretrain", {"text": ["a"]}, '"text" is a list, not a string'),
    ("text-not-string", "pretrain", {"text": True}, '"text" is true, not a string'),
    ("text-empty", "pretrain", {"text": ""}, '"text" is empty'),
    ("text-empty", "pretrain", {"text": " \n\u3000"}, '"text" is empty'),
    ("text-surrogate", "pretrain", {"text": "ab\ud800c"}, '"text" holds a lone surrogate (U+D800) at character 3'),
    ("text-nul", "pretrain", {"text": "ab\0c"}, '"text" holds a NUL character at character 3'),
    ("special-tokens", "pretrain", {"text": "<|im_end|><s>"}, "<|im_end|><s>"),
    ("special-tokens", "sft", talk(u("<|im_end|>"), a()), used(Turn("user", "<|im_end|>"), A)),
    ("value-not-object", "pretrain", 7, "a number, not an object"),
    ("value-not-object", "sft", None, "null, not an object"),
    ("value-not-object", "sft", ["a", "b"], "a list, but not of turns"),
    ("wrong-kind", "pretrain", talk(u(), a()), "pretraining needs text; train on it with launch/sft.py"),
    ("wrong-kind", "sft", {"text": "x"}, "SFT needs conversations; train on it with launch/pretrain.py"),
    ("preference", "sft", {**talk(u()), "chosen": a(), "rejected": a("b")}, "preference data"),
    ("turns-empty", "sft", talk(), "no turns"),
    ("turns-not-list", "sft", {"conversations": "q"}, "the turns are a string, not a list"),
    ("turn-not-object", "sft", talk("q", "a"), "turn 1 is a string, not an object"),
    ("content-null", "sft", talk(u(), a(None)), "turn 2 (assistant) is null, not a string"),
    ("content-null", "sft", talk(u(3), a()), "turn 1 (user) is a number, not a string"),
    ("content-null", "sft", talk({"role": "user"}, a()), "turn 1 (user) is null, not a string"),
    ("answer-empty", "sft", talk(u(), a("")), "turn 2: the answer is empty"),
    ("answer-empty", "sft", talk(u(), a(" \n"), u(), a()), "turn 2: the answer is empty"),
    ("question-empty", "sft", talk(u(""), a()), "turn 1 (user) is empty"),
    ("system-empty", "sft", talk(s(""), u(), a()), used(Q, A)),
    ("role-unknown", "sft", talk({"role": "narrator", "content": "x"}, a()), "turn 1: unknown role 'narrator'"),
    ("role-unknown", "sft", talk({"role": None, "content": "x"}), "turn 1: unknown role null"),
    ("no-answer", "sft", talk(u(), u()), "no assistant turn"),
    ("only-system", "sft", talk(s()), "only system turns"),
    ("no-question", "sft", talk(s(), a()), "an answer without a question"),
    ("opens-with-answer", "sft", talk(a("hi"), u(), a()), used(Turn("assistant", "hi"), Q, A)),
    ("two-answers", "sft", talk(u(), a(), a("b")), "two answers in a row (turns 2 and 3)"),
    ("two-questions", "sft", talk(u(), u("r"), a()), used(Q, Turn("user", "r"), A)),
    ("ends-with-user", "sft", talk(u(), a(), u("r")), used(Q, A, trimmed=1)),
    ("ends-with-user", "sft", talk(u(), a(), u(), {"role": "tool", "content": "r"}), used(Q, A, trimmed=2)),
    ("part-text", "sft", talk(u([{"type": "text", "text": "q"}]), a(["a"])), used(Q, A)),
    ("part-text", "sft", talk(u([{"type": "text", "value": "q"}, {"text": "r"}]), a()), used(Turn("user", "qr"), A)),
    ("part-other", "sft", talk(u([{"type": "image_url", "image_url": {}}]), a()), "a content part of type 'image_url'"),
    ("part-other", "sft", talk(u([3]), a()), "a content part of type a number"),
    (
        "tool-calls",
        "sft",
        talk(u(), {"from": "function_call", "value": "{}"}, {"from": "observation", "value": "r"}, a()),
        used(Q, Turn("assistant", "<tool_call>\n{}\n</tool_call>"), Turn("tool", "r"), A),
    ),
    (
        "tool-calls",
        "sft",
        {"messages": [u(), {**a(None), "tool_calls": [{"function": {"name": "f"}}]}]},
        used(Q, Turn("assistant", '<tool_call>\n{"name": "f"}\n</tool_call>')),
    ),
    ("tools", "sft", talk(u(), a(), tools="[f]", system="s"), used(Turn("system", "s\n\n# Tools\n[f]"), Q, A)),
    ("tools", "sft", talk(u(), a(), tools=[{"n": 1}]), used(Turn("system", '# Tools\n[{"n": 1}]'), Q, A)),
    ("tools", "sft", talk(u(), a(), tools="[]", system=None), used(Q, A)),
    ("tools", "sft", talk({**s(""), "tools": "[f]"}, u(), a()), used(Turn("system", "# Tools\n[f]"), Q, A)),
    ("tools", "sft", talk(s(), {**u(), "functions": [{"n": 1}]}, a()), used(SYSTEM, TOOL_N, Q, A)),
    ("tools", "sft", {"messages": [u(), a()], "functions": [{"n": 1}]}, used(TOOL_N, Q, A)),
    ("tool-calls", "sft", called(tool_calls='[{"name": "f", "arguments": {"a": 1}}]'), CALL),
    ("tool-calls", "sft", called(tool_calls=[{"id": "1", "function": {"name": "f", "arguments": '{"a": 1}'}}]), CALL),
    ("tool-calls", "sft", called(tool_calls=[{"id": "1", "name": "f", "arguments": {"a": 1}}]), CALL),
    ("tool-calls", "sft", called(function_call={"name": "f", "arguments": '{"a": 1}'}), CALL),
    ("tool-calls", "sft", called(role="function_call", content='{"name": "f", "arguments": "{\\"a\\": 1}"}'), CALL),
    ("tool-calls", "sft", called(content="a", tool_calls="[]"), used(Q, A)),
    ("tool-calls", "sft", called(tool_calls="[{"), "turn 2 (assistant): tool_calls is a string that is"),
    ("tool-calls", "sft", called(tool_calls=[{"arguments": {}}]), "a tool call that names no function"),
    ("tool-calls", "sft", called(tool_calls=[{"name": "f", "arguments": "[1]"}]), "the arguments of 'f' are a list"),
    ("tool-calls", "sft", called(tool_calls=[{"name": "f", "arguments": '{"n": %s}' % ("9" * 5000)}]), "5,000 digits"),
    ("tool-calls", "sft", called(role="tool_call", content='{"name": "f", "arguments": {"a": 1}}'), CALL),
    ("tool-calls", "sft", called(role="function_call", content='[{"name": "f", "arguments": "{\\"a\\": 1}"}]'), CALL),
    (
        "tool-calls",
        "sft",
        called(role="function_call", content='[{"name": "f", "arguments": {}}, {"name": "g", "arguments": "{}"}]'),
        used(Q, Turn("assistant", TWO_CALLS)),
    ),
    (
        "tool-calls",
        "sft",
        called(tool_calls=[{"function": {"name": "f", "arguments": {"a": 1}}, "result": "5"}]),
        used(*CALL.turns, unread=("result of a turn",)),
    ),
    (
        "tool-calls",
        "sft",
        talk(u(), {"role": "tool_call", "content": "{}"}, {"role": "tool_response", "content": "r"}, a()),
        used(Q, Turn("assistant", "<tool_call>\n{}\n</tool_call>"), Turn("tool", "r"), A),
    ),
    ("tools", "sft", talk(u(), a(), tools="[]", functions=[{"n": 1}]), used(TOOL_N, Q, A)),
    ("tools", "sft", talk(u(), a(), tools=[{"n": 1}], functions=[{"n": 2}]), "the record has tools and functions"),
    ("tools", "sft", talk({**s(), "tools": "[f]", "functions": "[g]"}, u(), a()), "turn 1 (system) has tools and fun"),
    ("system-prompt", "sft", {"system_prompt": "s", "question": "q", "response": "a"}, used(SYSTEM, Q, A)),
    ("system-prompt", "sft", talk(u(), a(), system="", system_prompt="s"), used(SYSTEM, Q, A)),
    (
        "system-prompt",
        "sft",
        talk(u(), a(), system="s", system_prompt="t"),
        used(SYSTEM, Q, A, unread=("system_prompt",)),
    ),
    ("exchanges", "sft", {"conversation": [{"human": "q", "assistant": "a"}] * 2, "category": ""}, used(Q, A, Q, A)),
    (
        "exchanges",
        "sft",
        {"conversation": [{"system": "s", "input": "q", "output": "a"}, {"input": "q", "output": "a", "n": 1}]},
        used(SYSTEM, Q, A, Q, A, unread=("n of a turn",)),
    ),
    (
        "exchanges",
        "sft",
        {"conversation": [{"input": "q", "output": "b", "output_with_loss": False}, {"input": "q", "output": "a"}]},
        used(Q, CONTEXT, Q, A),
    ),
    ("exchanges", "sft", {"conversation": [{"input": "q", "output": ""}]}, "item 1 (output) is empty"),
    ("exchanges", "sft", {"conversation": [{"input": "q", "output": None}]}, "item 1 (output) is null, not a string"),
    ("exchanges", "sft", {"conversation": [{"x": 1}]}, "turn 1: unknown role null"),
    (
        "turns-in-a-string",
        "sft",
        {"messages": '[{"role": "user", "content": "q"}, {"role": "gpt", "content": "a"}]'},
        TALK,
    ),
    ("turns-in-a-string", "sft", {"messages": "[{"}, "the list of turns is a string that is"),
    ("two-senders", "sft", talk({**u(), "from": "gpt"}, a()), "turn 1 is from 'user' and from 'gpt'"),
    ("two-senders", "sft", talk({**u(), "from": "human"}, a()), TALK),
    ("reasoning", "sft", talk(u(), {**a(), "reasoning": "r", "reasoning_content": "r"}), used(Q, THOUGHT)),
    (
        "reasoning",
        "sft",
        talk(u(), {**a(), "reasoning": "t", "reasoning_content": "r", "thinking": {"r": 1}}),
        used(Q, THOUGHT, unread=("reasoning of a turn", "thinking of a turn")),
    ),
    ("reasoning", "sft", talk(u(), {**a(), "reasoning_content": "r"}), used(Q, THOUGHT)),
    ("reasoning", "sft", talk({**u(), "reasoning_content": ""}, {**a(), "reasoning_content": ""}), used(Q, A)),
    ("reasoning", "sft", {"question": "q", "reasoning": "r", "answer": "a"}, used(Q, THOUGHT)),
    ("reasoning", "sft", talk(u(), {**a("<think>x</think>a"), "thinking": "r"}), "which one is meant is unknown"),
    ("weights", "sft", talk(u(), {**a("b"), "weight": 0}, u(), {**a(), "weight": 1}), used(Q, CONTEXT, Q, A)),
    ("weights", "sft", talk(u(), {**a("b"), "train": False}, u(), a()), used(Q, CONTEXT, Q, A)),
    ("weights", "sft", talk(u(), a("b"), u(), a(), loss_mask=[0, 0, 0, 1]), used(Q, CONTEXT, Q, A)),
    ("weights", "sft", talk(u(), a(), u(), {**a("b"), "loss": False}), used(Q, A, trimmed=2)),
    ("weights", "sft", talk(u(), {**a(), "weight": 0}), "no assistant turn that is to be trained"),
    ("weights", "sft", talk(u(), {**a(), "weight": 0.5}), "weight is 0.5; only 0 and 1 can be followed"),
    ("weights", "sft", talk(u(), a(), loss_mask=[1]), '"loss_mask" is 1 entries for 2 turns'),
    ("kto", "sft", {"messages": [u(), a()], "label": True}, '"label": KTO data'),
    ("kto", "sft", {"prompt": "q", "completion": "a", "kto_tag": "false"}, '"kto_tag": KTO data'),
    ("kto", "sft", {"prompt": "q", "completion": "a", "label": 0}, '"label": KTO data'),
    ("not-read", "sft", {"question": "q", "answer": "a", "label": 0}, used(Q, A, unread=("label",))),
    ("preference", "sft", {"messages": [u(), a()], "rejected_response": "b"}, "preference data"),
    ("media", "sft", {"messages": [u(), a()], "images": ["x.png"]}, '"images": only text can be learned'),
    ("media", "sft", {"query": "q", "response": "a", "videos": ["x"], "images": []}, '"videos": only text'),
    ("media", "sft", talk({**u(), "audio": "x"}, a()), '"audio": only text'),
    ("media", "pretrain", {"text": "x", "images": ["x"]}, '"images": only text'),
    ("turn-alone", "pretrain", {"role": "user", "content": "q"}, "a chat turn outside a conversation"),
    ("turn-alone", "pretrain", {"from": "human", "value": "q"}, "a chat turn outside a conversation"),
    ("turn-alone", "pretrain", {"role": "user", "text": "q"}, "a chat turn outside a conversation"),
    (
        "history",
        "sft",
        {"query": "q", "response": "a", "history": [["q", "a"]], "system": "s"},
        used(SYSTEM, Q, A, Q, A),
    ),
    ("history", "sft", {"query": "q", "response": "a", "history": '[["q", "a"]]'}, used(Q, A, Q, A)),
    ("history", "sft", {"prompt": "q", "response": "a", "history": [u(), a()]}, used(Q, A, Q, A)),
    ("history", "sft", {"prompt": "q", "response": "a", "history": [["q"]]}, '"history" is not a list'),
    ("context", "sft", {"instruction": "q", "context": "c", "response": "a"}, used(Turn("user", "q\nc"), A)),
    ("context", "sft", {"question": "q", "context": ["c", "d"], "answer": "a"}, used(Turn("user", "q\nc\nd"), A)),
    ("context", "sft", {"prompt": "q", "input": "c", "output": "a"}, used(Turn("user", "q\nc"), A)),
    ("context", "sft", {"question": "q", "context": {"c": 1}, "answer": "a"}, '"context" is an object, not a string'),
    ("not-read", "sft", {"question": "q", "answer": "a", "id": 3, "tag": ""}, used(Q, A, unread=("id",))),
    ("not-read", "sft", talk({**u(), "train": True}, a()), used(Q, A, unread=("train of a turn",))),
    ("not-read", "sft", talk({**u(), "weight": 0.0}, {**a(), "value": "b"}), used(Q, A, unread=("value of a turn",))),
    (
        "history",
        "sft",
        {"query": "q", "response": "a", "history": [u(), {**a(), "score": 1}]},
        used(Q, A, Q, A, unread=("score of a turn",)),
    ),
    (
        "not-read",
        "sft",
        talk(u(), a(), {"role": "tool", "content": "r", "tool_call_id": "c"}, a(), url="x"),
        used(Q, A, Turn("tool", "r"), A, unread=("tool_call_id of a turn", "url")),
    ),
]


@pytest.mark.parametrize(
    ("rule", "kind", "record", "expected"), RULES, ids=[f"{r[0]}-{i}" for i, r in enumerate(RULES)]
)
def test_each_rule(rule: str, kind: str, record: object, expected: object) -> None:
    if isinstance(expected, Conversation) or rule == "special-tokens":
        assert to_document(record, kind, Fields()) == expected  # type: ignore[arg-type]
        return
    with pytest.raises(BadRecord) as caught:
        to_document(record, kind, Fields())  # type: ignore[arg-type]
    assert str(expected) in str(caught.value)
    assert "\n" not in str(caught.value)


# Rules about lines, files and lengths are tested where those are made.
ELSEWHERE = {
    "line-not-json": "test_sources.test_pathological_lines_are_bad_records",
    "number": "test_sources.test_pathological_lines_are_bad_records",
    "key-twice": "test_sources.test_pathological_lines_are_bad_records",
    "line-too-long": "test_sources.test_a_line_over_the_limit_is_counted_and_never_held",
    "not-utf8": "test_sources.test_utf8_with_one_bad_line_is_utf8_with_one_bad_line",
    "row-width": "test_sources.test_csv_and_tsv",
    "blank-line": "test_sources.test_json_lines_with_line_numbers_that_count_blank_lines",
    "marks": "test_prepare.test_texts_with_marks",
    "only-marks": "test_prepare.test_texts_with_marks",
    "file-level": "test_prepare.test_a_whole_file_of_the_wrong_kind_is_one_line",
    "shortened": "test_prepare.test_too_long_conversations_are_shortened_or_counted",
    "answer-cut": "test_prepare.test_too_long_conversations_are_shortened_or_counted",
    "too-long": "test_prepare.test_too_long_conversations_are_shortened_or_counted",
}


def test_the_documented_rules_are_the_tested_ones() -> None:
    section = DOCS.read_text(encoding="utf-8").split("## Rules")[1].split("\n## ")[0]
    documented = re.findall(r"^\| `([a-z0-9-]+)` \|", section, re.MULTILINE)
    assert len(documented) == len(set(documented))
    assert set(documented) == {rule for rule, *_ in RULES} | set(ELSEWHERE)
    for place in ELSEWHERE.values():
        file, name = place.split(".")
        assert f"def {name}(" in next(DOCS.parents[1].glob(f"tests/data/**/{file}.py")).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("record", "name"),
    [
        (talk(u(), a()), "conversations"),
        ({"messages": [u(), a()]}, "messages"),
        (talk({"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}), "sharegpt"),
        ({"instruction": "q", "input": "", "output": "a"}, "alpaca"),
        ({"instruction": "q", "response": "a"}, "alpaca"),
        ({"instruction": "q", "instances": [{"input": "", "output": "a"}]}, "alpaca"),
        ({"question": "q", "answer": "a"}, "qa"),
        ({"prompt": "q", "completion": "a"}, "qa"),
        ({"query": "q", "response": "a"}, "qa"),
        ([u(), a()], "turns"),
        ({"instruction": "q", "answer": "a"}, "alpaca"),
        ({"input": "q", "target": "a", "kind": ""}, "qa"),
        ({"inputs": "q", "targets": "a"}, "qa"),
        ({"prompt": [u()], "completion": [a()]}, "qa"),
        ({"prompt": [u()], "completion": "a"}, "qa"),
        ({"q": "q", "a": "a", "history": "[]"}, "qa"),
    ],
)
def test_formats_are_recognised_and_give_the_same_conversation(record: object, name: str) -> None:
    assert detect_format(record, "sft", Fields()) == name
    assert to_document(record, "sft", Fields()) == used(Q, A)
    assert to_document(record, "sft", Fields(name)) == used(Q, A)


def test_system_tool_history_and_input() -> None:
    sharegpt = talk({"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}, system="s")
    assert to_document(sharegpt, "sft", Fields()) == used(SYSTEM, Q, A)
    assert to_document(talk(s(), u(), a()), "sft", Fields()) == used(SYSTEM, Q, A)
    alpaca = {"instruction": "q", "input": "more", "output": "a", "history": [["q", "a"]], "system": "s"}
    assert to_document(alpaca, "sft", Fields()) == used(SYSTEM, Q, A, Turn("user", "q\nmore"), A)
    with pytest.raises(BadRecord, match='"instances" holds 2 items'):
        to_document({"instruction": "q", "instances": [{}, {}]}, "sft", Fields())


def test_reasoning_is_left_out_and_counted_when_dropped() -> None:
    drop = Fields(reasoning="drop")
    assert to_document(talk(u(), {**a(), "reasoning_content": "r"}), "sft", drop) == used(Q, A, dropped=1)
    assert to_document(talk(u(), a("<think>\nr\n</think>\n\na")), "sft", drop) == used(Q, A, dropped=1)
    assert to_document(talk(u(), a("<think>\n\n</think>\n\na")), "sft", drop) == used(Q, A)
    assert to_document({"question": "q", "thinking": "r", "answer": "a"}, "sft", drop) == used(Q, A, dropped=1)
    history = [u(), {**a(), "reasoning_content": "r"}]
    assert to_document({"query": "q", "response": "a", "history": history}, "sft", drop) == used(Q, A, Q, A, dropped=1)


def test_an_input_beside_a_text_is_no_question() -> None:
    assert detect_format({"text": "q", "input": "", "output": "a"}, None, Fields()) == "text"


def test_a_bad_record_says_what_it_was_meant_for() -> None:
    for record in ({"chosen": [u()], "rejected": [u()]}, {"prompt": "q", "completion": "a", "label": False}):
        with pytest.raises(BadRecord) as caught:
            to_document(record, "sft", Fields())
        assert caught.value.kind == "sft"


def test_every_field_that_is_read_is_a_column_of_tables_too() -> None:
    """What a table's reader leaves out no rule may use: each used rule gives the same from the columns alone."""
    for _, kind, record, expected in RULES:
        if isinstance(expected, Conversation) and isinstance(record, dict):
            kept = {name: value for name, value in record.items() if name in Fields().columns}
            assert to_document(kept, kind, Fields()).turns == expected.turns  # type: ignore[arg-type, union-attr]


def test_text_and_what_carries_it() -> None:
    assert to_document("plain", "pretrain", Fields()) == "plain"
    assert to_document({"text": " kept as it is\n"}, "pretrain", Fields()) == " kept as it is\n"
    assert to_document({"content": "x"}, "pretrain", Fields()) == "x"
    assert to_document({**talk(u(), a()), "text": "x"}, "pretrain", Fields()) == "x"
    assert to_document({**talk(u(), a()), "text": "x"}, "sft", Fields()) == used(Q, A, unread=("text",))
    assert text_of({"body": "x"}, "body") == "x"


def test_field_maps() -> None:
    assert to_document({"body": "x", "text": "y"}, "pretrain", Fields.parse(None, "body", None)) == "x"
    fields = Fields.parse(None, None, "prompt=problem, answer=solution,input=hint,system=rule")
    record = {"problem": "q", "solution": "a", "hint": "", "rule": "s"}
    assert to_document(record, "sft", fields) == used(SYSTEM, Q, A)
    assert to_document({"dialog": [u(), a()]}, "sft", Fields.parse(None, None, "turns=dialog")) == used(Q, A)
    with pytest.raises(BadRecord, match='no field "solution"; it has: problem'):
        to_document({"problem": "q"}, "sft", fields)
    with pytest.raises(BadRecord, match='no field "body"; it has: text'):
        to_document({"text": "x"}, "pretrain", Fields.parse(None, "body", None))
    with pytest.raises(BadRecord, match='a string, so it has no field "body"'):
        to_document("plain", "pretrain", Fields.parse(None, "body", None))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("sharegtp", None, None), "--format sharegtp: unknown; one of text, conversations"),
        ((None, None, "prompt"), "write it as prompt=question,answer=solution"),
        ((None, None, "prompt="), "write it as"),
        ((None, None, "promt=a"), "--map promt=...: unknown field; one of text, prompt"),
        ((None, None, "answer=a"), "needs prompt="),
    ],
)
def test_wrong_options_are_named(arguments: tuple[str | None, str | None, str | None], said: str) -> None:
    with pytest.raises(UserError, match=re.escape(said)):
        Fields.parse(*arguments)


@pytest.mark.parametrize("name", ["conversations", "messages", "sharegpt", "alpaca", "qa", "turns"])
@pytest.mark.parametrize(
    "record", [{}, {"x": 1}, [], None, "x", {"conversations": None}, {"instruction": None, "output": 1}]
)
def test_a_forced_format_never_crashes_on_other_records(name: str, record: object) -> None:
    with pytest.raises(BadRecord):
        to_document(record, "sft", Fields(name))


def test_a_null_field_of_a_parquet_row_is_no_field() -> None:
    """Every row of a Parquet file has all fields of its schema."""
    empty = {"role": None, "content": None, "from": None, "value": None}
    turns = [{**empty, "from": "human", "value": "q"}, {**empty, "role": "assistant", "content": "a"}]
    assert to_document({"conversations": turns}, "sft", Fields()) == used(Q, A)


QUESTIONS, ANSWERS = ("question", "prompt", "query"), ("answer", "response", "completion", "output", "solution")


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("question", QUESTIONS)
def test_each_pair_of_words_is_a_question_and_its_answer(question: str, answer: str) -> None:
    assert detect_format({question: "q", answer: "a"}, "sft", Fields()) == "qa"
    assert to_document({question: "q", answer: "a"}, "sft", Fields()) == used(Q, A)
    for lone in ({question: "q"}, {answer: "a"}):
        with pytest.raises(BadRecord):
            to_document(lone, "sft", Fields())


def test_of_several_answers_the_first_that_is_not_null_counts() -> None:
    for first, second in itertools.permutations(ANSWERS, 2):
        record = {"question": "q", first: None, second: "a"}
        assert to_document(record, "sft", Fields()).turns == [Q, A]  # type: ignore[union-attr]
