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
    joins_special: str | None  # why text beside a special token can't be encoded apart from it
    templates: Mapping[str, str]  # chat templates that are not ours: "default", and perhaps "tool_use"
    names: Mapping[str, str]  # what a template calls special tokens: "bos_token" and so on

    def encode(self, text: str) -> list[int]:
        """The ids of ordinary text. ValueError on a lone surrogate."""
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
