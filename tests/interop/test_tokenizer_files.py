"""What transformers does with an export: the loss, the masks and the chats of training, and back again."""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path
from typing import Any

import pytest
import torch

from minimind.commands.models import evaluate_file, export_model
from minimind.data.records.turns import Notes, turn_list
from minimind.inference.loading import load_model
from minimind.interop.huggingface import save_pretrained
from minimind.interop.model_card import Card
from minimind.model.transformer import ModelConfig, Transformer
from minimind.text.chat import Turn, prompt_ids, render
from minimind.text.template import JINJA
from minimind.text.tokenizer import Tokenizer, train_tokenizer
from tests.interop.test_gguf_tokenizer import byte_level

transformers = pytest.importorskip("transformers")

WORDS = re.findall(r"\w+", "the quick brown fox jumps over a lazy dog hello world 你好 世界 学习 模型 训练")
TEXTS = [f"{a} {b}{i}，{b} {a}.\n    {a}aa{b}" for i, a in enumerate(WORDS) for b in WORDS]
TOOLS = [{"type": "function", "function": {"name": "add", "description": "两数之和", "parameters": {"a": 1}}}]
CALL = {"id": "1", "type": "function", "function": {"name": "add", "arguments": {"a": 3, "b": "四"}}}
CHATS: dict[str, list[dict[str, Any]]] = {
    "plain": [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hello\nfox <s> 12"},
        {"role": "assistant", "content": "你好 aaa\n\n  two"},
        {"role": "user", "content": "a\u2581b \x00"},
        {"role": "assistant", "content": " \n"},
        {"role": "assistant", "content": "x"},
    ],
    "parts": [
        {"role": "user", "content": [{"type": "text", "text": "hello "}, {"type": "text", "text": "\nworld"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "学习"}]},
    ],
    "tools": [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "3 + 4"},
        {"role": "assistant", "content": "", "tool_calls": [CALL, CALL]},
        {"role": "tool", "content": "7"},
        {"role": "assistant", "content": "seven", "reasoning_content": "\nthe tool says\n7\n"},
    ],
    "tools without a system turn": [
        {"role": "user", "content": "3 + 4"},
        {"role": "assistant", "content": "wait", "tool_calls": [CALL]},
    ],
}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model that has seen the texts, so that bos matters to it."""
    root = tmp_path_factory.mktemp("exports")
    tokenizer = Tokenizer.load(train_tokenizer(TEXTS, root / "tokenizer", 480))
    model = Transformer(ModelConfig.preset("tiny", vocab_size=480, num_hidden_layers=2), seed=3)
    rows = [[tokenizer.bos_id, *tokenizer.encode(text), tokenizer.eos_id] for text in TEXTS[::3]]
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(30):
        row = torch.tensor([rows[step % len(rows)]])
        torch.nn.functional.cross_entropy(model(row[:, :-1])[0], row[0, 1:]).backward()
        optimizer.step()
        optimizer.zero_grad()
    save_pretrained(model.state_dict(), model.config, tokenizer, root / "final")
    return root / "final"


@pytest.fixture(scope="module")
def ours(exported: Path) -> Tokenizer:
    return Tokenizer.load(exported / "tokenizer.model")


@pytest.fixture(scope="module")
def theirs(exported: Path) -> Any:
    return transformers.AutoTokenizer.from_pretrained(exported)


def loss_of(model: Any, rows: list[list[int]]) -> float:
    """Nats a token over all rows, by transformers' own labels."""
    total = tokens = 0.0
    with torch.no_grad():
        for row in rows:
            ids = torch.tensor([row])
            count = len(row) - 1
            total, tokens = total + float(model(input_ids=ids, labels=ids).loss) * count, tokens + count
    return total / tokens


