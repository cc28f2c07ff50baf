"""A file of prompts, many at once, to a file of answers.

Contract. A prompt a line, or JSONL of ``{"prompt": text}`` or ``{"messages": [...]}`` (a conversation that ends with
the question) where the file's name ends in .jsonl. Answers come in the order of the prompts: the prompt's
record with ``"answer"`` in a .jsonl, else the answer alone, its line breaks written ``\\n``. All prompts are looked at
before the first is answered, and the output is written whole or not at all. Greedy answers are those that each prompt
gets alone, up to rounding.

Known weakness: other answers depend on what else is in the file, since a batch draws row by row.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from minimind.base.display import complain
from minimind.base.errors import UserError
from minimind.base.files import replacing
from minimind.base.strict.json_text import parse_json, read_text_named, reason_of
from minimind.data.records.turns import Notes, turn_list
from minimind.inference.sampling import Sampling
from minimind.inference.terminal.text import load
from minimind.text.chat import Turn, prompt_ids

if TYPE_CHECKING:
    from minimind.model.transformer import Transformer
    from minimind.text.tokenizer import Tokenizer

ROWS = 32
"""Prompts that are answered together; those of similar length, since a row is as long as the longest."""


@dataclass(frozen=True)
class Prompt:
    """``asked``: what stands in the output beside the answer; ``ids`` end where the answer begins; ``stops`` end it."""

    asked: Mapping[str, object]
    ids: list[int]
    stops: Collection[int]


def answer_file(
    path: Path,
    prompts: Path,
    output: Path,
    sampling: Sampling,
    *,
    chat: bool = False,
    tokenizer_path: Path | None = None,
) -> int:
    """Answer each prompt of a file; how many. ``chat``: a line is a question, not a text to go on from.

    Raises UserError for a path without a model, a line that is no prompt or has too many tokens, and an output that
    can't be written.
    """
    model, tokenizer = load(path, tokenizer_path)
    asked = [_prompt(line, prompts, tokenizer, number=n, chat=chat) for n, line in enumerate(_lines(prompts), 1)]
    limit = model.config.max_position_embeddings
    for number, prompt in enumerate(asked, 1):
        if len(prompt.ids) >= limit:
            raise UserError(
                f"{prompts}:{number}: has {len(prompt.ids)} tokens, the model's limit is {limit}: shorten it"
            )
    try:
        with replacing(output) as file:
            for prompt, answer in zip(asked, _answers(model, tokenizer, asked, sampling), strict=True):
                file.write(_written(prompt, answer, output).encode())
    except OSError as error:
        raise UserError(f"{output}: can't be written: {error.strerror}") from error
    return len(asked)


def _lines(file: Path) -> list[str]:
    """The lines of the file, without empty ones at its end."""
    try:
        lines = read_text_named(file).rstrip("\r\n").split("\n")
    except (OSError, ValueError) as error:
        raise UserError(f"{file}: can't be read: {reason_of(error)}") from error
    if lines == [""]:
        raise UserError(f"{file}: no prompt in it")
    return [line.removesuffix("\r") for line in lines]


def _prompt(line: str, file: Path, tokenizer: Tokenizer, number: int, chat: bool) -> Prompt:
    try:
        value = parse_json(line) if file.suffix == ".jsonl" else {"prompt": line}
        return _of_record(value, tokenizer, chat)
    except ValueError as error:
        raise UserError(f"{file}:{number}: {error}") from None


def _of_record(value: object, tokenizer: Tokenizer, chat: bool) -> Prompt:
    """Raises ValueError, BadRecord too, with what is wrong."""
    if not isinstance(value, dict) or not {"prompt", "messages"} & set(value):
        raise ValueError('expected {"prompt": "..."} or {"messages": [...]}')
    asked = {name: value[name] for name in ("id", "prompt", "messages") if name in value}
    if "messages" in value:
        turns = turn_list(value["messages"], Notes())
        if turns[-1].role == "assistant":
            raise ValueError("the messages end with an answer: the last must be the question")
        return Prompt(asked, prompt_ids(turns, tokenizer), tokenizer.stop_ids)
    text = value["prompt"]
    if not isinstance(text, str) or not text.strip():
        raise ValueError("the prompt is empty" if isinstance(text, str) else '"prompt" is no text')
    if chat:
        return Prompt(asked, prompt_ids([Turn("user", text)], tokenizer), tokenizer.stop_ids)
    return Prompt(asked, [tokenizer.bos_id, *tokenizer.encode(text)], [tokenizer.eos_id])


def _answers(model: Transformer, tokenizer: Tokenizer, prompts: Sequence[Prompt], sampling: Sampling) -> Iterator[str]:
    """The answers in the order of the prompts, computed in the order of their lengths."""
    from minimind.inference.generation import generate_batch

    order = sorted(range(len(prompts)), key=lambda n: len(prompts[n].ids))
    stops = {token for prompt in prompts for token in prompt.stops}
    answers: dict[int, str] = {}
    for start in range(0, len(order), ROWS):
        rows = order[start : start + ROWS]
        made = generate_batch(
            model,
            [prompts[n].ids for n in rows],
            replace(sampling, seed=sampling.seed + start),
            stop_ids=stops,
        )
        answers |= {n: tokenizer.decode(ids) for n, ids in zip(rows, made, strict=True)}
        if len(order) > ROWS:
            complain(f"{len(answers):,} of {len(order):,} answered")
    yield from (answers[n] for n in range(len(prompts)))


def _written(prompt: Prompt, answer: str, output: Path) -> str:
    if output.suffix == ".jsonl":
        return json.dumps({**prompt.asked, "answer": answer}, ensure_ascii=False) + "\n"
    return answer.replace("\\", "\\\\").replace("\r", "\\r").replace("\n", "\\n") + "\n"
