"""Quantized GGUF files: llama.cpp reads them, and the model in them says nearly what it said before."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from minimind.base.errors import UserError
from minimind.interop import gguf_types
from minimind.interop.gguf import save_gguf
from minimind.interop.gguf_types import stored, type_of
from minimind.model.transformer import ModelConfig, Transformer
from minimind.text.tokenizer import Tokenizer, train_tokenizer
from tests.waiting import PATIENCE

gguf = pytest.importorskip("gguf")

WORDS = ["the", "quick", "fox", "jumps", "over", "a", "dog", "hello", "world", "你好", "世界", "学习", "模型"]
TEXTS = [f"{a} {b} {a}{i}，{b} {a}.\n {a} {b}" for i, a in enumerate(WORDS) for b in WORDS]


def test_the_types_are_those_of_llama_quantize() -> None:
    short = {"Q4_K": "4", "Q6_K": "6", "Q5_0": "5", "Q8_0": "8"}

    def kinds(name: str, columns: int = 512) -> str:
        found = (type_of(name.format(layer), (8, columns), "q4_k_m", 8, tied=True) for layer in range(8))
        return "".join(short[kind] for kind in found)

    assert kinds("blk.{}.attn_v.weight") == kinds("blk.{}.ffn_down.weight") == "64464466"
    assert kinds("blk.{}.ffn_down.weight", 1408) == "85585588"  # 1,408 is no multiple of 256
    assert kinds("blk.{}.attn_q.weight") == "44444444"
    assert type_of("token_embd.weight", (8, 512), "q4_k_m", 8, tied=True) == "Q6_K"
    assert type_of("token_embd.weight", (8, 512), "q4_k_m", 8, tied=False) == "Q4_K"
    assert type_of("output.weight", (8, 512), "q4_k_m", 8, tied=False) == "Q6_K"
    assert type_of("blk.0.ffn_up.weight", (8, 48), "q4_k_m", 8, tied=True) == "F16"
    assert type_of("blk.0.ffn_up.weight", (8, 64), "q8_0", 8, tied=True) == "Q8_0"
    assert type_of("blk.0.attn_norm.weight", (64,), "q8_0", 8, tied=True) == "F32"


@pytest.mark.parametrize(("kind", "bits"), [("Q8_0", 8), ("Q6_K", 6), ("Q5_0", 5), ("Q4_K", 4)])
def test_what_is_stored_is_the_weight_but_for_its_last_bits(kind: str, bits: int) -> None:
    if kind.endswith("K"):
        pytest.importorskip("xllamacpp")
    weight = torch.randn(6, 512, generator=torch.Generator().manual_seed(0))
    back = gguf.quants.dequantize(stored("w", weight, kind), gguf.GGMLQuantizationType[kind])
    assert back.shape == (6, 512)
    error = np.abs(back - weight.numpy()).max() / float(weight.abs().max())
    assert 0 < error < 2.0 ** (1 - bits)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Transformer, Tokenizer]:
    """A model that has learned its texts; rows of 256, so that Q4_K is really used."""
    tokenizer = Tokenizer.load(train_tokenizer(TEXTS, tmp_path_factory.mktemp("tokenizer"), 380))
    shape = {"hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    more = {"head_dim": 64, "intermediate_size": 256, "max_position_embeddings": 512, "vocab_size": 380}
    model = Transformer(ModelConfig(**shape, **more), seed=0)
    rows = [[tokenizer.bos_id, *tokenizer.encode(text), tokenizer.eos_id] for text in TEXTS]
    batches = torch.tensor([row[:12] for row in rows])
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step in range(60):
        batch = batches[torch.randperm(len(batches), generator=torch.Generator().manual_seed(step))[:16]]
        logits = model(batch[:, :-1])
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
    model.output_size = 380
    return model.eval(), tokenizer


def ask(file: Path, prompts: list[list[int]]) -> Any:
    """llama.cpp's greedy answers and next tokens after ``prompts``."""
    task = {"model": str(file), "texts": [], "prompts": prompts, "patience": PATIENCE, "chat": [], "probabilities": 380}
    script = [sys.executable, str(Path(__file__).with_name("llama_cpp.py"))]
    done = subprocess.run(script, input=json.dumps(task), capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_llama_cpp_finds_a_quantized_model_nearly_as_good(
    tmp_path: Path, trained: tuple[Transformer, Tokenizer]
) -> None:
    pytest.importorskip("xllamacpp")
    model, tokenizer = trained
    texts = [[tokenizer.bos_id, *tokenizer.encode(text)][:12] for text in TEXTS[5:60:11]]
    cuts = [(ids[:end], ids[end]) for ids in texts for end in range(3, len(ids), 3)]
    losses, sizes, answers = {}, {}, {}
    for dtype in ("f16", "q8_0", "q4_k_m"):
        file = tmp_path / f"{dtype}.gguf"
        save_gguf(model.state_dict(), model.config, tokenizer, file, dtype)
        found = ask(file, [prompt for prompt, _ in cuts])
        losses[dtype] = -sum(dict(top)[right] for top, (_, right) in zip(found["top"], cuts, strict=True)) / len(cuts)
        sizes[dtype], answers[dtype] = file.stat().st_size, found["answers"]
    uniform = math.log(380)
    assert losses["f16"] < uniform / 2  # it has learned something that could be lost
    assert abs(losses["q8_0"] - losses["f16"]) < 0.01 and abs(losses["q4_k_m"] - losses["f16"]) < 0.1, losses
    assert sizes["q4_k_m"] < sizes["q8_0"] < sizes["f16"]
    same = [a[:5] == b[:5] for a, b in zip(answers["f16"], answers["q8_0"], strict=True)]
    assert sum(same) >= 0.7 * len(same)  # near ties turn


def test_without_ggml_the_reason_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.ones(2, 256)
    gguf_types._ggml.cache_clear()
    monkeypatch.setattr(gguf_types.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"q4_k_m needs llama.cpp's own quantization.*pip install xllamacpp"):
        stored("w", weight, "Q4_K")
    (tmp_path / "xllamacpp.so").write_bytes(b"no library")
    there = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(gguf_types.importlib.util, "find_spec", lambda name: there)
    with pytest.raises(UserError, match="gives no quantization to others"):
        stored("w", weight, "Q4_K")
    gguf_types._ggml.cache_clear()
