"""The chat template as a string, written down a second time: what `render` and `JINJA` are compared with."""

from __future__ import annotations

from collections.abc import Iterable

from minimind.text.chat import Turn
from minimind.text.tokenizer import IM_END, IM_START


def as_text(turns: Iterable[Turn], generation_prompt: bool = False) -> str:
    """The string that the template spells, without bos."""
    text = "".join(f"{IM_START}{turn.role}\n{turn.content}{IM_END}\n" for turn in turns)
    return text + f"{IM_START}assistant\n" if generation_prompt else text
