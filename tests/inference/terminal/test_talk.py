"""What of a conversation the model gets to see."""

import pytest

from minimind.base.errors import UserError
from minimind.inference.sampling import Sampling
from minimind.inference.terminal.talk import Talk, fitting
from minimind.text.chat import Turn, prompt_ids
from minimind.text.tokenizer import Tokenizer
from tests.inference.terminal.speaking import Model


def test_the_oldest_exchange_goes_first(tokenizer: Tokenizer) -> None:
    system = Turn("system", "s")
    turns = [system, *(Turn(role, f"{role} {n}") for n in range(3) for role in ("user", "assistant"))][:-1]
    kept = [system, *turns[3:]]
    limit = len(prompt_ids(kept, tokenizer))
    assert fitting(turns, tokenizer, limit) == (kept, prompt_ids(kept, tokenizer))
    assert fitting(turns, tokenizer, 10_000)[0] == turns
    with pytest.raises(UserError, match="ask a shorter one"):
        fitting(turns, tokenizer, 5)


def test_a_question_that_is_too_long_changes_nothing(tokenizer: Tokenizer) -> None:
    talk = Talk(Model(positions=60), tokenizer, Sampling(30))  # type: ignore[arg-type]
    first = talk.prompt("one")
    talk.add("one", "1")
    with pytest.raises(UserError, match="30 are left for it"):
        talk.prompt("The river runs past the hill. " * 9)
    assert (talk.turns, talk.forgotten) == ([Turn("user", "one"), Turn("assistant", "1")], 0)
    assert talk.take_back() == "one" and talk.prompt("one") == first


def test_a_small_model_keeps_half_of_its_positions_for_the_prompt(tokenizer: Tokenizer) -> None:
    """The usual length of an answer is more than its positions."""
    talk = Talk(Model(positions=100), tokenizer, Sampling(400))  # type: ignore[arg-type]
    assert talk.room == 50
    assert talk.prompt("one")


def test_what_is_left_out_is_counted(tokenizer: Tokenizer) -> None:
    talk = Talk(Model(positions=80), tokenizer, Sampling(20), "s")  # type: ignore[arg-type]
    while not talk.forgotten:
        prompt = talk.prompt("The river runs")
        talk.add("The river runs", "past")
    kept = [Turn("system", "s"), *talk.turns[talk.forgotten :][:-1]]
    assert prompt == prompt_ids(kept, tokenizer)
    assert kept[1].role == "user", "whole exchanges go"
