"""Shared by all tests: their order, their one time limit, a cache of their own and a tiny corpus."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from tests.waiting import PATIENCE

pytest_plugins = ["tests.order"]

# A busy machine may take any time for an example.
hypothesis.settings.register_profile("patient", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("patient")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if config.option.timeout is None:  # pytest-timeout reads it next
        config.option.timeout = PATIENCE


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINIMIND_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tiny corpus: ``pretrain`` text, ``sft`` conversations and a ``tokenizer`` of 400 pieces."""
    directory = tmp_path_factory.mktemp("corpus")
    words = ["river", "stone", "little", "house", "walks", "到", "山上", "小猫", "看见", "朋友", "sings", "bright"]
    draw = random.Random(0)
    texts = [" ".join(draw.choices(words, k=draw.randint(3, 60))) for _ in range(120)]
    talks = [
        {"conversations": [{"role": "user", "content": f"{a} {b}"}, {"role": "assistant", "content": f"{b} {a}"}]}
        for a, b in (draw.sample(words, 2) for _ in range(80))
    ]
    paths = {"pretrain": directory / "text.jsonl", "sft": directory / "talk.jsonl"}
    rows = {"pretrain": [{"text": text} for text in texts], "sft": talks}
    for kind, path in paths.items():
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows[kind]), encoding="utf-8")
    from minimind.text.tokenizer import train_tokenizer

    return {**paths, "tokenizer": train_tokenizer(texts, directory / "tokenizer", 330)}


@pytest.fixture(scope="session")
def one_rank() -> None:
    """One process group for all tests of a worker that use real DeepSpeed on one rank."""
    from minimind.training.engine.engine import start_processes
    from tests.support import spare_deepspeed

    start_processes(emulate_fp16=True)
    spare_deepspeed()
