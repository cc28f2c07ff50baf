"""Marks go into every string, and come out of it again without a trace."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minimind.text.marks import Marks
from minimind.text.messages import strings
from minimind.text.turn import NotRendered

FRAGILE = re.compile(r"<\|im_end\|>|Answer:")
_TEXTS = st.text(alphabet=st.sampled_from("ab \n<>/|_imend你\U000f0009Answer:"), max_size=40)


@given(_TEXTS, _TEXTS, _TEXTS)
def test_marks_leave_nothing_behind(said: str, thought: str, argument: str) -> None:
    call = {"function": {"name": "f", "arguments": {argument: [thought, 1, None]}}}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": said},
        {"role": "assistant", "content": said, "reasoning_content": thought, "tool_calls": [call]},
    ]
    marks = Marks("".join(strings(messages)), FRAGILE)
    marked = marks.messages(messages)
    assert [marks.strip(text) for text in strings(marked)] == list(strings(messages))
    assert not any(FRAGILE.search(text) for text in strings(marked))
    assert (marks.body(0) in marked[0]["content"]) == bool(said.strip())


@pytest.mark.parametrize(
    ("content", "marked"),
    [
        ("hello", "hel*lo"),
        ("a", "a*"),
        ("<think>\nbecause\n</think>\n\nso", "<think>\nb+ecause\n</think>\n\ns*o"),
        ("<tool_response>x</tool_response>", "<tool_response>x*</tool_response>"),
        ("<b>", "<b>*"),
        (" \n ", " \n "),
    ],
)
def test_a_mark_stands_in_a_word_and_not_in_a_tag(content: str, marked: str) -> None:
    marks = Marks(content, FRAGILE)
    (message,) = marks.messages([{"role": "user", "content": content}])
    assert message["content"].replace(marks.body(0), "*").replace(marks.thought(0), "+") == marked


def test_another_plane_is_taken_where_one_is_used() -> None:
    assert Marks("\U000f1234", FRAGILE).base == 0x100000
    with pytest.raises(NotRendered, match="both planes"):
        Marks("\U000f1234\U00101234", FRAGILE)


def test_too_many_messages_are_refused() -> None:
    with pytest.raises(NotRendered, match="more than 20,000"):
        Marks("", FRAGILE).messages([{"role": "user", "content": "x"}] * 20_001)
