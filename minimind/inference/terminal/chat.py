"""`minimind chat`: questions and answers until the person has had enough.

Contract. The first line says what the model knows, where that is known (inference/about.py). Nothing that a person
types ends the chat or loses what was said, but /exit, Ctrl-D and Ctrl-C twice: what is wrong is said, and the next line
is asked for.

Known weakness: each answer reads the whole conversation again; the KV cache lives as long as one answer.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from minimind.base.display import Shown
from minimind.base.errors import UserError
from minimind.inference.about import about_model
from minimind.inference.sampling import Sampling
from minimind.inference.terminal.commands import COMMANDS, is_command, run_command
from minimind.inference.terminal.lines import Lines
from minimind.inference.terminal.talk import Talk
from minimind.inference.terminal.text import load, write_answer


def chat_loop(
    path: Path,
    system: str | None,
    sampling: Sampling,
    ask: Callable[[str], str] | None = None,
    out: TextIO | None = None,
    *,
    tokenizer_path: Path | None = None,
) -> None:
    """Talk until /exit or the end of input. ``ask``: instead of the terminal. UserError for a path without a model."""
    to = Shown(out or sys.stdout)
    talk = Talk(*load(path, tokenizer_path), sampling, system)
    to.write(greeting(path, talk))
    with Lines(to, COMMANDS, ask) as lines:
        while (line := lines.next()) is not None:
            try:
                if _one_line(line, talk, to):
                    return
            except UserError as error:
                to.write(f"{error}\n")
            except KeyboardInterrupt:  # outside the answer, which ends by itself
                to.write("\n")


def ask_once(
    path: Path,
    system: str | None,
    question: str,
    sampling: Sampling,
    out: TextIO | None = None,
    *,
    tokenizer_path: Path | None = None,
) -> None:
    """The answer to one question, and nothing else, on ``out``. UserError for one that is too long."""
    _answer(Talk(*load(path, tokenizer_path), sampling, system), question, Shown(out or sys.stdout))


def greeting(path: Path, talk: Talk) -> str:
    """What the model knows, with examples; then its size and how to get help."""
    about = about_model(path)
    known = f"{path} knows {about.knows}. Try:  {'  |  '.join(about.examples)}\n" if about else ""
    size, positions = talk.model.config.num_parameters(), talk.model.config.max_position_embeddings
    return f"{known}{path}: {size:,} parameters, context {positions:,} tokens. /help lists commands, Ctrl-D ends.\n"


def _one_line(line: str, talk: Talk, to: Shown) -> bool:
    """Do what the line says; whether it ends the chat."""
    question: str | None = line.strip()
    if is_command(line):
        reply = run_command(line, talk)
        if reply.text:
            to.write(f"{reply.text}\n")
        if reply.ends:
            return True
        question = reply.question
    if question:
        _answer(talk, question, to)
    return False


def _answer(talk: Talk, question: str, to: Shown) -> None:
    """Say the answer; the conversation has both from then on."""
    fitted = not talk.forgotten
    prompt = talk.prompt(question)
    if fitted and talk.forgotten:
        to.write("(the conversation no longer fits: from here on its oldest turns are left out)\n")
    text = write_answer(talk.model, talk.tokenizer, prompt, stop_ids=talk.stop_ids, sampling=talk.sampling, out=to)
    talk.add(question, text)
