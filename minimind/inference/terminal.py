"""Generation on a terminal: text printed as it is made, and a conversation of any length.

Contract. Only whole characters are printed. A conversation that outgrows the model's positions loses its oldest
turns, never the system message or the last question. Ctrl-C ends the answer that is being made, not the chat. A
terminal is shown control characters and never sent them; a file or a pipe gets the text as it is.

Known weakness: each answer reads the whole conversation again; the KV cache lives as long as one answer.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from minimind.base.display import Shown
from minimind.base.errors import UserError
from minimind.inference.sampling import Sampling

if TYPE_CHECKING:
    from minimind.model.transformer import Transformer
    from minimind.text.chat import Turn
    from minimind.text.tokenizer import Tokenizer


def continue_text(
    path: Path, prompt: str, sampling: Sampling, out: TextIO | None = None, tokenizer_path: Path | None = None
) -> None:
    """Print `prompt` and what the model makes of it. Raises UserError for a path without a model."""
    to = Shown(out or sys.stdout)
    model, tokenizer = _load(path, tokenizer_path)
    prompt_ids = [tokenizer.bos_id, *tokenizer.encode(prompt)]
    limit = model.config.max_position_embeddings
    if len(prompt_ids) >= limit:
        raise UserError(f"the prompt has {len(prompt_ids)} tokens, the model's limit is {limit}: give a shorter one")
    to.write(prompt)
    answer(model, tokenizer, prompt_ids, stop_ids=[tokenizer.eos_id], sampling=sampling, out=to)


def chat_loop(
    path: Path,
    system: str | None,
    sampling: Sampling,
    ask: Callable[[str], str] = input,
    out: TextIO | None = None,
    *,
    tokenizer_path: Path | None = None,
) -> None:
    """Talk until /exit or the end of input. Raises UserError for a path without a model."""
    from minimind.text.chat import Turn

    to = Shown(out or sys.stdout)
    model, tokenizer = _load(path, tokenizer_path)
    start = [Turn("system", system)] if system else []
    turns = list(start)
    to.write(f"{path}: {model.config.num_parameters():,} parameters. /reset starts over, /exit ends.\n")
    while (question := _question(ask)) is not None:
        if question == "/reset":
            turns = list(start)
        if not question or question == "/reset":
            continue
        turns.append(Turn("user", question))
        turns, prompt_ids = fitting(turns, tokenizer, model.config.max_position_embeddings - sampling.max_new_tokens)
        stops = tokenizer.stop_ids
        turns.append(Turn("assistant", answer(model, tokenizer, prompt_ids, stop_ids=stops, sampling=sampling, out=to)))


def answer(
    model: Transformer,
    tokenizer: Tokenizer,
    prompt_ids: list[int],
    stop_ids: Iterable[int],
    sampling: Sampling,
    out: Shown,
) -> str:
    """Generate, print while it goes, and return the text. Ctrl-C ends it early."""
    from minimind.inference.generation import generate

    stream, parts = tokenizer.stream(), []

    def emit(text: str) -> None:
        parts.append(text)
        out.write(text)

    stops = set(stop_ids)
    try:
        for token in generate(model, prompt_ids, sampling, stop_ids=stops):
            if token not in stops:
                emit(stream.push(token))
    except KeyboardInterrupt:
        pass  # the person has read enough
    emit(stream.flush())
    out.write("\n")
    return "".join(parts)


def fitting(turns: Sequence[Turn], tokenizer: Tokenizer, limit: int) -> tuple[list[Turn], list[int]]:
    """The turns that fit into `limit` tokens, the oldest exchanges left out, and their prompt.

    Raises UserError when the last question alone does not fit.
    """
    from minimind.text.chat import prompt_ids

    head = [turn for turn in turns[:1] if turn.role == "system"]
    rest = list(turns[len(head) :])
    while len(ids := prompt_ids([*head, *rest], tokenizer)) > limit:
        if len(rest) <= 1:
            raise UserError(f"the question has {len(ids)} tokens, {limit} are left for it: ask a shorter one")
        rest = rest[2:]  # a question and its answer
    return [*head, *rest], ids


def _question(ask: Callable[[str], str]) -> str | None:
    try:
        text = ask("\n> ").strip()
    except (EOFError, KeyboardInterrupt):
        return None
    return None if text in ("/exit", "/quit") else text


def _load(path: Path, tokenizer: Path | None) -> tuple[Transformer, Tokenizer]:
    import torch

    from minimind.inference.generation import load_model

    return load_model(path, "cuda" if torch.cuda.is_available() else "cpu", tokenizer=tokenizer)
