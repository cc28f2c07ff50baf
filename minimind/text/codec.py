"""What a tokenizer is made of: the two kinds of vocabulary behind one small protocol.

Contract of a codec: ordinary text never gives the id of a special token, whatever it spells; what it gives otherwise is
the business of the kind. ``text_bytes`` and ``special_bytes`` spell every id, special tokens as nothing or by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

IM_START, IM_END = "<|im_start|>", "<|im_end|>"
Ids = npt.NDArray[np.int32]
ByteTable = dict[int, bytes]
# Unicode's White_Space, which the library's \\s is; Python's own strip takes four control characters besides
_WHITE_SPACE = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))


class Codec(Protocol):
    """A vocabulary and how text is cut into it. ``files``: what to keep of it, by name."""

    files: Mapping[str, bytes]
    vocab_size: int
    pad_id: int
    bos_id: int
    eos_id: int
    im_start_id: int
    im_end_id: int
    text_bytes: ByteTable
    special_bytes: ByteTable
    strips_space: bool  # a text's first piece is spelled with a space that the text has not
    no_chats: str | None  # why conversations can't be rendered at all
    special: Mapping[int, str]  # the special tokens' spellings
    swallows: Mapping[str, tuple[bool, bool]]  # special tokens that take in white space: before, behind them
    joins_special: str | None  # why text beside a special token can't be encoded apart from it
    templates: Mapping[str, str]  # chat templates that are not ours: "default", and perhaps "tool_use"
    names: Mapping[str, str]  # what a template calls special tokens: "bos_token" and so on

    def encode(self, text: str) -> list[int]:
        """The ids of ordinary text. ValueError on a lone surrogate."""
        ...

    def encode_behind(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each where it does not begin the text but stands behind a special token."""
        ...

    def encode_inner(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each where it goes on a text. (Whether the text may be cut there is another matter.)"""
        ...

    def encode_batch(self, texts: Sequence[str], threads: int = 1) -> list[list[int]]:
        """``encode`` of each."""
        ...

    def encode_arrays(self, texts: Sequence[str], threads: int = 1) -> list[Ids]:
        """``encode`` of each, as int32 arrays."""
        ...

    def least_tokens(self, text: str) -> int:
        """A number that ``encode`` can't stay below, at no cost."""
        ...


def outside(token_id: int, vocab_size: int) -> ValueError:
    """For an id that no piece has."""
    return ValueError(f"token id {token_id} is outside the vocabulary of {vocab_size}")


def refuse_surrogates(text: str, where: str) -> None:
    """ValueError for text that has no UTF-8 form."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        code = f"U+{ord(text[error.start]):04X} at character {error.start}"
        raise ValueError(f"{where}lone surrogate {code}: not Unicode text") from None


def strip_beside(text: str, sides: tuple[bool, bool]) -> str:
    """The text without the white space at its start, at its end, that a special token beside it takes in."""
    start, end = sides
    text = text.lstrip(_WHITE_SPACE) if start else text
    return text.rstrip(_WHITE_SPACE) if end else text
