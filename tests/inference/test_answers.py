"""Answers as text: stop strings, why an answer ended, questions that nobody waits for."""

from __future__ import annotations

import hypothesis
import pytest
from hypothesis import strategies as st

from minimind.inference.answers import Piece, Question, StopText
from minimind.inference.batching import pieces
from minimind.inference.sampling import Sampling
from minimind.model.transformer import Transformer
from minimind.text.tokenizer import Tokenizer

pytest.importorskip("starlette")

from tests.inference.running import Speech


@hypothesis.given(st.lists(st.text("ab", max_size=3)), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
def test_stop_text_does_not_depend_on_how_the_text_is_divided(parts: list[str], stops: list[str]) -> None:
    text = "".join(parts)
    ends = [end for end in range(len(text) + 1) if any(text[:end].endswith(stop) for stop in stops)]
    expected = text
    if ends:
        longest = max(len(stop) for stop in stops if text[: ends[0]].endswith(stop))
        expected = text[: ends[0] - longest]
    stream, shown = StopText(stops), ""
    for part in parts:
        shown += stream.push(part)
        assert expected.startswith(shown)
        if stream.found:
            break
    assert shown + stream.flush() == expected
    assert stream.found == bool(ends)


def test_the_last_piece_says_why_it_ended(
    model: Transformer, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    speech = Speech.put(monkeypatch, tokenizer, "河水")
    made = len(speech.ids)
    for room, finish in ((made, "length"), (made + 1, "stop")):
        last = list(pieces(model, tokenizer, Question([1], Sampling(room), [speech.end])))[-1]
        assert (last.tokens, last.finish) == (made, finish)


def test_no_new_tokens_are_an_empty_answer(model: Transformer, tokenizer: Tokenizer) -> None:
    assert list(pieces(model, tokenizer, Question([1], Sampling(0), []))) == [Piece("", 0, "length")]
