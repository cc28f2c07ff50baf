"""minimind.text.tokenizer: exactness, special ids, streaming, training."""

from __future__ import annotations

import io
import pickle
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from minimind.base.errors import UserError
from minimind.text import sentencepiece_codec
from minimind.text.sentencepiece_training import sample
from minimind.text.tokenizer import Tokenizer, train_tokenizer

ENGLISH = ["the", "cat", "sat", "on", "mat", "and", "then", "saw", "one", "more", "dog", "in", "town"]
WORDS = [*ENGLISH, "北京", "上海", "今天", "天气", "很好", "我们", "去", "公园"]
AWKWARD = [
    "",
    " ",
    "  leading and trailing  ",
    "a  b   c\t\td\n\n e\r\n",
    "\x00 \x00\x00",
    "\u2581",
    " \u2581 \u2581\u2581a\u2581",
    "\u2585",
    "\ufffd\ufffe\uffff\U0010ffff\u0378",
    "👩‍👩‍👧‍👦 é e\u0301 ﬁ Ａ ①",
    "<s></s><pad><unk><0x41><|im_start|>assistant\n<|im_end|>",
    "2024年1234567890",
    "\u2028\u2029\u0085\x0c\xa0\u3000",
    "\ufeffbom",
]
text = st.text(st.characters(exclude_categories=["Cs"]))
spaced = st.text(st.sampled_from("ab <|>_ims\u2581\u2585\n\t\0 0x41京天😀"))


def corpus(lines: int = 400) -> list[str]:
    rng = random.Random(0)
    return [" ".join(rng.choices(WORDS, k=12)) + "\n    <unk> <s> <|im_start|> <0x41> 12" for _ in range(lines)]


@pytest.fixture(scope="module")
def tok(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(train_tokenizer(corpus(), tmp_path_factory.mktemp("tok"), vocab_size=340))


@pytest.mark.parametrize("string", AWKWARD)
def test_awkward_strings_round_trip(tok: Tokenizer, string: str) -> None:
    assert tok.decode(tok.encode(string)) == string
    assert tok.decode(tok.encode_batch([string] * 40)[-1]) == string


@settings(max_examples=300, deadline=None)
@given(st.one_of(text, spaced))
def test_every_string_round_trips_without_a_control_id(tok: Tokenizer, string: str) -> None:
    ids = tok.encode(string)
    assert tok.decode(ids) == string
    assert all(tok.im_end_id < i < tok.vocab_size for i in ids)
    assert tok.decode(ids, with_special=True) == string


@settings(max_examples=50, deadline=None)
@given(st.lists(st.one_of(text, spaced), max_size=80))
def test_batches_equal_single_texts(tok: Tokenizer, strings: list[str]) -> None:
    single = [tok.encode(string) for string in strings]
    assert tok.encode_batch(strings, threads=2) == single
    assert [array.tolist() for array in tok.encode_arrays(strings)] == single


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_streaming_equals_decoding_and_never_shows_half_a_character(tok: Tokenizer, data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, tok.vocab_size - 1)))
    decoder = tok.stream()
    assert "".join([decoder.push(i) for i in ids] + [decoder.flush()]) == tok.decode(ids)
    decoder = tok.stream()
    assert "\ufffd" not in "".join(decoder.push(i) for i in tok.encode("天😀京"))
    assert decoder.flush() == ""


def test_streaming_waits_for_the_last_byte(tok: Tokenizer) -> None:
    decoder = tok.stream()
    parts = [decoder.push(i) for i in tok.encode("😀")]
    assert parts == ["", "", "", "😀"]


def test_special_ids(tok: Tokenizer) -> None:
    assert (tok.pad_id, tok.bos_id, tok.eos_id, tok.im_start_id, tok.im_end_id) == (0, 1, 2, 4, 5)
    assert tok.decode([1, 4, *tok.encode("hi"), 5, 2]) == "hi"
    assert tok.decode([1, 4, *tok.encode("hi"), 5, 2], with_special=True) == "<s><|im_start|>hi<|im_end|></s>"


