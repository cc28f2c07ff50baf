"""Tokenizers of a tokenizer.json in GGUF files: llama.cpp cuts every text as we do, or the tokenizer is refused."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Library

from minimind.base.errors import UserError
from minimind.interop.gguf import save_gguf
from minimind.interop.gguf_tokenizer import vocabulary
from minimind.interop.tokenizer_files import tokenizer_files
from minimind.model.transformer import ModelConfig, Transformer
from minimind.text.tokenizer import Tokenizer, train_tokenizer
from tests.waiting import PATIENCE

pytest.importorskip("gguf")

WORDS = ["the", "fox", "I've", "they'll", "WE'RE", "12", "3456", "hello", "你好", "世界", "学习", "é", "ñandú"]
TEXTS = [f"{a} {b}{i}，{b} {a}.\n\n    {a}aa{b}  {i * 37}\t" for i, a in enumerate(WORDS) for b in WORDS]
SPACE = "\u2581"
WORD, REST = r"[^\r\n\p{L}\p{N}]?\p{L}+", r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LLAMA3, QWEN2 = (rf"{SHORT}|{WORD}|{numbers}|{REST}" for numbers in (r"\p{N}{1,3}", r"\p{N}"))


def cutting(name: str) -> Any:
    if name == "gpt-2":
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    if name == "smollm":
        return pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    pattern = QWEN2 if name == "qwen2" else LLAMA3
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def byte_level(directory: Path, name: str = "gpt-2", **changes: Any) -> Tokenizer:
    """A byte-level BPE like MiniMind's; ``changes`` to its tokenizer.json."""
    library = Library(models.BPE(ignore_merges=name == "llama-bpe"))
    library.pre_tokenizer, library.decoder = cutting(name), decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=480, special_tokens=special, initial_alphabet=alphabet)
    library.train_from_iterator(TEXTS, trainer)
    library.add_tokens([AddedToken("<tool_call>", normalized=False)])
    content = json.loads(library.to_str()) | changes
    (directory / "tokenizer.json").write_text(json.dumps(content))
    names = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    (directory / "tokenizer_config.json").write_text(json.dumps(names))
    return Tokenizer.load(directory)


def texts() -> list[str]:
    draw = random.Random(0)
    alphabets = [
        "aboTHE'rest 12\n\t,.",
        "你好世界，。 12",
        "éñÅ߀١२Ⅷ½ⅳ\u00a0\u3000\u2028 \r\n",
        "😀👍🏽\u0301가나ไทย<|im_>",
    ]
    noise = ["".join(draw.choices("".join(draw.sample(alphabets, 2)), k=draw.randint(1, 60))) for _ in range(120)]
    fixed = [
        "",
        " ",
        "   x",
        "I'VE i've 'S",
        "a  b  c\n\n\n d",
        "1234567",
        "<|im_start|> <tool_call>x <s>",
        "\n \n\n ",
    ]
    return [*fixed, *TEXTS[::30], *noise]


@pytest.mark.parametrize("name", ["gpt-2", "smollm", "llama-bpe", "dbrx", "qwen2"])
def test_llama_cpp_takes_the_same_ids(tmp_path: Path, name: str) -> None:
    pytest.importorskip("xllamacpp")
    tokenizer = byte_level(tmp_path, name)
    assert vocabulary(tokenizer).pre == name
    theirs = ask_llama_cpp(tmp_path, tokenizer)
    for text, ids in zip(texts(), theirs["tokens"], strict=True):
        assert ids == tokenizer.encode(text), text
    assert theirs["prompt"][1].count(tokenizer.bos_id) == 3  # bos is <|im_start|> here: once more than the turns


AROUND = {"id": 481, "content": "<x>", "lstrip": True, "rstrip": False, "single_word": False}
BYTES = {"type": "ByteLevel", "trim_offsets": True}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"pre_tokenizer": {**BYTES, "add_prefix_space": True, "use_regex": True}}, "add_prefix_space"),
        ({"pre_tokenizer": {**BYTES, "add_prefix_space": False, "use_regex": False}}, "no pre-tokenizer"),
        ({"normalizer": {"type": "Lowercase"}}, "normalises no text.*Lowercase"),
        ({"added_tokens": [{**AROUND, "normalized": False, "special": False}]}, "takes what is around it"),
    ],
)
def test_what_llama_cpp_has_not_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    before = json.loads(byte_level(tmp_path).files["tokenizer.json"])["added_tokens"]
    changes = {name: [*before, *value] if name == "added_tokens" else value for name, value in changes.items()}
    with pytest.raises(UserError, match=rf"no GGUF file: .*{words}"):
        vocabulary(byte_level(tmp_path, **changes))


