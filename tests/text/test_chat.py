"""minimind.text.chat: the template's ids and flags, special strings in content, shortening."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minimind.text.chat import JINJA, ROLES, Fitted, Rendered, Role, Turn, fit, prompt_ids, render
from minimind.text.tokenizer import Tokenizer, train_tokenizer
from tests.text.spelled import as_text

contents = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    st.lists(st.sampled_from(["<|im_start|>", "<|im_end|>", "assistant\n", "\n", "hi", " "])).map("".join),
)
conversations = st.lists(st.builds(Turn, st.sampled_from(ROLES), contents), min_size=1, max_size=12)


@pytest.fixture(scope="module")
def tok(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    texts = ["system user assistant tool hello there, how are you\n"] * 50
    return Tokenizer.load(train_tokenizer(texts, tmp_path_factory.mktemp("tok"), vocab_size=300))


def trained_text(rendered: Rendered, tok: Tokenizer) -> str:
    pairs = zip(rendered.ids, rendered.trainable, strict=True)
    return tok.decode([i for i, trained in pairs if trained], with_special=True)


def test_the_template_token_by_token(tok: Tokenizer) -> None:
    turns = [Turn("system", "s"), Turn("user", "hi"), Turn("assistant", "hello"), Turn("tool", "1")]
    rendered = render(turns, tok)
    spelled = "<s>" + as_text(turns)
    assert as_text(turns[2:3]) == "<|im_start|>assistant\nhello<|im_end|>\n"
    assert tok.decode(rendered.ids, with_special=True) == spelled
    assert rendered.ids[0] == tok.bos_id
    assert rendered.ids.count(tok.im_start_id) == rendered.ids.count(tok.im_end_id) == 4
    assert trained_text(rendered, tok) == "hello<|im_end|>"


@settings(max_examples=300, deadline=None)
@given(conversations)
def test_trainable_is_what_assistants_say_and_nothing_else(tok: Tokenizer, turns: list[Turn]) -> None:
    rendered = render(turns, tok)
    assert tok.decode(rendered.ids, with_special=True) == "<s>" + as_text(turns)
    expected = "".join(f"{turn.content}<|im_end|>" for turn in turns if turn.role == "assistant")
    assert trained_text(rendered, tok) == expected
    assert rendered.ids.count(tok.im_start_id) == rendered.ids.count(tok.im_end_id) == len(turns)


@settings(max_examples=100, deadline=None)
@given(conversations)
def test_a_prompt_is_the_prefix_of_its_answered_conversation(tok: Tokenizer, turns: list[Turn]) -> None:
    prompt = prompt_ids(turns, tok)
    answered = render([*turns, Turn("assistant", "hello")], tok)
    assert answered.ids[: len(prompt)] == prompt
    assert answered.trainable[len(prompt)]
    assert not answered.trainable[len(prompt) - 1]


def test_plain_content_agrees_with_encoding_the_whole_string(tok: Tokenizer) -> None:
    turns = [Turn("user", " how are\n\nyou "), Turn("assistant", "\nhello")]
    assert render(turns, tok).ids == [tok.bos_id, *tok.encode_marked(as_text(turns))]


@settings(max_examples=100, deadline=None)
@given(conversations, st.booleans())
def test_jinja_gives_the_same_string(turns: list[Turn], prompt: bool) -> None:
    jinja2 = pytest.importorskip("jinja2")
    # Hugging Face compiles templates with these two options.
    template = jinja2.Environment(trim_blocks=True, lstrip_blocks=True).from_string(JINJA)
    messages = [{"role": turn.role, "content": turn.content} for turn in turns]
    got = template.render(messages=messages, bos_token="<s>", add_generation_prompt=prompt)
    assert got == "<s>" + as_text(turns, generation_prompt=prompt)


def test_unknown_role() -> None:
    with pytest.raises(ValueError, match="unknown role 'human'; known: system, user, assistant, tool"):
        Turn("human", "hi")  # type: ignore[arg-type]


def talk(*roles: str) -> list[Turn]:
    names: dict[str, Role] = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}
    return [Turn(names[role[0]], "x" * int(role[1:] or 1)) for role in roles]


def length(turns: list[Turn], tok: Tokenizer) -> int:
    return len(render(turns, tok).ids)


@pytest.mark.parametrize(
    ("roles", "room_for", "kept"),
    [
        (["u", "a", "u", "a"], [0, 1, 2, 3], (0, 1, 2, 3)),
        (["u", "a", "u"], [0, 1, 2], (0, 1, 2)),  # fits: nothing is dropped, not even the open question
        (["u", "a", "u", "a"], [1, 2, 3], (2, 3)),  # an answer without its question is no beginning
        (["u", "a", "u", "a", "u"], [0, 1, 2, 3], (0, 1, 2, 3)),  # the open question goes first
        (["s", "u", "a", "u", "a"], [0, 3, 4], (0, 3, 4)),
        (["s", "u", "a", "u", "a"], [3, 4], (3, 4)),  # the system turn goes before the last exchange does
        (["u", "a", "u90", "a"], [0, 1], (0, 1)),  # the last exchange doesn't fit, the one before does
        (["u9", "a", "t", "a", "u", "a", "t", "a"], [2, 4, 5, 6, 7], (4, 5, 6, 7)),  # a tool result is no beginning
        (["a", "u", "a", "u"], [0, 1, 2], (0, 1, 2)),  # the conversation's own first turn is one
    ],
)
def test_whole_turns_are_kept_from_the_end(
    tok: Tokenizer, roles: list[str], room_for: list[int], kept: tuple[int, ...]
) -> None:
    turns = talk(*roles)
    fitted = fit(turns, tok, length([turns[i] for i in room_for], tok))
    assert fitted == Fitted(render([turns[i] for i in kept], tok), kept, answer_cut=False)


def test_an_answer_too_long_for_any_row_is_cut_and_does_not_teach_to_stop(tok: Tokenizer) -> None:
    turns = talk("u2", "a2", "u3", "a500")
    short = fit(turns[2:], tok, 40)
    assert short is not None
    assert short.answer_cut
    assert len(short.rendered.ids) == 40
    assert short.rendered.trainable[-1]
    assert tok.im_end_id not in short.rendered.ids[-5:]
    whole_exchange_first = fit(turns, tok, 40)
    assert whole_exchange_first is not None
    assert (whole_exchange_first.turns, whole_exchange_first.answer_cut) == ((0, 1), False)


@pytest.mark.parametrize("roles", [["u"], ["s", "u"], ["u500", "a"], ["s500", "u500", "a", "u"]])
def test_no_answer_no_sample(tok: Tokenizer, roles: list[str]) -> None:
    assert fit(talk(*roles), tok, 40) is None


@settings(max_examples=300, deadline=None)
@given(conversations, st.integers(2, 80))
def test_fitting_never_gives_an_untrainable_or_overlong_sample(tok: Tokenizer, turns: list[Turn], limit: int) -> None:
    fitted = fit(turns, tok, limit)
    if fitted is None:
        return
    assert len(fitted.rendered.ids) == len(fitted.rendered.trainable) <= limit
    assert any(fitted.rendered.trainable[1:])
    whole = render([turns[i] for i in fitted.turns], tok)
    assert fitted.rendered.ids == whole.ids[: len(fitted.rendered.ids)]
    assert fitted.rendered.trainable == whole.trainable[: len(fitted.rendered.ids)]
    assert fitted.answer_cut or len(whole.ids) - len(fitted.rendered.ids) <= 1
    if len(render(turns, tok).ids) <= limit:
        assert fitted.turns == tuple(range(len(turns)))
