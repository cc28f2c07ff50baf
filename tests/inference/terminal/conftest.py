"""One tokenizer for the tests of the terminal."""

import pytest

from minimind.text.tokenizer import Tokenizer, train_tokenizer


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    texts = [f"The river {n} runs past the hill. 河水流过小山{n}。" for n in range(200)]
    return Tokenizer.load(train_tokenizer(texts, tmp_path_factory.mktemp("tokenizer"), vocab_size=320))
