"""What is dropped of what doesn't fit, and what is refused."""

from __future__ import annotations

import pytest

from minimind.text.chat import Turn, prompt_ids
from minimind.text.tokenizer import Tokenizer

pytest.importorskip("starlette")

from minimind.inference.serving.errors import ApiError
from minimind.inference.serving.fitting import Fitting, _first
from tests.inference.running import CHAT, HELLO, Running

SYSTEM = Turn("system", "be brief")


def talk(exchanges: int) -> list[Turn]:
    turns = [Turn(role, f"{role} {i}") for i in range(exchanges) for role in ("user", "assistant")]  # type: ignore[arg-type]
    return [SYSTEM, *turns, Turn("user", "and now?")]


@pytest.mark.parametrize("exchanges", [0, 1, 2, 5, 40])
def test_the_oldest_exchanges_go_and_no_more_than_must(tokenizer: Tokenizer, exchanges: int) -> None:
    turns, answer = talk(exchanges), 30
    fitting = Fitting(tokenizer, positions=150, context="shift")
    ids, dropped = fitting.chat(turns, answer)
    kept = [SYSTEM, *turns[1 + dropped :]]
    assert ids == prompt_ids(kept, tokenizer) and len(ids) <= 150 - answer
    assert kept[1].role == "user" and dropped % 2 == 0
    if dropped:
        assert len(prompt_ids([SYSTEM, *turns[dropped - 1 :]], tokenizer)) > 150 - answer
    else:
        assert exchanges < 5


def test_an_answer_may_ask_for_half_of_the_positions(tokenizer: Tokenizer) -> None:
    ids, dropped = Fitting(tokenizer, positions=150, context="shift").chat(talk(9), 10_000)
    assert len(ids) <= 75 and dropped


@pytest.mark.parametrize("context", ["error", "shift"])
def test_a_question_that_is_too_long_alone_is_refused(tokenizer: Tokenizer, context: str) -> None:
    fitting = Fitting(tokenizer, positions=60, context=context)  # type: ignore[arg-type]
    with pytest.raises(ApiError, match="it may have at most") as caught:
        fitting.chat([SYSTEM, Turn("user", "z" * 80)], 10)
    assert caught.value.code == "context_length_exceeded"


def test_a_text_loses_its_beginning(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("z" * 80)
    fitting = Fitting(tokenizer, positions=60, context="shift")
    assert fitting.text("z" * 80, 20) == [tokenizer.bos_id, *ids[-39:]]
    assert fitting.text(ids, 20) == ids[-40:]
    with pytest.raises(ApiError, match="81 tokens; it may have at most 59"):
        Fitting(tokenizer, positions=60, context="error").text("z" * 80, 20)


def test_the_client_is_told_what_was_dropped(api: Running) -> None:
    running = Running(api.speaker.model, api.speaker.tokenizer, context="shift")
    messages = [{"role": turn.role, "content": turn.content} for turn in talk(9)]
    assert running.post(CHAT, messages=messages, max_tokens=10).json()["dropped_messages"] > 0
    assert "dropped_messages" not in running.post(CHAT, **HELLO, max_tokens=10).json()
    events = running.events(CHAT, messages=messages, max_tokens=10)
    assert events[0]["dropped_messages"] > 0
    running.close()
    assert api.post(CHAT, messages=messages, max_tokens=10).status_code == 400


@pytest.mark.parametrize(
    ("roles", "first"), [("s", 0), ("su", 1), ("u", 0), ("ua", 0), ("uau", 0), ("suau", 1), ("us", 0)]
)
def test_a_system_message_stays_before_what_is_left_out(roles: str, first: int) -> None:
    names = {"s": "system", "u": "user", "a": "assistant"}
    assert _first([Turn(names[role], "x") for role in roles]) == first  # type: ignore[arg-type]
