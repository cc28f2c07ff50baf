"""Generated text on a terminal, with a model that says what the test wants."""

import io
from pathlib import Path

import pytest

from minimind.base.errors import UserError
from minimind.inference.sampling import Sampling
from minimind.inference.terminal.chat import chat_loop
from minimind.inference.terminal.text import continue_text
from minimind.text.tokenizer import Tokenizer
from tests.inference.terminal.speaking import Model, Speaker, typing, use


def test_continue_text_prints_the_prompt_and_whole_characters(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    speaker, out = Speaker(tokenizer, [" 龘 runs"]), io.StringIO()
    use(monkeypatch, speaker)
    continue_text(Path("run"), "The river", Sampling(), out)
    assert speaker.prompts == [[tokenizer.bos_id, *tokenizer.encode("The river")]]
    assert out.getvalue() == "The river 龘 runs\n"


def test_a_terminal_is_shown_what_a_model_writes(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return True

    for out, expected in (
        (Screen(), "\\x1b[2J a\\u009b\\x1b]0;b\\x07\n"),
        (io.StringIO(), "\x1b[2J a\x9b\x1b]0;b\x07\n"),
    ):
        use(monkeypatch, Speaker(tokenizer, [" a\x9b\x1b]0;b\x07"]))
        continue_text(Path("run"), "\x1b[2J", Sampling(), out)
        assert out.getvalue() == expected
        use(monkeypatch, Speaker(tokenizer, [" a\x9b\x1b]0;b\x07"]))
        chat_loop(Path("\x1b[2Jrun"), None, Sampling(), typing("one", "/exit"), out)
        assert ("\x1b" in out.getvalue()) != out.isatty()


def test_a_prompt_beyond_the_models_positions(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, Speaker(tokenizer, []), Model(positions=8))
    with pytest.raises(UserError, match="the model's limit is 8"):
        continue_text(Path("run"), "The river runs past the hill " * 9, Sampling(), io.StringIO())
