"""The prompt of a chat on a real terminal: editing, history, Ctrl-C, and a model that can be stopped."""

from __future__ import annotations

import io
import json
import stat
from pathlib import Path

import pytest
import torch

from minimind.base.display import Shown
from minimind.inference.terminal.lines import FILE, MOST_ENTRIES, ROOM, Lines
from minimind.interop.huggingface import save_pretrained
from minimind.model.transformer import ModelConfig, Transformer
from minimind.text.tokenizer import Tokenizer
from tests.inference.terminal.screen import CTRL_A, CTRL_D, ENTER, UP, Screen
from tests.inference.terminal.speaking import typing

LINES = """
import sys
from minimind.base.display import Shown
from minimind.inference.terminal.lines import Lines
out = Shown(sys.stdout)
with Lines(out, ["help", "reset"]) as lines:
    while (line := lines.next()) is not None:
        out.write(f"got {line!r}\\n")
"""
CHAT = "from minimind.cli import main; main(['chat', *__import__('sys').argv[1:]])"


@pytest.fixture
def cache(tmp_path: Path) -> dict[str, str]:
    return {"MINIMIND_CACHE": str(tmp_path / "cache")}


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> Path:
    """A model that goes on for ever when it takes the likeliest token: none of those that end has a weight."""
    config = ModelConfig.preset(
        "tiny", vocab_size=320, hidden_size=32, num_hidden_layers=1, head_dim=8, initializer_range=0.3
    )
    model = Transformer(config, seed=1)
    with torch.no_grad():
        model.model.embed_tokens.weight[[tokenizer.eos_id, tokenizer.im_end_id]] = 0
    directory = tmp_path_factory.mktemp("endless") / "model"
    save_pretrained(model.state_dict(), model.config, tokenizer, directory)
    return directory


def test_a_line_can_be_edited_and_comes_back_in_the_next_chat(cache: dict[str, str], tmp_path: Path) -> None:
    with Screen(LINES, environment=cache) as screen:
        screen.answer(f"bc{CTRL_A}a{ENTER}")
        screen.until("got 'abc'")
        screen.answer(f"/res\t{ENTER}")
        screen.until("got '/reset '")
        screen.answer(f"河水{ENTER}")
        screen.until("got '河水'")
        screen.answer(CTRL_D)
        assert screen.ended() == 0
    history = tmp_path / "cache" / ROOM / FILE
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    assert [json.loads(line) for line in history.read_text().splitlines()] == ["abc", "/reset ", "河水"]
    with Screen(LINES, environment=cache) as screen:
        screen.answer(f"{UP}{UP}{UP}d{ENTER}")
        screen.until("got 'abcd'")
        screen.answer(CTRL_D)
        screen.ended()
    assert len(history.read_text().splitlines()) == 4


def test_ctrl_c_clears_the_line_and_twice_ends(cache: dict[str, str], tmp_path: Path) -> None:
    with Screen(LINES, environment=cache) as screen:
        screen.answer("half a")
        screen.until("half a")
        screen.interrupt()
        screen.until("Ctrl-C again ends")
        screen.answer(f"whole{ENTER}")
        screen.until("got 'whole'")
        for _ in range(2):
            screen.until("> ")
            screen.interrupt()
        assert screen.ended() == 0
        assert "half a'" not in screen.text
    assert (tmp_path / "cache" / ROOM / FILE).read_text() == '"whole"\n'


def test_a_pasted_text_of_several_lines_is_one_question(cache: dict[str, str], tmp_path: Path) -> None:
    with Screen(LINES, environment=cache) as screen:
        screen.until("> ")
        if "\x1b[?2004h" not in screen.text:
            pytest.skip("this readline (libedit, or one before 8.1) knows no bracketed paste")
        screen.type(f"\x1b[200~one\ntwo\x1b[201~{ENTER}")
        screen.until(r"got 'one\ntwo'")
        screen.answer(CTRL_D)
        screen.ended()
    assert json.loads((tmp_path / "cache" / ROOM / FILE).read_text()) == "one\ntwo"


def test_a_whole_chat_on_a_terminal(endless: Path, cache: dict[str, str], tmp_path: Path) -> None:
    saved = tmp_path / "talk.jsonl"
    with Screen(CHAT, [str(endless), "--temperature", "0", "--max-new-tokens", "9000"], cache) as screen:
        screen.until("/help lists commands")
        screen.answer(f"The river{ENTER}")
        screen.until("The river\r\n")
        screen.until_long(100)  # it answers
        screen.type("\x03")
        screen.answer(f"/nonsense{ENTER}")
        screen.until("/nonsense: no such command")
        screen.answer(f"/max_new_tokens 3{ENTER}")
        screen.until("max_new_tokens is 3")
        screen.answer(f"/save {saved}{ENTER}")
        screen.until("2 turns ->")
        screen.answer(f"/exit{ENTER}")
        assert screen.ended() == 0
        assert "Traceback" not in screen.text
    assert json.loads(saved.read_text())["conversations"][1]["content"], "what it had said when it was stopped"