def test_normalisation_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert vocabulary(byte_level(tmp_path, normalizer={"type": "NFC"})).pre == "gpt-2"
    assert "normalises to NFC, which llama.cpp does not" in capsys.readouterr().err


def test_another_order_of_merges_is_no_sentencepiece(tmp_path: Path) -> None:
    vocab = {piece: i for i, piece in enumerate(["<unk>", "<|im_start|>", "<|im_end|>"])}
    vocab |= {f"<0x{byte:02X}>": 3 + byte for byte in range(256)}
    vocab |= {piece: 259 + i for i, piece in enumerate(["a", "b", "ab", "ba", "aba"])}

    def loaded(merges: list[list[str]], **more: Any) -> Tokenizer:
        model = {"type": "BPE", "unk_token": "<unk>", "byte_fallback": True, "vocab": vocab, "merges": merges}
        content: dict[str, Any] = {"version": "1.0", "model": model, "added_tokens": [], **more}
        (tmp_path / "tokenizer.json").write_text(json.dumps(content))
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
        return Tokenizer.load(tmp_path)

    right = [["a", "b"], ["b", "a"], ["ab", "a"], ["a", "ba"]]
    found = vocabulary(loaded(right))
    assert found.scores is not None and found.scores[261:264] == [0.0, -1.0, -2.0]
    with pytest.raises(UserError, match="not in the order of pieces"):
        vocabulary(loaded([right[2], *right[:2], right[3]]))
    with pytest.raises(UserError, match="lack ways to join"):
        vocabulary(loaded(right[:3]))
    with pytest.raises(UserError, match=r"prepares no text.*Lowercase"):
        vocabulary(loaded(right, normalizer={"type": "Lowercase"}))
    first = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "first", "split": False}
    with pytest.raises(UserError, match=r"prepares no text.*Metaspace"):
        vocabulary(loaded(right, pre_tokenizer=first))


REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
PREPARED: dict[str, tuple[Any, Any]] = {
    "as transformers saves our export": (None, None),
    "replaced": (REPLACE, None),
    "prepended": ({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": SPACE}, REPLACE]}, None),
    "metaspace never": (None, {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "never", "split": False}),
}


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(train_tokenizer(TEXTS, tmp_path_factory.mktemp("ours"), 460))


@pytest.mark.parametrize("how", PREPARED)
def test_llama_cpp_takes_the_same_ids_of_sentencepiece_s_bpe(tmp_path: Path, ours: Tokenizer, how: str) -> None:
    pytest.importorskip("xllamacpp")
    files = tokenizer_files(ours, 512)
    content = json.loads(files["tokenizer.json"])
    content["normalizer"], content["pre_tokenizer"] = PREPARED[how]
    if PREPARED[how] != (None, None):  # spaces are spelled as SentencePiece does
        model = content["model"]
        model["vocab"] = {piece.replace(" ", SPACE): i for piece, i in model["vocab"].items()}
        model["merges"] = [[part.replace(" ", SPACE) for part in merge] for merge in model["merges"]]
    for name, data in {**files, "tokenizer.json": json.dumps(content).encode()}.items():
        (tmp_path / name).write_bytes(data)
    tokenizer = Tokenizer.load(tmp_path / "tokenizer.json")
    assert vocabulary(tokenizer).model == "llama" and not tokenizer.is_sentencepiece
    for text, ids in zip(texts(), ask_llama_cpp(tmp_path, tokenizer)["tokens"], strict=True):
        assert ids == tokenizer.encode(text), text


def ask_llama_cpp(directory: Path, tokenizer: Tokenizer) -> Any:
    """What llama.cpp makes of the texts and of a chat."""
    model = Transformer(ModelConfig.preset("tiny", vocab_size=512, num_hidden_layers=1), seed=3)
    save_gguf(model.state_dict(), model.config, tokenizer, directory / "m.gguf")
    chat = [{"role": "user", "content": "hello"}]
    task = {"model": str(directory / "m.gguf"), "texts": texts(), "prompts": [], "chat": chat, "patience": PATIENCE}
    script = [sys.executable, str(Path(__file__).with_name("llama_cpp.py"))]
    done = subprocess.run(script, input=json.dumps(task), capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])
