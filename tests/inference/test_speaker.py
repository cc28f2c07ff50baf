"""Questions from an event loop to the one thread that answers: their order, who leaves, what fails, what stops."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from minimind.base.errors import UserError
from minimind.inference import batching, speaker
from minimind.inference.answers import Piece, Question
from minimind.inference.sampling import Sampling
from minimind.inference.speaker import Speaker, Stopped
from minimind.model.transformer import Transformer
from minimind.text.tokenizer import Tokenizer
from tests.inference.running import Speech
from tests.waiting import wait_for


@pytest.fixture
def talker(model: Transformer, tokenizer: Tokenizer) -> Iterator[Speaker]:
    model.output_size = tokenizer.vocab_size
    made = Speaker(model, tokenizer)
    yield made
    made.close()


def question(length: int = 3, count: int = 20) -> Question:
    return Question([1] + [9] * (length - 1), Sampling(count), [])


async def whole(talker: Speaker, asked: Question) -> Piece:
    pieces = [piece async for piece in talker.answer(asked)]
    return sum(pieces[1:], pieces[0])  # type: ignore[arg-type]


def test_more_questions_than_rows_are_all_answered(
    talker: Speaker, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batching, "ROWS", 3)
    most = 0
    step = batching.Batch.step

    def counting(batch: Any) -> Any:
        nonlocal most
        most = max(most, len(batch.writers))
        return step(batch)

    monkeypatch.setattr(batching.Batch, "step", counting)

    async def ask() -> list[Piece]:
        return list(await asyncio.gather(*(whole(talker, question(count=5 + i)) for i in range(10))))

    answers = asyncio.run(ask())
    assert [answer.tokens for answer in answers] == [5 + i for i in range(10)] and most == 3


def test_prompts_are_read_between_the_tokens_of_others(talker: Speaker, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most so many tokens of them, but always one."""
    monkeypatch.setattr(speaker, "PROMPT_TOKENS", 20)
    log: list[str] = []
    add, step = batching.Batch.add, batching.Batch.step
    monkeypatch.setattr(batching.Batch, "add", lambda batch, asked: log.append("read") or add(batch, asked))
    monkeypatch.setattr(batching.Batch, "step", lambda batch: log.append("step") or step(batch))
    talker._changed.acquire()  # all are there before any is looked at

    async def ask() -> None:
        tasks = [asyncio.ensure_future(whole(talker, question(length, 4))) for length in (15, 30, 10, 10)]
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_soon(talker._changed.release)
        await asyncio.gather(*tasks)

    asyncio.run(ask())
    assert "".join(word[0] for word in log).startswith("rsrsrrs")


def test_who_leaves_makes_room(talker: Speaker, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "ROWS", 1)
    speech = Speech.put(monkeypatch, tokenizer, "river ", forever=True)

    async def ask() -> None:
        answers = [talker.answer(question(count=90)) for _ in range(3)]
        async with contextlib.aclosing(answers[0]) as first:
            await first.__anext__()
            waiting = asyncio.ensure_future(answers[1].__anext__())
            await asyncio.sleep(0)
            waiting.cancel()  # before its turn
            with contextlib.suppress(asyncio.CancelledError):
                await waiting
        assert (await answers[2].__anext__()).text
        await answers[2].aclose()

    asyncio.run(ask())
    wait_for(lambda: not talker.batch.writers)
    assert len(speech.asked) == 2


def test_what_is_wrong_with_one_question_is_its_own_trouble(talker: Speaker) -> None:
    async def ask() -> list[Any]:
        asked = (question(), question(length=100), question())
        return list(await asyncio.gather(*(whole(talker, one) for one in asked), return_exceptions=True))

    first, wrong, last = asyncio.run(ask())
    assert isinstance(wrong, UserError) and first.tokens == last.tokens == 20


def test_a_step_that_fails_ends_the_answers_in_it_and_not_the_speaker(
    talker: Speaker, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as failing:
        Speech.put(failing, tokenizer, "hill", fails=True)
        with pytest.raises(RuntimeError, match="on fire"):
            asyncio.run(whole(talker, question()))
    assert asyncio.run(whole(talker, question())).tokens == 20


async def rest(answer: AsyncIterator[Piece]) -> None:
    async for _ in answer:
        pass


def test_a_server_that_stops_ends_answers_and_questions(
    model: Transformer, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopping = False
    talker = Speaker(model, tokenizer, stopping=lambda: stopping)
    monkeypatch.setattr(batching, "ROWS", 1)
    Speech.put(monkeypatch, tokenizer, "river ", forever=True)

    async def ask() -> None:
        nonlocal stopping
        one, other = talker.answer(question(count=90)), talker.answer(question(count=90))
        await one.__anext__()
        stopping = True
        for answer in (one, other):
            with pytest.raises(Stopped):
                await rest(answer)

    asyncio.run(ask())
    talker.close()
