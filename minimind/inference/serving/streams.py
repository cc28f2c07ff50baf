"""Several answers at once: merged as their pieces come, or all of them whole.

Contract. Where the reader goes, or one answer fails, the others end, too.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence

from starlette.requests import Request

from minimind.inference.answers import Piece, Question
from minimind.inference.speaker import Speaker

Pieces = AsyncGenerator[Piece, None]


def answers(speaker: Speaker, questions: Sequence[Question], whole: bool = False) -> list[Pieces]:
    """The answers' pieces, one generator each; ``whole``: one piece each."""
    return [speaker.answer(question, whole) for question in questions]


async def merged(sources: Sequence[Pieces]) -> AsyncGenerator[tuple[int, Piece], None]:
    """Each piece with the number of its answer, as they come. Raises what the first that fails raises."""
    if len(sources) == 1:  # the usual case needs no task
        async with contextlib.aclosing(sources[0]) as pieces:
            async for piece in pieces:
                yield 0, piece
        return
    made: asyncio.Queue[tuple[int, Piece] | Exception | None] = asyncio.Queue()
    tasks = [asyncio.ensure_future(_pass_on(i, source, made)) for i, source in enumerate(sources)]
    try:
        going = len(tasks)
        while going:
            item = await made.get()
            if item is None:
                going -= 1
            elif isinstance(item, Exception):
                raise item
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pass_on(index: int, source: Pieces, to: asyncio.Queue[tuple[int, Piece] | Exception | None]) -> None:
    try:
        async with contextlib.aclosing(source) as pieces:
            async for piece in pieces:
                to.put_nowait((index, piece))
        to.put_nowait(None)
    except Exception as error:
        to.put_nowait(error)


async def together(speaker: Speaker, questions: Sequence[Question], request: Request) -> list[Piece] | None:
    """All answers whole; None when the client has left. Raises what generation raises."""
    making = asyncio.ensure_future(_whole(speaker, questions))
    leaving = asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait((making, leaving), return_when=asyncio.FIRST_COMPLETED)
        return making.result() if making.done() else None
    finally:
        for task in (making, leaving):
            task.cancel()
        await asyncio.gather(making, leaving, return_exceptions=True)


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _whole(speaker: Speaker, questions: Sequence[Question]) -> list[Piece]:
    async with contextlib.aclosing(merged(answers(speaker, questions, whole=True))) as made:
        whole = {index: piece async for index, piece in made}
    return [whole[index] for index in range(len(questions))]
