"""The model card of an export: what is known and nothing else, and whose file it is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from minimind.commands.facts import card_of
from minimind.commands.models import export_model
from minimind.interop.huggingface import save_pretrained
from minimind.interop.model_card import MARK, Card, render
from minimind.model.transformer import ModelConfig, Transformer
from minimind.text.tokenizer import Tokenizer, train_tokenizer
from minimind.training.record.file import to_line

CONFIG = ModelConfig.preset("tiny", vocab_size=320, num_hidden_layers=2)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    texts = [f"The river {n} runs past the hill. 河水流过小山{n}。" for n in range(200)]
    return Tokenizer.load(train_tokenizer(texts, tmp_path_factory.mktemp("tokenizer"), 320))


def front_of(text: str) -> dict[str, object]:
    found = yaml.safe_load(text.split("---\n")[1])
    assert isinstance(found, dict)
    return found


def run(directory: Path, tokenizer: Tokenizer) -> Path:
    """A run's directory with its final model."""
    save_pretrained(Transformer(CONFIG).state_dict(), CONFIG, tokenizer, directory / "final")
    text = "train_file: [/home/someone/secret/news.jsonl, 'a`|<script>.txt']\nmodel_name_or_path: /home/x/base-model\n"
    (directory / "config.yaml").write_text(text)
    lines = [
        {"kind": "run", "version": 1, "task": "pretrain"},
        {"kind": "eval", "step": 40, "loss": 9.0, "bits_per_byte": 9.0},
        {"kind": "eval", "step": 50, "loss": 1.25, "bits_per_byte": 0.5},
        {"kind": "end", "step": 50, "reason": "finished", "seconds": 1.0},
    ]
    (directory / "metrics.jsonl").write_bytes(b"".join(to_line(line) for line in lines))
    return directory


def test_what_a_run_knows_is_told_and_no_path(tmp_path: Path, tokenizer: Tokenizer) -> None:
    export_model(run(tmp_path / "my-run", tokenizer), tmp_path / "out", "hf", None, licence="apache-2.0")
    text = (tmp_path / "out" / "README.md").read_text()
    assert front_of(text)["license"] == "apache-2.0" and front_of(text)["library_name"] == "transformers"
    assert "# my-run\n" in text and f"{CONFIG.num_parameters():,} parameters" in text and "float32" in text
    assert "- `news.jsonl`\n- `ascript.txt`" in text and "goes on from `base-model`" in text and "/home" not in text
    assert "| held-out loss | 1.2500 nats a token |" in text and "| step | 50 |" in text
    assert "`<|bos|>` in front, as each text began in training" in text


def test_what_nobody_knows_is_not_told(tmp_path: Path, tokenizer: Tokenizer) -> None:
    text = render(Card(), CONFIG, "float32", tokenizer, adds_bos=True)
    assert front_of(text)["license"] == "unknown" and "Not stated" in text
    assert "not recorded" in text and "## Numbers" not in text
    directory = run(tmp_path / "run", tokenizer)
    (directory / "config.yaml").write_text("train_file: [")
    damaged = card_of(directory, None)
    assert (damaged.name, damaged.sources, damaged.trained_on_texts) == ("run", None, True)
    (directory / "config.yaml").write_text("seed: 1\n")
    (directory / "metrics.jsonl").unlink()
    assert card_of(directory / "final", None).numbers == {} and card_of(directory, None).name == "run"
    assert "built-in corpus" in str(card_of(directory, None).sources)


def test_a_readme_of_somebody_else_stays(tmp_path: Path, tokenizer: Tokenizer) -> None:
    state = Transformer(CONFIG).state_dict()
    save_pretrained(state, CONFIG, tokenizer, tmp_path, Card("first"))
    save_pretrained(state, CONFIG, tokenizer, tmp_path, Card("second"))
    text = (tmp_path / "README.md").read_text()
    assert "# second" in text and text.count(MARK) == 1
    edited = text.replace(MARK, "").replace("second", "mine")
    (tmp_path / "README.md").write_text(edited)
    save_pretrained(state, CONFIG, tokenizer, tmp_path, Card("third"))
    assert (tmp_path / "README.md").read_text() == edited


def test_the_card_s_own_program_runs(tmp_path: Path, tokenizer: Tokenizer) -> None:
    pytest.importorskip("transformers")
    save_pretrained(Transformer(CONFIG).state_dict(), CONFIG, tokenizer, tmp_path)
    program = re.findall(r"```python\n(.*?)```", (tmp_path / "README.md").read_text(), re.DOTALL)[0]
    exec(program.replace("DIRECTORY", str(tmp_path)).replace("=200", "=4"), {})