def test_the_loss_on_held_out_text_is_ours(
    exported: Path, theirs: Any, ours: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINIMIND_CACHE", str(tmp_path / "cache"))
    texts = TEXTS[1:40:3]
    (tmp_path / "held.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    expected = evaluate_file(exported, [tmp_path / "held.jsonl"], "pretrain", 128, 4)["loss"]
    model = transformers.AutoModelForCausalLM.from_pretrained(exported)
    assert loss_of(model, [[*theirs(text)["input_ids"], ours.eos_id] for text in texts]) == pytest.approx(
        expected, abs=1e-4
    )
    without = loss_of(model, [[*ours.encode(text), ours.eos_id] for text in texts])
    assert without > expected + 0.01


@pytest.mark.parametrize("name", CHATS)
def test_a_chat_is_rendered_and_masked_as_it_is_trained(theirs: Any, ours: Tokenizer, name: str) -> None:
    messages, tools = CHATS[name], TOOLS if "tools" in name else None
    plain = name == "plain"  # with what data may not hold: an empty answer, NUL
    turns = [Turn(turn["role"], turn["content"]) for turn in messages] if plain else turns_of(messages, tools)
    rendered = render(turns, ours)
    made = theirs.apply_chat_template(messages, tools=tools, return_assistant_tokens_mask=True, return_dict=True)
    assert made["input_ids"] == rendered.ids
    assert [bool(mask) for mask in made["assistant_masks"]] == rendered.trainable
    prompted = theirs.apply_chat_template(messages, tools=tools, add_generation_prompt=True)["input_ids"]
    assert prompted == prompt_ids(turns, ours) and prompted.count(ours.bos_id) == 1


def turns_of(messages: list[dict[str, Any]], tools: object) -> list[Turn]:
    """As data are read, where tools stand on the system turn."""
    rows = [dict(message) for message in messages]
    if tools:
        rows = rows if rows[0]["role"] == "system" else [{"role": "system", "content": ""}, *rows]
        rows[0]["tools"] = tools
    return turn_list(rows, Notes())


def test_a_part_that_is_no_text_is_refused(theirs: Any) -> None:
    messages = [{"role": "user", "content": [{"type": "image", "url": "x"}]}]
    with pytest.raises(Exception, match="a content part of type image"):
        theirs.apply_chat_template(messages)


def test_trained_there_sharded_and_back(exported: Path, ours: Tokenizer, tmp_path: Path) -> None:
    """Loaded, trained a step, saved in shards with its tokenizer: everything of ours takes the directory."""
    model = transformers.AutoModelForCausalLM.from_pretrained(exported)
    tokenizer = transformers.AutoTokenizer.from_pretrained(exported)
    ids = torch.tensor([tokenizer(TEXTS[0])["input_ids"]])
    model(input_ids=ids, labels=ids).loss.backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    model.save_pretrained(tmp_path, max_shard_size="100KB")
    tokenizer.save_pretrained(tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert "model.safetensors.index.json" in names and "tokenizer.model" not in names
    back, again = load_model(tmp_path)
    with torch.no_grad():
        torch.testing.assert_close(back(ids), model.eval()(ids).logits, rtol=0, atol=1e-5)
    for text in TEXTS[::20]:
        assert again.encode(text) == ours.encode(text)
    chat = [Turn("user", "hello"), Turn("assistant", "世界")]
    assert render(chat, again) == render(chat, ours)
    for kind in ("hf", "gguf"):
        export_model(tmp_path, tmp_path / kind, kind, None)
    assert (tmp_path / "gguf" / "model.gguf").is_file()
    kept = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    made = kept.apply_chat_template(CHATS["plain"][:3], return_assistant_tokens_mask=True, return_dict=True)
    assert made["input_ids"][0] == ours.bos_id and sum(made["assistant_masks"]) > 1


def test_the_files_are_for_everybody(exported: Path, tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        export_model(exported, tmp_path / "hf", "hf", None)
        export_model(exported, tmp_path, "gguf", None)
    finally:
        os.umask(before)
    written = [*(tmp_path / "hf").iterdir(), tmp_path / "model.gguf", tmp_path / "Modelfile"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in written} == {0o644} and len(written) == 10


@pytest.mark.parametrize("name", ["PreTrainedTokenizerFast", "Qwen2Tokenizer", None])
@pytest.mark.parametrize("kind", ["bytes", None])
def test_a_tokenizer_json_begins_texts_where_the_training_here_did(
    tmp_path: Path, name: str | None, kind: str | None
) -> None:
    """A model that was trained on texts with MiniMind's kind of tokenizer, whose own files put nothing in front."""
    tokenizer = byte_level(tmp_path)
    config = json.loads(tokenizer.files["tokenizer_config.json"]) | {"add_bos_token": False}
    config |= {"chat_template": JINJA, **({"tokenizer_class": name} if name else {})}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    if kind is not None:
        content = json.loads(tokenizer.files["tokenizer.json"])
        content["post_processor"] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
        content["post_processor"]["use_regex"] = True
        (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    tokenizer = Tokenizer.load(tmp_path)
    model = Transformer(ModelConfig.preset("tiny", vocab_size=512, num_hidden_layers=1))
    for trained in (False, True):
        place = tmp_path / f"trained-{trained}"
        save_pretrained(model.state_dict(), model.config, tokenizer, place, Card(trained_on_texts=trained))
        theirs = transformers.AutoTokenizer.from_pretrained(place)
        bos = [tokenizer.bos_id] if trained else []
        assert theirs("hello 你好")["input_ids"] == [*bos, *tokenizer.encode("hello 你好")]
        assert theirs.apply_chat_template([{"role": "user", "content": "hi"}])["input_ids"] == (
            render([Turn("user", "hi")], tokenizer).ids
        )
        assert ("in front, as each text began" in (place / "README.md").read_text()) == trained
        for path in (None, tmp_path):  # the tokenizer beside it, and the one that it was trained with
            assert load_model(place, tokenizer=path)[1].encode("hello") == tokenizer.encode("hello")
    assert (tmp_path / "trained-False" / "tokenizer.json").read_bytes() == tokenizer.files["tokenizer.json"]
