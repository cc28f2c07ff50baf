"""How an answer's tokens are chosen, as one value for the terminal, the server, Python and generation itself.

Contract. A value that exists is valid. Importing this costs nothing, so that the command line may.
"""

from __future__ import annotations

from dataclasses import dataclass

from minimind.base.defaults import TEXT_TEMPERATURE, TEXT_TOKENS, TEXT_TOP_P
from minimind.base.errors import UserError


@dataclass(frozen=True)
class Sampling:
    """How many tokens at most, and how each is chosen; the same ``seed`` gives the same tokens on the same machine.

    ``temperature`` 0: the likeliest. ``top_k`` 0 and ``top_p`` 1: off. ``repetition_penalty`` 1: off. The defaults are
    those of `minimind generate`. Raises UserError for a value that is out of range.
    """

    max_new_tokens: int = TEXT_TOKENS
    temperature: float = TEXT_TEMPERATURE
    top_p: float = TEXT_TOP_P
    top_k: int = 0
    seed: int = 0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        allowed = {
            "max_new_tokens": (self.max_new_tokens >= 0, "0 or more"),
            "temperature": (self.temperature >= 0, "0 or more"),
            "top_p": (0 < self.top_p <= 1, "above 0 and at most 1"),
            "top_k": (self.top_k >= 0, "0 or more"),
            "repetition_penalty": (self.repetition_penalty > 0, "above 0"),
        }
        for name, (good, range_) in allowed.items():
            if not good:
                raise UserError(f"{name} is {getattr(self, name)}: it must be {range_}")


USUAL = Sampling()
