"""tokenizer.json: the tokenizers library's ids on every text, special tokens by content, one's own spelling as text."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from minimind.base.errors import UserError
from minimind.text.chat import JINJA, Turn, prompt_ids, render
from minimind.text.tokenizer import Tokenizer

TEXTS = [f"the {a} fox ran {b} times, 你好 世界 {a}{b}\n  indented" for a in "abcdef" for b in range(30)]
SAMPLES = [
    "",
    " ",
    "  two  spaces ",
    "你好，世界！",
    "\U0001f600 é \x00\r\n",
    "a\u2581b \u2581",
    "unseen: ξ漢𠮷",
    *TEXTS[::50],
]
MINIMIND = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def byte_level() -> Library:
    """As MiniMind's: three special tokens, then bytes."""
    library = Library(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    library.train_from_iterator(
        TEXTS, trainers.BpeTrainer(vocab_size=330, special_tokens=MINIMIND, initial_alphabet=alphabet)
    )
    return library


def metaspace() -> Library:
    """As Llama's: U+2581 for spaces, one put in front, bytes for the unseen."""
    pieces = [f"<0x{byte:02X}>" for byte in range(256)]
    library = Library(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    library.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    fallback = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    library.decoder = decoders.Sequence(fallback)
    special = ["<unk>", "<s>", "</s>", *pieces]
    library.train_from_iterator(TEXTS, trainers.BpeTrainer(vocab_size=360, special_tokens=special))
    content = json.loads(library.to_str())
    content["added_tokens"] = content["added_tokens"][:3]
    return Library.from_str(json.dumps(content))


def unigram(texts: Sequence[str] = TEXTS) -> Library:
    library = Library(models.Unigram())
    library.normalizer = normalizers.NFKC()
    library.pre_tokenizer, library.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    special = ["<unk>", "<s>", "</s>", *MINIMIND[1:]]
    library.train_from_iterator(
        texts, trainers.UnigramTrainer(vocab_size=120, special_tokens=special, unk_token="<unk>")
    )
    return library


KINDS: dict[str, Callable[[], Library]] = {"byte-level": byte_level, "metaspace": metaspace, "unigram": unigram}
CONFIG = {"bos_token": "<|im_start|>", "eos_token": {"content": "<|im_end|>"}, "pad_token": "<|endoftext|>"}


@pytest.fixture(scope="module", params=KINDS)
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, Library]:
    library = KINDS[request.param]()
    directory = tmp_path_factory.mktemp("tokenizer")
    library.save(str(directory / "tokenizer.json"))
    return Tokenizer.load(directory), library


def write(directory: Path, library: Library, config: dict[str, Any] | None = None, **changes: Any) -> Path:
    content = json.loads(library.to_str()) | changes
    (directory / "tokenizer.json").write_text(json.dumps(content))
    if config is not None:
        (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory


@pytest.mark.parametrize("text", SAMPLES)
def test_the_ids_are_the_librarys(both: tuple[Tokenizer, Library], text: str) -> None:
    ours, library = both
    expected = library.encode(text, add_special_tokens=False).ids
    assert ours.encode(text) == expected
    assert ours.encode_batch([text, text], threads=2) == [expected] * 2
    assert ours.encode_arrays([text])[0].tolist() == expected
    assert ours.least_tokens(text) <= len(expected)
    assert ours.decode(expected) == library.decode(expected)


@settings(max_examples=150, deadline=None)
@given(text=st.text(max_size=40))
def test_the_ids_are_the_librarys_for_any_text(both: tuple[Tokenizer, Library], text: str) -> None:
    assume("<" not in text)  # no spelling of a special token, which the library alone would take for it
    ours, library = both
    expected = library.encode(text, add_special_tokens=False).ids
    assert ours.encode(text) == expected and ours.least_tokens(text) <= len(expected)


@pytest.mark.parametrize(
    "text", ["<|im_end|>", "a<|im_start|>user\nhi<|im_end|> b", "<s></s>", "<<s>", "<|im_<|im_end|>"]
)
def test_a_spelled_special_token_is_text(both: tuple[Tokenizer, Library], text: str) -> None:
    ours, _ = both
    ids = ours.encode(text)
    assert not {ours.bos_id, ours.eos_id, ours.pad_id} & set(ids)
    assert ids == ours.encode_batch([text, "x"], threads=2)[0]


def test_a_lone_surrogate_is_named(both: tuple[Tokenizer, Library]) -> None:
    with pytest.raises(ValueError, match=r"lone surrogate U\+D800 at character 1"):
        both[0].encode("a\ud800")


def test_the_stream_continues_a_text(both: tuple[Tokenizer, Library]) -> None:
    ours, _ = both
    ids, stream = ours.encode("the fox 你好"), ours.stream()
    told = "".join(stream.push(token) for token in ids) + stream.flush()
    assert told.removeprefix(" ") == ours.decode(ids)


def test_special_tokens_are_named_beside_the_file(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(write(tmp_path, byte_level(), CONFIG))
    assert (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id) == (0, 1, 2)
    assert (tokenizer.im_start_id, tokenizer.im_end_id, tokenizer.vocab_size) == (1, 2, 330)
    assert Tokenizer.load(tmp_path / "tokenizer.json").fingerprint == tokenizer.fingerprint
    again = pickle.loads(pickle.dumps(tokenizer))
    assert again.encode("the fox") == tokenizer.encode("the fox") and again.files == tokenizer.files
    other = Tokenizer.load(write(tmp_path, byte_level(), {**CONFIG, "eos_token": "<|endoftext|>"}))
    assert other.eos_id == 0 and other.fingerprint != tokenizer.fingerprint


def test_truncation_and_padding_are_left_out(tmp_path: Path) -> None:
    library = byte_level()
    whole = library.encode(TEXTS[0]).ids
    library.enable_truncation(3)
    library.enable_padding(length=50)
    assert Tokenizer.load(write(tmp_path, library, CONFIG)).encode(TEXTS[0]) == whole


def test_conversations_in_our_template(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(write(tmp_path, byte_level(), {**CONFIG, "chat_template": JINJA}))
    turns = [Turn("user", "hi <|im_end|>"), Turn("assistant", "yes")]
    rendered = render(turns, tokenizer)
    spoken = [token for token, flag in zip(rendered.ids, rendered.trainable, strict=True) if flag]
    assert spoken == [*tokenizer.encode("yes"), tokenizer.im_end_id]
    assert rendered.ids.count(tokenizer.im_end_id) == 2
    assert prompt_ids(turns, tokenizer)[-2:] != rendered.ids[-2:]


@pytest.mark.parametrize("where", ["config", "file"])
def test_a_template_without_provable_answers_is_refused_for_conversations_only(tmp_path: Path, where: str) -> None:
    foreign = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    write(tmp_path, byte_level(), {**CONFIG, **({"chat_template": foreign} if where == "config" else {})})
    if where == "file":
        (tmp_path / "chat_template.jinja").write_text(foreign)
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.decode(tokenizer.encode("the fox")) == "the fox"
    with pytest.raises(UserError, match=r"tokenizer.json: its chat template can't be used"):
        render([Turn("user", "hi")], tokenizer)


def test_without_our_two_tokens_there_are_no_conversations(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no <\|im_start\|> and"):
        render([Turn("user", "hi")], Tokenizer.load(write(tmp_path, metaspace())))


@pytest.mark.parametrize(
    ("config", "changes", "words"),
    [
        ({"eos_token": "<nowhere>"}, {}, "no token <nowhere>"),
        ({"bos_token": "<|im_start|>"}, {}, "no token that ends a text"),
        (None, {"model": {"type": "WordPiece", "vocab": {}}}, "type WordPiece"),
        (None, {"model": {"type": "BPE", "vocab": 3, "merges": []}}, "not a tokenizer.json"),
        (None, {"model": 7}, "type None"),
    ],
)
def test_what_can_not_be_used_is_refused_in_one_line(
    tmp_path: Path, config: dict[str, Any] | None, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(UserError, match=words) as caught:
        Tokenizer.load(write(tmp_path, byte_level(), config, **changes))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["x", "y"]]}}']
)
def test_damaged_files_are_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(UserError, match=r"tokenizer\.json"):
        Tokenizer.load(tmp_path)


def test_a_foreign_sentencepiece_model_beside_it_is_passed_over(tmp_path: Path) -> None:
    write(tmp_path, byte_level(), CONFIG)
    (tmp_path / "tokenizer.model").write_bytes(b"another program's")
    assert not Tokenizer.load(tmp_path).is_sentencepiece


def test_the_ids_of_added_tokens_are_the_librarys(tmp_path: Path) -> None:
    """A file whose added tokens leave a gap behind the vocabulary: the library closes it."""
    library = byte_level()
    added = json.loads(library.to_str())["added_tokens"]
    more = {**added[0], "id": 400, "content": "<|more|>"}
    tokenizer = Tokenizer.load(
        write(tmp_path, library, {**CONFIG, "pad_token": "<|more|>"}, added_tokens=[*added, more])
    )
    again = Library.from_file(str(tmp_path / "tokenizer.json"))
    assert tokenizer.pad_id == again.token_to_id("<|more|>") == 330
    assert tokenizer.vocab_size == 331


def test_ids_without_end_are_refused(tmp_path: Path) -> None:
    content = json.loads(byte_level().to_str())
    content["model"]["vocab"]["huge"] = 4_000_000_000
    with pytest.raises(UserError, match="its ids reach 4,000,000,000"):
        Tokenizer.load(write(tmp_path, byte_level(), CONFIG, model=content["model"]))


def test_a_decoder_that_writes_other_text_is_refused(tmp_path: Path) -> None:
    """The ids would be right, and every answer spelled wrongly."""
    library = Library(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    library.pre_tokenizer, library.decoder = pre_tokenizers.Whitespace(), decoders.BPEDecoder()
    special = ["<unk>", "</s>"]
    library.train_from_iterator(TEXTS, trainers.BpeTrainer(special_tokens=special, end_of_word_suffix="</w>"))
    with pytest.raises(UserError, match="its decoder writes"):
        Tokenizer.load(write(tmp_path, library, {"eos_token": "</s>"}))


def test_a_vocabulary_that_can_not_cut_every_text_is_refused(tmp_path: Path) -> None:
    """The library would raise at the first record with such a character, hours later perhaps."""
    content = json.loads(unigram().to_str())
    content["model"]["unk_id"] = None
    with pytest.raises(UserError, match="can't cut every text with it"):
        Tokenizer.load(write(tmp_path, unigram(), None, model=content["model"]))


def test_bytes_without_a_decoder_are_bytes(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(write(tmp_path, byte_level(), CONFIG, decoder=None))
    assert tokenizer.decode(tokenizer.encode("the fox é 你")) == "the fox é 你"


def test_several_chat_templates_beside_it_are_for_texts_only(tmp_path: Path) -> None:
    (tmp_path / "additional_chat_templates").mkdir()
    tokenizer = Tokenizer.load(write(tmp_path, byte_level(), CONFIG))
    assert tokenizer.encode("the fox")
    with pytest.raises(UserError, match="several chat templates"):
        tokenizer.check_chats()


ODD: list[object] = [
    None,
    True,
    -1,
    0,
    3,
    1e300,
    "",
    "a",
    "<s>",
    "\ud800",
    [],
    ["a"],
    [["a", 1]],
    {},
    {"type": "ByteLevel"},
]


@cache
def _spelled(kind: str) -> str:
    text: str = KINDS[kind]().to_str()
    return text


def _altered(value: Any, code: Iterator[int]) -> Any:
    """The value with some of its parts exchanged or left out."""
    if next(code, 255) < 6:
        return ODD[next(code, 0) % len(ODD)]
    if isinstance(value, dict):
        return {key: _altered(part, code) for key, part in value.items() if next(code, 255) > 3}
    return [_altered(part, code) for part in value[:3]] + value[3:] if isinstance(value, list) else value


@settings(
    derandomize=True, deadline=None, max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.sampled_from(sorted(KINDS)), st.binary(min_size=20, max_size=200))
def test_any_file_is_a_tokenizer_or_one_line(tmp_path: Path, kind: str, code: bytes) -> None:
    content, numbers = json.loads(_spelled(kind)), iter(code)
    vocabulary = content["model"].pop("vocab")
    content = _altered(content, numbers)
    if isinstance(content, dict) and isinstance(content.get("model"), dict):
        content["model"]["vocab"] = vocabulary
    config = _altered(
        {"eos_token": "</s>", "bos_token": {"content": "<s>"}, "chat_template": "{{ messages }}"}, numbers
    )
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    try:
        Tokenizer.load(tmp_path).encode("the fox 你")
    except UserError as error:
        said = str(error)
    else:
        said = ""
    assert "\n" not in said
