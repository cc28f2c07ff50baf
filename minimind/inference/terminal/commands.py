"""The commands of a chat: lines that begin with a slash.

Contract. A command changes the conversation or its settings, and what it says is text; it never ends the chat by an
error. A line that begins with a blank is a question, whatever it looks like.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from minimind.base.errors import UserError
from minimind.base.files import create
from minimind.inference.sampling import Sampling
from minimind.inference.terminal.talk import Talk


@dataclass(frozen=True)
class Reply:
    """What a command says, a ``question`` to be answered next, and whether the chat ends."""

    text: str = ""
    question: str | None = None
    ends: bool = False


@dataclass(frozen=True)
class Command:
    """``act(talk, argument)``; ``argument`` is its name in the help, empty for a command without one."""

    argument: str
    help: str
    act: Callable[[Talk, str], Reply]


def is_command(line: str) -> bool:
    return line.startswith("/")


def run_command(line: str, talk: Talk) -> Reply:
    """Raises UserError for a command that there is none of, and for a wrong argument."""
    word, _, argument = line[1:].strip().partition(" ")
    name = word.lower().replace("-", "_")
    name = ALIASES.get(name, name)
    if name not in COMMANDS:
        near = difflib.get_close_matches(name, COMMANDS, 1)
        hint = f"did you mean /{near[0]}? " if near else ""
        raise UserError(f"/{word}: no such command; {hint}/help lists them, a blank before it makes it a question")
    command = COMMANDS[name]
    if argument.strip() and not command.argument:
        raise UserError(f"/{word} takes no argument")
    return command.act(talk, argument.strip())


def _help(talk: Talk, _: str) -> Reply:
    usages = [(f"/{name} {command.argument}".rstrip(), command.help) for name, command in COMMANDS.items()]
    return Reply("\n".join(f"{usage:<24}{text}" for usage, text in usages) + KEYS)


def _reset(talk: Talk, _: str) -> Reply:
    talk.reset()
    return Reply("a new conversation")


def _system(talk: Talk, text: str) -> Reply:
    if not text:
        return Reply(f"system message: {talk.system}" if talk.system else "no system message")
    talk.system = None if text.lower() == "none" else text
    return Reply("system message set" if talk.system else "no system message any more")


def _retry(talk: Talk, _: str) -> Reply:
    question = talk.take_back()
    if question is None:
        raise UserError("/retry: nothing has been asked yet")
    talk.sampling = replace(talk.sampling, seed=talk.sampling.seed + 1)
    return Reply(question=question)


def _save(talk: Talk, name: str) -> Reply:
    """As a line of the file that launch/sft.py trains on."""
    if not name:
        raise UserError("/save needs a file's name: /save talk.jsonl")
    if not talk.turns:
        raise UserError("/save: nothing has been said yet")
    system = [{"role": "system", "content": talk.system}] if talk.system else []
    turns = [{"role": turn.role, "content": turn.content} for turn in talk.turns]
    line = json.dumps({"conversations": [*system, *turns]}, ensure_ascii=False)
    path = Path(name).expanduser()
    try:
        with create(path) as file:
            file.write(line.encode() + b"\n")
    except FileExistsError:
        raise UserError(f"{path}: is there already: give another name") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise UserError(f"{path}: can't be written: {getattr(error, 'strerror', None) or error}") from None
    return Reply(f"{len(turns)} turns -> {path}")


def _setting(name: str) -> Callable[[Talk, str], Reply]:
    kind = type(getattr(Sampling, name))

    def act(talk: Talk, text: str) -> Reply:
        if text:
            try:
                value = kind(text)
            except ValueError:
                wanted = "a whole number" if kind is int else "a number"
                raise UserError(f"/{name} {text}: expected {wanted}") from None
            talk.sampling = replace(talk.sampling, **{name: value})
        return Reply(f"{name} is {getattr(talk.sampling, name)}")

    return act


COMMANDS: dict[str, Command] = {
    "help": Command("", "this list", _help),
    "reset": Command("", "a new conversation with the same settings", _reset),
    "retry": Command("", "another answer to the last question", _retry),
    "system": Command("TEXT", "set the system message; none: without one", _system),
    "temperature": Command("X", "0 always takes the likeliest token", _setting("temperature")),
    "top_p": Command("X", "sample from the likeliest tokens of this total", _setting("top_p")),
    "top_k": Command("N", "sample from this many likeliest tokens; 0: all", _setting("top_k")),
    "max_new_tokens": Command("N", "length of an answer at most", _setting("max_new_tokens")),
    "seed": Command("N", "of the random numbers", _setting("seed")),
    "save": Command("FILE", "write the conversation as a line of JSONL", _save),
    "exit": Command("", "end", lambda talk, _: Reply(ends=True)),
}
ALIASES = {"quit": "exit", "bye": "exit", "q": "exit", "h": "help", "?": "help", "clear": "reset", "new": "reset"}
KEYS = """
A setting without a value is shown. Ctrl-C stops an answer or clears the line; twice at the prompt, or Ctrl-D, ends."""
