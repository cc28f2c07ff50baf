"""A small tokenizer that the tests of checking and preparing share."""

from __future__ import annotations

import random

import pytest

from minimind.text.tokenizer import Tokenizer, train_tokenizer
from tests.support import WORDS


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    draw = random.Random(0)
    texts = [" ".join(draw.choices(WORDS, k=30)) for _ in range(200)]
    return Tokenizer.load(train_tokenizer(texts, tmp_path_factory.mktemp("tokenizer"), vocab_size=330))
