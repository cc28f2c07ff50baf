"""Generated text, printed as it is made.

Contract. Only whole characters are printed. Ctrl-C ends the answer that is being made and nothing else. A terminal is
shown control characters and never sent them; a file or a pipe gets the text as it is.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from minimind.base.display import Shown
from minimind.base.errors import UserError
from minimind.inference.sampling import Sampling

if TYPE_CHECKING:
    from minimind.model.transformer import Transformer
    from minimind.text.tokenizer import Tokenizer


def continue_text(
    path: Path, prompt: str, sampling: Sampling, out: TextIO | None = None, tokenizer_path: Path | None = None
) -> None:
    """Print `prompt` and what the model makes of it. Raises UserError for a path without a model."""
    to = Shown(out or sys.stdout)
    model, tokenizer = load(path, tokenizer_path)
    prompt_ids = [tokenizer.bos_id, *tokenizer.encode(prompt)]
    limit = model.config.max_position_embeddings
    if len(prompt_ids) >= limit:
        raise UserError(f"the prompt has {len(prompt_ids)} tokens, the model's limit is {limit}: give a shorter one")
    to.write(prompt)
    write_answer(model, tokenizer, prompt_ids, stop_ids=[tokenizer.eos_id], sampling=sampling, out=to)


def write_answer(
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


def load(path: Path, tokenizer: Path | None) -> tuple[Transformer, Tokenizer]:
    """The model at ``path`` and its tokenizer, on the GPU if there is one. UserError."""
    import torch

    from minimind.inference.generation import load_model

    return load_model(path, "cuda" if torch.cuda.is_available() else "cpu", tokenizer=tokenizer)
