"""Several answers at once: none outlives its reader or the failure of another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from minimind.inference.answers import Piece

pytest.importorskip("starlette")

from minimind.inference.serving.streams import merged


async def source(texts: str, ended: list[str], fails: bool = False) -> AsyncGenerator[Piece, None]:
    try:
        for text in texts:
            await asyncio.sleep(0)
            yield Piece(text, 1)
        if fails:
            raise ValueError("the source is dry")
        await asyncio.Event().wait() if texts.isupper() else None  # one in capitals never ends
    finally:
        ended.append(texts)


@pytest.mark.parametrize("count", [1, 3])
def test_pieces_come_with_the_number_of_their_answer(count: int) -> None:
    async def read() -> list[str]:
        parts = [""] * count
        async for index, piece in merged([source(f"abc{i}", []) for i in range(count)]):
            parts[index] += piece.text
        return parts

    assert asyncio.run(read()) == [f"abc{i}" for i in range(count)]


def test_where_one_fails_the_others_end() -> None:
    ended: list[str] = []

    async def read() -> None:
        async for _ in merged([source("AB", ended), source("c", ended, fails=True)]):
            pass

    with pytest.raises(ValueError, match="dry"):
        asyncio.run(read())
    assert sorted(ended) == ["AB", "c"]


def test_a_reader_that_leaves_ends_all() -> None:
    ended: list[str] = []

    async def read() -> None:
        pieces = merged([source("AB", ended), source("CD", ended)])
        await pieces.__anext__()
        await pieces.aclose()

    asyncio.run(read())
    assert sorted(ended) == ["AB", "CD"]
