"""A file of prompts to a file of answers, by a real tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from minimind.base.errors import UserError
from minimind.inference.generation import generate
from minimind.inference.sampling import Sampling
from minimind.inference.terminal import files
from minimind.inference.terminal.files import answer_file
from minimind.interop.huggingface import save_pretrained
from minimind.model.transformer import ModelConfig, Transformer
from minimind.text.chat import Turn, prompt_ids
from minimind.text.tokenizer import Tokenizer

GREEDY = Sampling(8, temperature=0.0)
TEXTS = ["The river", "河水流过小山", "past the hill. The river 7 runs", "x"]


@pytest.fixture(scope="module")
def model(tokenizer: Tokenizer) -> Transformer:
    config = ModelConfig.preset(
        "tiny",
        vocab_size=320,
        hidden_size=32,
        num_hidden_layers=2,
        head_dim=8,
        max_position_embeddings=100,
        initializer_range=0.3,
    )
    return Transformer(config, seed=1).eval()


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, model: Transformer, tokenizer: Tokenizer) -> Path:
    directory = tmp_path_factory.mktemp("saved") / "model"
    save_pretrained(model.state_dict(), model.config, tokenizer, directory)
    return directory


def alone(model: Transformer, tokenizer: Tokenizer, prompt: list[int]) -> str:
    return tokenizer.decode(generate(model, prompt, GREEDY, stop_ids=(tokenizer.im_end_id, tokenizer.eos_id)))


@pytest.mark.parametrize("chat", [False, True])
def test_each_line_gets_the_answer_that_it_gets_alone(
    chat: bool, saved: Path, model: Transformer, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "ROWS", 3)  # several batches, in another order than the file's
    prompts, output = tmp_path / "prompts.txt", tmp_path / "answers.txt"
    prompts.write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    assert answer_file(saved, prompts, output, GREEDY, chat=chat) == len(TEXTS)
    ids = [
        prompt_ids([Turn("user", text)], tokenizer) if chat else [tokenizer.bos_id, *tokenizer.encode(text)]
        for text in TEXTS
    ]
    expected = [alone(model, tokenizer, prompt).replace("\\", "\\\\").replace("\n", "\\n") for prompt in ids]
    assert output.read_text(encoding="utf-8").split("\n")[:-1] == expected


def test_records_come_back_with_their_answers(
    saved: Path, model: Transformer, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    prompts, output = tmp_path / "prompts.jsonl", tmp_path / "answers.jsonl"
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "河水"}]
    records: list[dict[str, object]] = [{"id": 7, "prompt": "The river"}, {"messages": messages}]
    prompts.write_text("".join(json.dumps(record) + "\n" for record in records))
    answer_file(saved, prompts, output, GREEDY)
    first, second = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    assert first == {**records[0], "answer": alone(model, tokenizer, [1, *tokenizer.encode("The river")])}
    asked = prompt_ids([Turn("system", "s"), Turn("user", "河水")], tokenizer)
    assert second == {**records[1], "answer": alone(model, tokenizer, asked)}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("p.txt", "", "no prompt in it"),
        ("p.txt", "one\n\ntwo\n", ":2: the prompt is empty"),
        ("p.txt", "one\n" + "The river " * 100, ":2: has "),
        ("p.jsonl", '{"prompt": "a"}\n{"text": "b"}\n', ":2: expected"),
        ("p.jsonl", '{"prompt": 3}\n', ':1: "prompt" is no text'),
        ("p.jsonl", "one\n", ":1: not JSON"),
        ("p.jsonl", '{"messages": [{"role": "wizard", "content": "x"}]}\n', ":1: turn 1: unknown role"),
        ("p.jsonl", '{"messages": [{"role": "assistant", "content": "x"}]}\n', ":1: the messages end with an answer"),
        ("p.jsonl", '{"prompt": "\\ud800"}\n', ":1: "),
    ],
)
def test_a_bad_prompt_is_named_before_anything_is_written(
    name: str, content: str, message: str, saved: Path, tmp_path: Path
) -> None:
    prompts, output = tmp_path / name, tmp_path / "answers.jsonl"
    prompts.write_text(content)
    output.write_text("earlier")
    with pytest.raises(UserError) as raised:
        answer_file(saved, prompts, output, GREEDY)
    assert str(raised.value).startswith(f"{prompts}:") and message in str(raised.value)
    assert output.read_text() == "earlier"


def test_files_that_are_not_there(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="can't be read"):
        answer_file(saved, tmp_path / "none.txt", tmp_path / "a.txt", GREEDY)
    (tmp_path / "p.txt").write_text("one\n")
    with pytest.raises(UserError, match="can't be written"):
        answer_file(saved, tmp_path / "p.txt", tmp_path / "none" / "a.txt", GREEDY)
