"""What the tests of commands read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "texts.jsonl"
    lines = [{"text": f"The river {n} runs past the hill. 河水流过小山{n}。"} for n in range(200)]
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")
    return path


@pytest.fixture
def tokenizer(files: dict[str, Path]) -> Path:
    return files["tokenizer"]
