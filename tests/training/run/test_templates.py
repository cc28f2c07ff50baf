"""Two phases on what a newcomer has: own files without a tokenizer, and another's model with its chat template."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import minimind
from minimind.base.errors import UserError
from minimind.config.model import ModelConfig
from minimind.data.store.store import TokenStore
from minimind.inference.sampling import Sampling
from minimind.inference.terminal.chat import chat_loop
from minimind.interop.huggingface import save_pretrained
from minimind.model.transformer import Transformer
from minimind.text.tokenizer import FILE_NAME, Tokenizer
from minimind.training.run.arguments import parse
from minimind.training.run.main import run
from tests.support import DS_CONFIGS
from tests.text.templates import TEMPLATES, write_tokenizer

SHAPE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
SMALL = ["--set", "max_seq_length=64", "--set", "logging_steps=1", "--max-steps", "3"]


@pytest.fixture(autouse=True)
def _one_rank_with_its_signals(one_rank: None) -> Iterator[None]:
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


def launch(kind: str, out: Path, *more: str) -> int:
    words = ["--deepspeed_config", str(DS_CONFIGS / "fp32.json"), "--output-dir", str(out), *SMALL, *more]
    return run(kind, parse(kind, words))  # type: ignore[arg-type]


@pytest.fixture
def own(tmp_path: Path) -> dict[str, Path]:
    """Texts and conversations of one's own."""
    texts, talks = tmp_path / "texts.jsonl", tmp_path / "talks.jsonl"
    said = [f"the {a} fox ran {b} times, 你好 {a}{b}" for a in "abcdef" for b in range(20)]
    texts.write_text("".join(json.dumps({"text": text}) + "\n" for text in said))
    rows = [
        [{"role": "user", "content": text[:20]}, {"role": "assistant", "content": text[8:], "reasoning_content": "so"}]
        for text in said
    ]
    talks.write_text("".join(json.dumps({"conversations": row}) + "\n" for row in rows))
    return {"texts": texts, "talks": talks}


def test_own_files_need_no_tokenizer(own: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = ["--set", f"model={json.dumps({**SHAPE, 'vocab_size': 300, 'head_dim': 8, 'intermediate_size': 64})}"]
    words = [*model, "--train-file", str(own["texts"])]
    with pytest.raises(UserError, match="no tokenizer: make one with `minimind train-tokenizer"):
        launch("pretrain", tmp_path / "asked", *words, "--tokenizer", "none")
    assert launch("pretrain", tmp_path / "base", *words) == 0
    shown = capsys.readouterr()
    assert "a tokenizer of 300 pieces trained on it" in " ".join(shown.out.split())
    assert "no --tokenizer: one of 300 pieces is being trained" in shown.err
    kept = Tokenizer.load(tmp_path / "base" / FILE_NAME)
    assert kept.vocab_size == 300 and kept.files == Tokenizer.load(tmp_path / "base" / "final" / FILE_NAME).files
    assert launch("pretrain", tmp_path / "base", *words, "--resume") == 0  # the same tokenizer, from the cache
    assert "is being trained" not in capsys.readouterr().err
    assert launch("sft", tmp_path / "chat", "--model", str(tmp_path / "base"), "--train-file", str(own["talks"])) == 0
    assert isinstance(minimind.load(tmp_path / "chat").chat("the", max_new_tokens=3), str)


def test_sft_of_another_model_is_in_its_own_template(own: dict[str, Path], tmp_path: Path) -> None:
    """Trained as its template writes, said so by the store, stopped where it stops, and handed on unchanged."""
    given = tmp_path / "given"
    tokenizer = Tokenizer.load(write_tokenizer(tmp_path / "tokenizer", TEMPLATES["thinking"]))
    shape = ModelConfig(**SHAPE, model_type="qwen3", head_dim=12, vocab_size=tokenizer.vocab_size)
    save_pretrained(Transformer(shape, seed=3).state_dict(), shape, tokenizer, given)

    words = ["--model", str(given), "--train-file", str(own["talks"]), "--eval-file", str(own["talks"])]
    assert launch("sft", tmp_path / "run", *words) == 0
    header = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[0])
    store = TokenStore.open(Path(header["store"]))
    assert store.manifest["chat_template"] == tokenizer.template_hash
    document = store.tokens[: store.offsets[1]]
    assert tokenizer.decode(np.asarray(document).tolist(), with_special=True) == (
        "<|im_start|>user\nthe a fox ran 0 time<|im_end|>\n"
        "<|im_start|>assistant\n<think>\nso\n</think>\n\nx ran 0 times, 你好 a0<|im_end|>\n"
    )
    final = tmp_path / "run" / "final"
    assert (final / "chat_template.jinja").read_text() == TEMPLATES["thinking"]
    assert json.loads((final / "generation_config.json").read_text())["eos_token_id"] == [tokenizer.im_end_id]
    model = minimind.load(tmp_path / "run")
    assert model.tokenizer.stop_ids == [tokenizer.im_end_id]
    assert isinstance(model.chat([{"role": "system", "content": "s"}, {"role": "user", "content": "hi"}]), str)

    questions = iter(["hello", "/exit"])
    chat_loop(final, None, Sampling(3), ask=lambda _: next(questions))
    rewriting = write_tokenizer(tmp_path / "other", TEMPLATES["rewriting"])
    assert launch("sft", tmp_path / "again", *words, "--tokenizer", str(rewriting)) == 0
    again = json.loads((tmp_path / "again" / "metrics.jsonl").read_text().splitlines()[0])
    assert again["store"] != header["store"]  # the same ids, another template


def test_a_template_that_cannot_be_proven_ends_the_run_before_it_begins(own: dict[str, Path], tmp_path: Path) -> None:
    broken = write_tokenizer(tmp_path / "given", "{{ messages[0].content }}")
    tokenizer = Tokenizer.load(broken)
    shape = ModelConfig(**SHAPE, vocab_size=tokenizer.vocab_size)
    save_pretrained(Transformer(shape, seed=3).state_dict(), shape, tokenizer, tmp_path / "model")
    with pytest.raises(UserError, match="its chat template can't be used: it leaves out a plain question"):
        launch("sft", tmp_path / "run", "--model", str(tmp_path / "model"), "--train-file", str(own["talks"]))