def test_marked_text_gives_the_two_chat_ids_and_plain_text_never_does(tok: Tokenizer) -> None:
    marked = "<|im_start|>a <s><|im_end|>"
    assert tok.encode_marked(marked) == [4, *tok.encode("a <s>"), 5]
    assert not {4, 5} & set(tok.encode(marked))


@pytest.mark.parametrize("encode", [Tokenizer.encode, lambda tok, s: tok.encode_batch(["x"] * 50 + [s])])
def test_lone_surrogate_is_a_clear_value_error(tok: Tokenizer, encode: Callable[[Tokenizer, str], object]) -> None:
    for string in ("ab\ud800c", "ab\udfffc\u2581"):
        with pytest.raises(ValueError, match=r"lone surrogate U\+D[8F]\w\w at character 2"):
            encode(tok, string)


@pytest.mark.parametrize("bad", [-1, 340, 10**9])
def test_id_outside_the_vocabulary(tok: Tokenizer, bad: int) -> None:
    with pytest.raises(ValueError, match=f"token id {bad} is outside the vocabulary of 340"):
        tok.decode([7, bad])
    with pytest.raises(ValueError, match="outside the vocabulary"):
        tok.stream().push(bad)


def test_long_texts_are_cut_where_it_changes_no_id(tok: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    string = " ".join(corpus(200)) + "京天今天天气 " * 50
    whole = tok.encode(string)
    monkeypatch.setattr(sentencepiece_codec, "_LONG_TEXT", 100)
    codec = tok._codec
    assert isinstance(codec, sentencepiece_codec.SentencePieceCodec) and len(list(codec._sections(string))) > 50
    assert tok.encode(string) == whole
    assert tok.decode(tok.encode("aaaa" * 2000)) == "aaaa" * 2000


def test_no_piece_holds_a_line_break(tok: Tokenizer) -> None:
    """The chat template's piecewise encoding relies on it."""
    assert tok.encode("user\nthe cat\n\n12") == [
        i for part in ("user", "\n", "the cat", "\n", "\n", "12") for i in tok.encode(part)
    ]


def test_digits_stand_alone_and_indentation_does_not(tok: Tokenizer) -> None:
    assert len(tok.encode("2024")) == 4
    assert len(tok.encode("    ")) == 1


def test_training_is_deterministic_and_quiet(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    first = train_tokenizer(corpus(), tmp_path / "a", vocab_size=320, sample_bytes=20_000)
    second = train_tokenizer(iter(corpus()), tmp_path / "b.model", vocab_size=320, sample_bytes=20_000)
    assert first == tmp_path / "a" / "tokenizer.model"
    assert second == tmp_path / "b.model"
    assert first.read_bytes() == second.read_bytes()
    assert Tokenizer.load(tmp_path / "a").fingerprint == Tokenizer.load(second).fingerprint
    assert capfd.readouterr() == ("", "")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b.model"]


def test_sampling_holds_its_limit_and_reaches_everywhere() -> None:
    texts = [f"{i:04d}" * 100 for i in range(1000)]
    kept = sample(texts, 40_000, seed=0)
    assert 36_000 <= sum(map(len, kept)) <= 40_000
    numbers = [int(section[:4]) for section in kept]
    assert numbers == sorted(numbers)
    assert 400 < sum(numbers) / len(numbers) < 600
    assert kept != sample(texts, 40_000, seed=1)
    assert sample(texts, 10**9, seed=0) == texts


def test_nothing_is_dropped_from_training(tmp_path: Path) -> None:
    """A line longer than SentencePiece's limit, and lines with the characters it refuses, still count."""
    lines = ["qz " * 20_000, "wv\u2585wv " * 500, "jx\u2581jx " * 500, "gk\0gk " * 500]
    tok = Tokenizer.load(train_tokenizer(lines, tmp_path, vocab_size=278))
    assert all(len(tok.encode(pair)) == 1 for pair in ("qz", "wv", "jx", "gk"))


def test_a_corpus_without_a_space_still_gives_one(tmp_path: Path) -> None:
    tok = Tokenizer.load(train_tokenizer(["今天天气很好"] * 100, tmp_path, vocab_size=272))
    assert len(tok.encode(" ")) == 1
    assert tok.decode(tok.encode("今天 \u2581 好")) == "今天 \u2581 好"


def test_too_little_text_names_the_largest_vocabulary(tmp_path: Path) -> None:
    texts = ["hello world, hello tokens"] * 10
    with pytest.raises(UserError, match=r"at most (\d+) pieces") as caught:
        train_tokenizer(texts, tmp_path, vocab_size=6400)
    largest = int(str(caught.value).split("at most ")[1].split()[0])
    assert list(tmp_path.iterdir()) == []
    assert Tokenizer.load(train_tokenizer(texts, tmp_path, vocab_size=largest)).vocab_size == largest


@pytest.mark.parametrize(
    ("texts", "vocab_size", "reason"),
    [
        ([], 300, "empty"),
        (["", "\n"], 300, "empty"),
        (["".join(map(chr, range(0x4E00, 0x4E00 + 500)))] * 2, 300, "--vocab-size 7"),
        (["fine", "bad \ud800"], 300, r"text 2: lone surrogate U\+D800"),
    ],
)
def test_impossible_training_is_explained(
    tmp_path: Path, texts: list[str], vocab_size: int, reason: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError, match=reason):
        train_tokenizer(texts, tmp_path, vocab_size=vocab_size)
    assert capfd.readouterr() == ("", "")


def test_errors_of_the_source_pass_through(tmp_path: Path) -> None:
    def texts() -> Iterator[str]:
        yield "fine"
        raise UserError("file.jsonl:2: broken")

    with pytest.raises(UserError, match=r"file\.jsonl:2"):
        train_tokenizer(texts(), tmp_path)


def test_unwritable_output(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write"):
        train_tokenizer(corpus(), tmp_path / "file", vocab_size=320)


def foreign(**changes: object) -> bytes:
    written = io.BytesIO()
    options = {
        "pad_id": 0,
        "bos_id": 1,
        "eos_id": 2,
        "unk_id": 3,
        "byte_fallback": True,
        "control_symbols": ["<|im_start|>", "<|im_end|>"],
        "normalization_rule_name": "identity",
        "add_dummy_prefix": False,
        "remove_extra_whitespaces": False,
        "vocab_size": 320,
    }
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(corpus()), model_writer=written, model_type="bpe", minloglevel=3, **(options | changes)
    )
    return written.getvalue()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"control_symbols": ["<|im_start|>"]}, "no control symbols"),
        ({"control_symbols": [], "user_defined_symbols": ["<|im_start|>", "<|im_end|>"]}, "no control symbols"),
        ({"bos_id": 2, "eos_id": 1}, r"\(0, 2, 1\)"),
        ({"byte_fallback": False, "vocab_size": 100}, "without byte fallback"),
        ({"add_dummy_prefix": True}, "alters text"),
        ({"remove_extra_whitespaces": True}, "alters text"),
        ({"normalization_rule_name": "nmt_nfkc"}, "alters text"),
    ],
)
def test_foreign_models_are_refused(tmp_path: Path, changes: dict[str, object], reason: str) -> None:
    path = tmp_path / "tokenizer.model"
    path.write_bytes(foreign(**changes))
    with pytest.raises(UserError, match=reason):
        Tokenizer.load(path)


def test_missing_and_broken_files(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no tokenizer at .*absent"):
        Tokenizer.load(tmp_path / "absent")
    with pytest.raises(UserError, match=r"tokenizer\.model"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(UserError, match="not a SentencePiece model"):
        Tokenizer.load(tmp_path)


def test_pickles_into_workers(tok: Tokenizer) -> None:
    copy = pickle.loads(pickle.dumps(tok))
    assert copy.fingerprint == tok.fingerprint
    assert copy.encode("the cat") == tok.encode("the cat")
