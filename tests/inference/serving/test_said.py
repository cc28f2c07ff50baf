"""An answer taken apart into reasoning, text and calls, however it is divided."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minimind.inference.serving.said import Call, Hearing, Part

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "北京"}}\n</tool_call>'
WEATHER = Call("weather", '{"city": "北京"}')


def heard(text: str, size: int, calls: bool = True, thinking: bool = False) -> Part:
    hearing, part = Hearing(calls=calls, thinking=thinking), Part()
    for start in range(0, len(text), size):
        part += hearing.push(text[start : start + size], last=False)
    return part + hearing.push("", last=True)


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hello", Part("hello")),
        ("", Part()),
        (" \n ", Part(" \n ")),
        ("<think>\nso\nit is\n</think>\n\nhello\n", Part("hello\n", "so\nit is")),
        ("\n<think>\n\n</think>\n\nhello", Part("hello")),
        ("<think>cut", Part("", "cut")),
        ("<thin", Part("<thin")),
        ("a <think>b</think>", Part("a <think>b</think>")),
        (CALL, Part(calls=(WEATHER,))),
        (f"Let me see.\n{CALL}\n{CALL}", Part("Let me see.", calls=(WEATHER, WEATHER))),
        (f"<think>\nso\n</think>\n\n{CALL}", Part("", "so", (WEATHER,))),
        ('<tool_call>{"name": "now"}</tool_call>', Part(calls=(Call("now", "{}"),))),
        ('<tool_call>{"name": "now", "arguments": "{\\"a\\": 1}"}</tool_call>', Part(calls=(Call("now", '{"a": 1}'),))),
        ("a\n\n<tool_call>none</tool_call>\nb", Part("a\n\n<tool_call>none</tool_call>\nb")),
        ('<tool_call>{"name": 3}</tool_call>', Part('<tool_call>{"name": 3}</tool_call>')),
        ('<tool_call>{"name": "a", "arguments": [1]}</tool_call>', None),
        ('<tool_call>{"name": "a", "arguments": {"b": NaN}}</tool_call>', None),
        ('a <tool_call>{"name": "a"', Part('a <tool_call>{"name": "a"')),
        ("a <tool_cal", Part("a <tool_cal")),
    ],
)
def test_what_an_answer_says(text: str, expected: Part | None, size: int) -> None:
    assert heard(text, size) == (Part(text) if expected is None else expected)


def test_without_tools_a_call_is_text_and_a_prompt_may_open_the_reasoning() -> None:
    assert heard(f"a\n{CALL}", 2, calls=False) == Part(f"a\n{CALL}")
    assert heard("\nso\n</think>\n\nhello", 2, thinking=True) == Part("hello", "so")
    assert WEATHER.id != Call("weather", "{}").id and json.loads(WEATHER.arguments) == {"city": "北京"}


@given(st.lists(st.sampled_from(["<think>", "</think>", "<tool_call>", "</tool_call>", '{"name": "a"}', "\n", "x"])))
def test_however_it_is_divided_it_says_the_same(pieces: list[str]) -> None:
    text = "".join(pieces)
    assert heard(text, 1) == heard(text, 4) == heard(text, 10_000)


def test_no_part_of_a_tag_is_told_before_it_is_known_to_be_none() -> None:
    hearing = Hearing(calls=True, thinking=False)
    told = [hearing.push(character, last=False).content for character in f"ab\n{CALL}"]
    assert "".join(told) == "ab"
