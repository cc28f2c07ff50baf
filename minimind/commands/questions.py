"""Scoring the demo: ask a model held-out questions and compare its answers, character by character.

Contract: the prompt is the conversation up to its last assistant turn, earlier assistant turns as written in the
file; the answer is decoded greedily until the model ends it, and is right only if it equals the file's answer
exactly. An answer that runs to the length limit is cut there and counted like any other.

Known weakness: a right answer in other words counts as wrong, which is fair only for a corpus whose answers have one
form (``minimind.corpus.questions``).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

from minimind.base.command_lines import typed
from minimind.base.errors import UserError
from minimind.text.chat import Role, Turn, prompt_ids

if TYPE_CHECKING:
    from rich.table import Table

    from minimind.model.transformer import Transformer
    from minimind.text.tokenizer import Tokenizer

ANSWER_TOKENS = 48
"""Room for an answer; the longest in the corpus has about 15 tokens."""

Turns = Sequence[Mapping[str, str]]


class Answer(NamedTuple):
    """One question put to the model."""

    question: str
    """What the user says, all turns, one a line."""
    expected: str
    given: str
    right: bool


def read_conversations(file: str | Path) -> list[Turns]:
    """The conversations of a ``{"conversations": [{"role", "content"}]}`` file. UserError if there is no such file."""
    try:
        with Path(file).open(encoding="utf-8") as lines:
            return [json.loads(line)["conversations"] for line in lines]
    except OSError as error:
        command = typed("minimind", "demo-data", Path(file).parent)
        raise UserError(f"{file}: {error.strerror}: write it with `{command}`") from None


def ask_questions(
    model: Transformer, tokenizer: Tokenizer, conversations: Iterable[Turns], n: int = 10
) -> list[Answer]:
    """Ask the last question of the first ``n`` conversations; each must end with an assistant turn."""
    return [_ask(model, tokenizer, turns) for turns in islice(conversations, n)]


def answers_table(answers: Sequence[Answer]) -> Table:
    """Question, right answer and the model's answer side by side, for ``rich.console.Console.print``."""
    from rich.table import Table
    from rich.text import Text

    from minimind.base.display import shown

    right = sum(answer.right for answer in answers)
    table = Table(title=f"held-out questions: {right} of {len(answers)} right", title_justify="left")
    for heading in ("", "question", "right answer", "its answer"):
        table.add_column(heading)
    for answer in answers:
        mark = Text("yes", "green") if answer.right else Text("no", "red")
        texts = (answer.question, answer.expected, answer.given)
        table.add_row(mark, *(Text(shown(text)) for text in texts))
    return table


def _ask(model: Transformer, tokenizer: Tokenizer, turns: Turns) -> Answer:
    from minimind.inference.generation import Sampling, generate

    asked = [Turn(cast("Role", turn["role"]), turn["content"]) for turn in turns[:-1]]
    expected = turns[-1]["content"]
    greedy = Sampling(ANSWER_TOKENS, temperature=0.0)
    ids = generate(model, prompt_ids(asked, tokenizer), greedy, stop_ids=tokenizer.stop_ids)
    given = tokenizer.decode(ids)
    question = "\n".join(turn.content for turn in asked if turn.role == "user")
    return Answer(question, expected, given, given == expected)
