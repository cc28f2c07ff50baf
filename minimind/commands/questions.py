"""Scoring the demo: ask a model held-out questions and compare its answers, character by character.

Contract: a conversation is led as `minimind chat` would, the model's own earlier answers in it, all conversations of
the file at once. Only the last answer counts: decoded greedily until the model ends it, it is right only if it equals
the file's exactly. An answer that runs to the length limit is cut there and counted like any other.

Known weakness: a right answer in other words counts as wrong, which is fair only for a corpus whose answers have one
form (``minimind.corpus.questions``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from minimind.base.command_lines import typed
from minimind.base.errors import UserError
from minimind.text.chat import Turn, prompt_ids

if TYPE_CHECKING:
    from rich.table import Table

    from minimind.model.transformer import Transformer
    from minimind.text.tokenizer import Tokenizer

ANSWER_TOKENS = 48
"""Room for an answer; the longest in the corpus has about 15 tokens."""

Turns = Sequence[Mapping[str, str]]
Respond = Callable[[Sequence[Sequence[Turn]]], list[str]]
"""Conversations that end with a question -> the answer to each."""


class Answer(NamedTuple):
    """One question put to the model."""

    question: str
    """What the user says, all turns, one a line."""
    expected: str
    given: str
    kind: str
    place: int
    """1 if it was asked first, 2 and more after other questions."""

    @property
    def right(self) -> bool:
        return self.given == self.expected


def read_conversations(file: str | Path) -> list[Turns]:
    """The conversations of a ``{"conversations": [{"role", "content"}]}`` file. UserError if there is no such file."""
    try:
        with Path(file).open(encoding="utf-8") as lines:
            return [json.loads(line)["conversations"] for line in lines]
    except OSError as error:
        command = typed("minimind", "demo-data", Path(file).parent)
        raise UserError(f"{file}: {error.strerror}: write it with `{command}`") from None


def ask_questions(conversations: Sequence[Turns], respond: Respond) -> list[Answer]:
    """Lead each of the corpus's held-out ``conversations``, from the first on, and note its last answer."""
    from minimind.corpus.conversations import held_out_kind, held_out_place

    given = [turns[-1] for turns in lead(conversations, respond)]
    return [
        Answer(
            "\n".join(turn["content"] for turn in turns if turn["role"] == "user"),
            expected=turns[-1]["content"],
            given=answer.content,
            kind=held_out_kind(number),
            place=held_out_place(number),
        )
        for number, (turns, answer) in enumerate(zip(conversations, given, strict=True))
    ]


def lead(conversations: Sequence[Turns], respond: Respond) -> list[list[Turn]]:
    """The conversations with the model's answers in place of the written ones, all at once, a question at a time."""
    led: list[list[Turn]] = [[] for _ in conversations]
    for at in range(0, max(map(len, conversations)), 2):  # a question and its answer
        asked = [number for number, turns in enumerate(conversations) if at < len(turns)]
        for number in asked:
            led[number].append(Turn("user", conversations[number][at]["content"]))
        for number, answer in zip(asked, respond([led[number] for number in asked]), strict=True):
            led[number].append(Turn("assistant", answer))
    return led


def greedy(model: Transformer, tokenizer: Tokenizer) -> Respond:
    """The model's likeliest answers."""
    from minimind.inference.generation import Sampling, generate_batch

    def respond(conversations: Sequence[Sequence[Turn]]) -> list[str]:
        prompts = [prompt_ids(turns, tokenizer) for turns in conversations]
        sampling = Sampling(ANSWER_TOKENS, temperature=0.0)
        answers = generate_batch(model, prompts, sampling, stop_ids=tokenizer.stop_ids)
        return [tokenizer.decode(ids) for ids in answers]

    return respond


def answers_table(answers: Sequence[Answer]) -> Table:
    """Question, right answer and the model's answer side by side, for ``rich.console.Console.print``."""
    from rich.text import Text

    from minimind.base.display import shown

    table = _table("", "question", "right answer", "its answer")
    for answer in answers:
        mark = Text("yes", "green") if answer.right else Text("no", "red")
        texts = (answer.question, answer.expected, answer.given)
        table.add_row(mark, *(Text(shown(text)) for text in texts))
    return table


def score_table(answers: Sequence[Answer]) -> Table:
    """How many answers of each kind were right: of those asked first, and of those asked after others."""
    table = _table("kind", "asked first", "second or third", "right")
    for kind in (*dict.fromkeys(answer.kind for answer in answers), "all"):
        own = [answer for answer in answers if kind in (answer.kind, "all")]
        first, later = ([a for a in own if (a.place == 1) == alone] for alone in (True, False))
        table.add_row(kind, *(f"{_right(part)} of {len(part)}" for part in (first, later, own)))
    return table


def _right(answers: Iterable[Answer]) -> int:
    return sum(answer.right for answer in answers)


def _table(*headings: str) -> Table:
    from rich.table import Table

    table = Table()
    for heading in headings:
        table.add_column(heading)
    return table
