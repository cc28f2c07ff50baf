"""Talking on a terminal, with a model that says what the test wants."""

import io
import sys
import types
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from minimind.base.errors import UserError
from minimind.inference import terminal
from minimind.inference.sampling import Sampling
from minimind.inference.terminal import chat_loop, continue_text, fitting
from minimind.text.chat import Turn, prompt_ids
from minimind.text.tokenizer import Tokenizer, train_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    texts = [f"The river {n} runs past the hill. 河水流过小山{n}。" for n in range(200)]
    return Tokenizer.load(train_tokenizer(texts, tmp_path_factory.mktemp("tokenizer"), vocab_size=320))


class Model:
    """Stands in for a Transformer: only its config is read here."""

    def __init__(self, positions: int = 4096) -> None:
        self.config = types.SimpleNamespace(max_position_embeddings=positions, num_parameters=lambda: 1234)


class Speaker:
    """Stands in for inference.generation: says each text in turn, and keeps the prompts it was given."""

    def __init__(self, tokenizer: Tokenizer, texts: Iterable[str], interrupt_after: int | None = None) -> None:
        self.tokenizer, self.texts, self.interrupt_after = tokenizer, list(texts), interrupt_after
        self.prompts: list[list[int]] = []
        self.options: list[dict[str, Any]] = []

    def generate(self, model: Model, prompt: list[int], sampling: Sampling, **options: Any) -> Iterator[int]:
        self.prompts.append(prompt)
        self.options.append(options)
        for count, token in enumerate([*self.tokenizer.encode(self.texts.pop(0)), self.tokenizer.im_end_id]):
            if count == self.interrupt_after:
                raise KeyboardInterrupt
            yield token


def use(monkeypatch: pytest.MonkeyPatch, speaker: Speaker, model: Model | None = None) -> None:
    monkeypatch.setitem(sys.modules, "minimind.inference.generation", speaker)  # type: ignore[arg-type]
    monkeypatch.setattr(terminal, "_load", lambda path, tokenizer: (model or Model(), speaker.tokenizer))


def talk(*lines: str | BaseException) -> Any:
    """An `input` that gives these lines, then the end of input."""
    left = list(lines)

    def ask(_: str) -> str:
        if not left:
            raise EOFError
        line = left.pop(0)
        if isinstance(line, BaseException):
            raise line
        return line

    return ask


def test_each_answer_has_seen_the_whole_conversation(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    speaker, out = Speaker(tokenizer, ["河水。", "The hill."]), io.StringIO()
    use(monkeypatch, speaker)
    chat_loop(Path("run"), "Be brief.", Sampling(), talk("你好", "", "And then?"), out)
    assert "河水。\n" in out.getvalue()
    assert out.getvalue().endswith("The hill.\n")
    turns = [Turn("system", "Be brief."), Turn("user", "你好"), Turn("assistant", "河水。"), Turn("user", "And then?")]
    assert speaker.prompts[1] == prompt_ids(turns, tokenizer)
    assert speaker.options[0]["stop_ids"] == {tokenizer.im_end_id, tokenizer.eos_id}


def test_reset_forgets_and_keeps_the_system_message(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    speaker = Speaker(tokenizer, ["a", "b"])
    use(monkeypatch, speaker)
    chat_loop(Path("run"), "Be brief.", Sampling(), talk("one", "/reset", "two", "/exit", "three"), io.StringIO())
    assert speaker.prompts[1] == prompt_ids([Turn("system", "Be brief."), Turn("user", "two")], tokenizer)
    assert len(speaker.prompts) == 2


def test_ctrl_c_ends_the_answer_not_the_chat(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    speaker, out = Speaker(tokenizer, ["The river runs.", "x"], interrupt_after=2), io.StringIO()
    use(monkeypatch, speaker)
    chat_loop(Path("run"), None, Sampling(), talk("one", "two", KeyboardInterrupt()), out)
    assert len(speaker.prompts) == 2


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
        chat_loop(Path("\x1b[2Jrun"), None, Sampling(), talk("one", "/exit"), out)
        assert ("\x1b" in out.getvalue()) != out.isatty()


def test_a_prompt_beyond_the_models_positions(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, Speaker(tokenizer, []), Model(positions=8))
    with pytest.raises(UserError, match="the model's limit is 8"):
        continue_text(Path("run"), "The river runs past the hill " * 9, Sampling(), io.StringIO())


def test_the_oldest_exchange_goes_first(tokenizer: Tokenizer) -> None:
    system = Turn("system", "s")
    turns = [system, *(Turn(role, f"{role} {n}") for n in range(3) for role in ("user", "assistant"))][:-1]
    kept = [system, *turns[3:]]
    limit = len(prompt_ids(kept, tokenizer))
    assert fitting(turns, tokenizer, limit) == (kept, prompt_ids(kept, tokenizer))
    assert fitting(turns, tokenizer, 10_000)[0] == turns
    with pytest.raises(UserError, match="ask a shorter one"):
        fitting(turns, tokenizer, 5)
