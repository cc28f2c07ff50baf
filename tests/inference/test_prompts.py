"""Prompts read as one packed row against the same prompts read with padding."""

from __future__ import annotations

import pytest
import torch

from minimind.inference.prompts import PackedPrompts, read_prompts
from minimind.model.transformer import ModelConfig, Transformer

CONFIG = ModelConfig.preset(
    "tiny", vocab_size=64, hidden_size=32, num_hidden_layers=2, head_dim=8, initializer_range=0.3
)
PROMPTS = [[1, 9, 8, 7, 30], [1], [1, 5, 40], list(range(20))]


@pytest.fixture(scope="module")
def model() -> Transformer:
    model = Transformer(CONFIG, seed=1).eval()
    model.output_size = 50
    return model


@torch.inference_mode()
def test_packed_prompts_fill_the_cache_as_padded_ones_do(model: Transformer) -> None:
    logits, cache = read_prompts(model, PROMPTS, capacity=30)
    starts = torch.tensor([20 - len(prompt) for prompt in PROMPTS])
    padded = model.new_cache(4, 30, starts)
    ids = torch.tensor([[0] * (20 - len(prompt)) + prompt for prompt in PROMPTS])
    expected = model.next_logits(ids, padded)
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-5)
    assert cache.length == padded.length == 20
    for ours, theirs in ((cache.keys, padded.keys), (cache.values, padded.values)):
        for layer in range(2):
            for row, start in enumerate(starts.tolist()):
                torch.testing.assert_close(ours[layer][row, start:], theirs[layer][row, start:])


@torch.inference_mode()
def test_no_padding_is_computed(model: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[int] = []
    original = model.hidden_states
    monkeypatch.setattr(
        model, "hidden_states", lambda ids, cache: computed.append(ids.numel()) or original(ids, cache=cache)
    )
    _, cache = read_prompts(model, PROMPTS, capacity=30)
    assert computed == [sum(map(len, PROMPTS))]
    assert not isinstance(cache, PackedPrompts)
    read_prompts(model, [[1, 2, 3], [4, 5, 6]], capacity=30)
    assert computed[1:] == [6]
