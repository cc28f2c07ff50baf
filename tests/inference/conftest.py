"""A tiny random model and its tokenizer, and a server that speaks for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from minimind.model.transformer import ModelConfig, Transformer
from minimind.text.tokenizer import Tokenizer, train_tokenizer

if TYPE_CHECKING:
    from tests.inference.running import Running


@pytest.fixture(scope="module")
def model() -> Transformer:
    config = ModelConfig.preset(
        "tiny",
        vocab_size=330,
        hidden_size=32,
        num_hidden_layers=2,
        head_dim=8,
        max_position_embeddings=100,
        initializer_range=0.3,
    )
    return Transformer(config, seed=1).eval()


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    texts = [f"The river {n} runs past the hill. 河水流过小山{n}。" for n in range(200)]
    return Tokenizer.load(train_tokenizer(texts, tmp_path_factory.mktemp("tokenizer"), vocab_size=330))


@pytest.fixture(scope="module")
def api(model: Transformer, tokenizer: Tokenizer) -> Iterator[Running]:
    pytest.importorskip("starlette")
    from tests.inference.running import Running

    model.output_size = tokenizer.vocab_size
    running = Running(model, tokenizer)
    yield running
    running.close()