def test_without_a_terminal_there_is_no_prompt_and_no_history(
    monkeypatch: pytest.MonkeyPatch, cache: dict[str, str], tmp_path: Path
) -> None:
    monkeypatch.setenv("MINIMIND_CACHE", cache["MINIMIND_CACHE"])
    monkeypatch.setattr("sys.stdin", io.StringIO("one\n\ntwo\n"))
    out = io.StringIO()
    with Lines(Shown(out)) as lines:
        assert [lines.next(), lines.next(), lines.next()] == ["one", "two", None]
    assert out.getvalue() == ""
    assert not (tmp_path / "cache").exists()


class History:
    """Stands in for readline."""

    def __init__(self, typed: list[str]) -> None:
        self.entries: list[str] = []
        self.typed = typed

    def add_history(self, entry: str) -> None:
        self.entries.append(entry)

    def get_current_history_length(self) -> int:
        return len(self.entries)

    def get_history_item(self, number: int) -> str:
        return self.entries[number - 1]

    def __getattr__(self, name: str) -> object:
        return lambda *_: None


def chat(monkeypatch: pytest.MonkeyPatch, *typed: str) -> tuple[History, str]:
    """One chat in which these lines are typed; what readline held, and what was said."""
    history, out = History(list(typed)), io.StringIO()
    monkeypatch.setattr("minimind.inference.terminal.lines._readline", lambda: history)
    monkeypatch.setattr("sys.stdin", type("Terminal", (io.StringIO,), {"isatty": lambda self: True})())
    with Lines(Shown(out)):
        for entry in typed:
            history.add_history(entry)
    return history, out.getvalue()


def test_a_chat_keeps_what_another_one_added_and_not_more_than_the_newest(
    monkeypatch: pytest.MonkeyPatch, cache: dict[str, str], tmp_path: Path
) -> None:
    monkeypatch.setenv("MINIMIND_CACHE", cache["MINIMIND_CACHE"])
    chat(monkeypatch, *(f"line {n}" for n in range(MOST_ENTRIES)))
    history, _ = chat(monkeypatch, "last")
    assert history.entries[-2:] == [f"line {MOST_ENTRIES - 1}", "last"]
    kept = (tmp_path / "cache" / ROOM / FILE).read_text().splitlines()
    assert len(kept) == MOST_ENTRIES and kept[0] == '"line 1"' and kept[-1] == '"last"'


@pytest.mark.parametrize("content", [b"\xff\n", b"no json\n", b"x" * (5 << 20)])
def test_a_damaged_history_is_said_and_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, cache: dict[str, str], tmp_path: Path, content: bytes
) -> None:
    monkeypatch.setenv("MINIMIND_CACHE", cache["MINIMIND_CACHE"])
    chat(monkeypatch, "one")
    file = tmp_path / "cache" / ROOM / FILE
    file.write_bytes(content)
    history, said = chat(monkeypatch)
    assert str(file) in said and not history.entries


def test_a_link_in_place_of_the_history_is_not_followed(
    monkeypatch: pytest.MonkeyPatch, cache: dict[str, str], tmp_path: Path
) -> None:
    monkeypatch.setenv("MINIMIND_CACHE", cache["MINIMIND_CACHE"])
    chat(monkeypatch, "one")
    secret, file = tmp_path / "secret", tmp_path / "cache" / ROOM / FILE
    secret.write_text('"mine"\n')
    file.unlink()
    file.symlink_to(secret)
    history, said = chat(monkeypatch, "two")
    assert "mine" not in history.entries and "link" in said
    assert secret.read_text() == '"mine"\n' and not file.is_symlink()


def test_a_cache_that_cannot_be_used_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MINIMIND_CACHE", str(tmp_path / "file"))
    assert "note: no history" in chat(monkeypatch, "one")[1]


def test_a_second_ctrl_c_counts_only_right_after_the_first() -> None:
    out = io.StringIO()
    lines = Lines(Shown(out), ask=typing(KeyboardInterrupt(), "one", KeyboardInterrupt(), KeyboardInterrupt(), "two"))
    assert [lines.next(), lines.next()] == ["one", None]
