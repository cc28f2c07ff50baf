"""Talking with a model that says what the test wants."""

import io
import json
from pathlib import Path

import pytest

from minimind.base.errors import UserError
from minimind.inference.about import About, write_about
from minimind.inference.sampling import Sampling
from minimind.inference.terminal.chat import ask_once, chat_loop
from minimind.text.chat import Turn, prompt_ids
from minimind.text.tokenizer import Tokenizer
from tests.inference.terminal.speaking import Model, Speaker, typing, use

LONG = "The river runs past the hill. " * 20


def test_each_answer_has_seen_the_whole_conversation(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    speaker, out = Speaker(tokenizer, ["河水。", "The hill."]), io.StringIO()
    use(monkeypatch, speaker)
    chat_loop(Path("run"), "Be brief.", Sampling(), typing("你好", "", "And then?"), out)
    assert "河水。\n" in out.getvalue()
    assert "The hill.\n" in out.getvalue()
    turns = [Turn("system", "Be brief."), Turn("user", "你好"), Turn("assistant", "河水。"), Turn("user", "And then?")]
    assert speaker.prompts[1] == prompt_ids(turns, tokenizer)
    assert speaker.options[0]["stop_ids"] == {tokenizer.im_end_id, tokenizer.eos_id}


def test_reset_forgets_and_keeps_the_system_message(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    speaker = Speaker(tokenizer, ["a", "b"])
    use(monkeypatch, speaker)
    chat_loop(Path("run"), "Be brief.", Sampling(), typing("one", "/reset", "two", "/exit", "three"), io.StringIO())
    assert speaker.prompts[1] == prompt_ids([Turn("system", "Be brief."), Turn("user", "two")], tokenizer)
    assert len(speaker.prompts) == 2


def test_ctrl_c_ends_the_answer_not_the_chat(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    speaker, out = Speaker(tokenizer, ["The river runs.", "x"], interrupt_after=2), io.StringIO()
    use(monkeypatch, speaker)
    chat_loop(Path("run"), None, Sampling(), typing("one", "two", KeyboardInterrupt()), out)
    assert len(speaker.prompts) == 2


def test_the_first_line_says_what_the_model_knows(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use(monkeypatch, Speaker(tokenizer, []))
    out = io.StringIO()
    chat_loop(tmp_path, None, Sampling(), typing(), out)
    assert out.getvalue().startswith(f"{tmp_path}: 1,234 parameters"), "nothing is known of it"
    (tmp_path / "final").mkdir()
    write_about(About("sums", ("1+1", "2+2", "3+3")), tmp_path / "final")
    out = io.StringIO()
    chat_loop(tmp_path, None, Sampling(), typing(), out)
    assert out.getvalue().splitlines()[0] == f"{tmp_path} knows sums. Try:  1+1  |  2+2  |  3+3"


def test_a_long_question_is_said_and_the_next_one_knows_all_that_was_said(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    speaker, out = Speaker(tokenizer, ["a", "b"]), io.StringIO()
    use(monkeypatch, speaker, Model(positions=200))
    chat_loop(Path("run"), None, Sampling(100), typing("one", LONG, "two"), out)
    assert "ask a shorter one" in out.getvalue()
    assert speaker.prompts[1] == prompt_ids(
        [Turn("user", "one"), Turn("assistant", "a"), Turn("user", "two")], tokenizer
    )


def test_a_full_context_is_said_once(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    speaker, out = Speaker(tokenizer, "abcdefgh"), io.StringIO()
    use(monkeypatch, speaker, Model(positions=120))
    chat_loop(Path("run"), None, Sampling(60), typing(*["The river runs past the hill."] * 8), out)
    assert len(speaker.prompts) == 8 and max(map(len, speaker.prompts)) <= 60
    assert out.getvalue().count("no longer fits") == 1


def test_a_wrong_command_is_named_and_asks_nothing(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    speaker, out = Speaker(tokenizer, ["a"]), io.StringIO()
    use(monkeypatch, speaker)
    chat_loop(Path("run"), None, Sampling(), typing("/restet", "/temperature hot", " /etc is what?"), out)
    assert "/restet: no such command; did you mean /reset?" in out.getvalue()
    assert "/temperature hot: expected a number" in out.getvalue()
    assert speaker.prompts == [prompt_ids([Turn("user", "/etc is what?")], tokenizer)]


def test_retry_asks_the_same_with_other_luck(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    speaker, out = Speaker(tokenizer, ["a", "b"]), io.StringIO()
    use(monkeypatch, speaker)
    chat_loop(Path("run"), None, Sampling(seed=5), typing("one", "/retry"), out)
    assert speaker.prompts[0] == speaker.prompts[1]
    assert [sampling.seed for sampling in speaker.samplings] == [5, 6]


def test_one_question_prints_its_answer_alone(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    speaker, out = Speaker(tokenizer, ["河水。"]), io.StringIO()
    use(monkeypatch, speaker, Model(positions=200))
    ask_once(Path("run"), "Be brief.", "one", Sampling(), out)
    assert out.getvalue() == "河水。\n"
    assert speaker.prompts == [prompt_ids([Turn("system", "Be brief."), Turn("user", "one")], tokenizer)]
    with pytest.raises(UserError, match="ask a shorter one"):
        ask_once(Path("run"), None, LONG, Sampling(), out)


def test_an_interrupt_outside_an_answer_ends_nothing(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    speaker, out = Speaker(tokenizer, ["b"]), io.StringIO()
    use(monkeypatch, speaker)
    left = [KeyboardInterrupt()]

    def interrupted(*_: object) -> list[int]:
        if left:
            raise left.pop()
        return [1]

    monkeypatch.setattr("minimind.inference.terminal.talk.prompt_ids", interrupted)
    chat_loop(Path("run"), None, Sampling(), typing("one", "two"), out)
    assert out.getvalue().endswith("\nb\n\n")


def test_saved_conversations_are_what_sft_reads(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from minimind.data.records.conversations import Conversation, Fields, to_document

    speaker, file, out = Speaker(tokenizer, ["a"]), tmp_path / "talk.jsonl", io.StringIO()
    use(monkeypatch, speaker)
    chat_loop(Path("run"), "Be brief.", Sampling(), typing("你好", f"/save {file}", f"/save {file}"), out)
    document = to_document(json.loads(file.read_text(encoding="utf-8")), "sft", Fields())
    assert isinstance(document, Conversation)
    assert document.turns == [Turn("system", "Be brief."), Turn("user", "你好"), Turn("assistant", "a")]
    assert "is there already" in out.getvalue()
