"""The commands of a chat, each by itself."""

import re
from pathlib import Path

import pytest

from minimind.base.errors import UserError
from minimind.inference.sampling import Sampling
from minimind.inference.terminal.commands import ALIASES, COMMANDS, run_command
from minimind.inference.terminal.talk import Talk
from minimind.text.tokenizer import Tokenizer
from tests.inference.terminal.speaking import Model

DOCS = Path(__file__).parents[3] / "docs" / "chat.md"


@pytest.fixture
def talk(tokenizer: Tokenizer) -> Talk:
    return Talk(Model(), tokenizer, Sampling())  # type: ignore[arg-type]


def test_help_names_every_command(talk: Talk) -> None:
    said = run_command("/help", talk).text
    assert all(f"/{name}" in said for name in COMMANDS)
    assert set(ALIASES.values()) <= COMMANDS.keys()


def test_the_page_names_every_command() -> None:
    rows = [line for line in DOCS.read_text(encoding="utf-8").splitlines() if line.startswith("| `/")]
    assert set(re.findall(r"`/([a-z_?]+)", "".join(rows))) == COMMANDS.keys() | ALIASES.keys()


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("/temperature 0.2", "temperature", 0.2),
        ("/top-p  0.5", "top_p", 0.5),
        ("/TOP_K 40", "top_k", 40),
        ("/max_new_tokens 7", "max_new_tokens", 7),
        ("/seed 3", "seed", 3),
    ],
)
def test_settings_are_those_of_the_next_answer(talk: Talk, line: str, name: str, value: float) -> None:
    assert run_command(line, talk).text == f"{name} is {value}"
    assert getattr(talk.sampling, name) == value
    assert run_command(f"/{name}", talk).text == f"{name} is {value}"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/temperature -1", "temperature is -1.0: it must be 0 or more"),
        ("/top_k 1.5", "/top_k 1.5: expected a whole number"),
        ("/frobnicate", "/frobnicate: no such command; /help lists them"),
        ("/", "/: no such command"),
        ("/reset now", "/reset takes no argument"),
        ("/save", "needs a file's name"),
        ("/save x.jsonl", "nothing has been said"),
        ("/retry", "nothing has been asked"),
    ],
)
def test_what_is_wrong_is_said_and_changes_nothing(talk: Talk, line: str, message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        run_command(line, talk)
    assert talk.sampling == Sampling() and not talk.turns


def test_the_system_message_is_set_shown_and_taken_away(talk: Talk) -> None:
    assert run_command("/system", talk).text == "no system message"
    run_command("/system Be  brief.", talk)
    assert talk.system == "Be  brief."
    assert run_command("/system", talk).text == "system message: Be  brief."
    run_command("/system none", talk)
    assert talk.system is None


@pytest.mark.parametrize("name", ["there/is/no/such/directory.jsonl", "a\0b"])
def test_a_file_that_cannot_be_written(talk: Talk, name: str, tmp_path: Path) -> None:
    talk.add("one", "1")
    with pytest.raises(UserError, match="can't be written"):
        run_command(f"/save {tmp_path}/{name}", talk)


@pytest.mark.parametrize("word", ["exit", "quit", "q"])
def test_exit_ends(talk: Talk, word: str) -> None:
    assert run_command(f"/{word}", talk).ends


def test_help_has_an_argument_and_a_sentence_for_each() -> None:
    assert {command.argument for command in COMMANDS.values()} == {"", "X", "N", "TEXT", "FILE"}
    assert all(len(command.help) > 2 and callable(command.act) for command in COMMANDS.values())
