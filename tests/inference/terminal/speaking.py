"""A model that says what a test wants, and a keyboard that types it."""

import sys
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from minimind.inference.sampling import Sampling
from minimind.inference.terminal import chat, text
from minimind.text.tokenizer import Tokenizer


class Model:
    """Stands in for a Transformer: only its config is read here."""

    def __init__(self, positions: int = 4096) -> None:
        self.config = types.SimpleNamespace(max_position_embeddings=positions, num_parameters=lambda: 1234)


class Speaker:
    """Stands in for inference.generation: says each text in turn, and keeps the prompts it was given."""

    def __init__(self, tokenizer: Tokenizer, texts: Iterable[str], interrupt_after: int | None = None) -> None:
        self.tokenizer, self.texts, self.interrupt_after = tokenizer, list(texts), interrupt_after
        self.prompts: list[list[int]] = []
        self.samplings: list[Sampling] = []
        self.options: list[dict[str, Any]] = []

    def generate(self, model: Model, prompt: list[int], sampling: Sampling, **options: Any) -> Iterator[int]:
        self.prompts.append(prompt)
        self.samplings.append(sampling)
        self.options.append(options)
        for count, token in enumerate([*self.tokenizer.encode(self.texts.pop(0)), self.tokenizer.im_end_id]):
            if count == self.interrupt_after:
                self.interrupt_after = None
                raise KeyboardInterrupt
            yield token


def use(monkeypatch: pytest.MonkeyPatch, speaker: Speaker, model: Model | None = None) -> None:
    monkeypatch.setitem(sys.modules, "minimind.inference.generation", speaker)
    for module in (text, chat):
        monkeypatch.setattr(module, "load", lambda path, tokenizer: (model or Model(), speaker.tokenizer))


def typing(*lines: str | BaseException) -> Callable[[str], str]:
    """An `input` that gives these lines, then the end of input."""
    left = list(lines)

    def ask(_: str) -> str:
        if not left:
            raise EOFError
        line = left.pop(0)
        if isinstance(line, BaseException):
            raise line
        return line

    return ask
