"""The decode step with laid-out weights against the model's own step."""

from __future__ import annotations

import copy

import pytest
import torch

from minimind.inference import decoding
from minimind.inference.decoding import PAYS_FROM, Decoder, decode_step, laid_out
from minimind.inference.generation import generate
from minimind.model import KVCache, ModelConfig, Transformer

CONFIG = ModelConfig.preset(
    "tiny", vocab_size=64, hidden_size=32, num_hidden_layers=2, head_dim=8,
    max_position_embeddings=60, initializer_range=0.3,
)  # fmt: skip
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 4e-2}  # of the largest logit; bf16 keeps 8 bits
needs_packing = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="oneDNN packs the weights"
)


def started(model: Transformer, rows: int, padded: bool) -> KVCache:
    """A cache with six columns, the first rows' left-padded or not."""
    starts = torch.tensor([3, 0, 1, 5][:rows]) if padded else None
    cache = model.new_cache(rows, 40, starts)
    ids = torch.randint(6, 64, (rows, 6), generator=torch.Generator().manual_seed(0))
    model.next_logits(ids, cache)
    return cache


@needs_packing
@torch.inference_mode()
@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize(("rows", "padded"), [(1, False), (4, False), (4, True)])
def test_logits_are_those_of_the_models_own_step(rows: int, padded: bool, dtype: torch.dtype) -> None:
    model = Transformer(CONFIG, seed=1).to(dtype).eval()
    model.output_size = 50
    cache = started(model, rows, padded)
    other = copy.deepcopy(cache)
    decoder = Decoder(model, cache)
    generator = torch.Generator().manual_seed(1)
    for _ in range(4):
        tokens = torch.randint(6, 50, (rows,), generator=generator)
        ours, plain = decoder(tokens).float(), model.next_logits(tokens[:, None], other).float()
        assert ours.shape == plain.shape == (rows, 50)
        assert (ours - plain).abs().max() < TOLERANCE[dtype] * plain.abs().max()
    assert cache.length == other.length


@needs_packing
def test_weights_are_kept_until_one_changes() -> None:
    model = Transformer(CONFIG, seed=1).eval()
    first = laid_out(model)
    assert laid_out(model) is first
    before = list(generate(model, [1, 9, 8], 30, temperature=0))
    with torch.no_grad():
        model.model.layers[0].mlp.down_proj.weight.mul_(-1)
    changed = list(generate(model, [1, 9, 8], 30, temperature=0))
    assert changed != before
    model.load_state_dict(Transformer(CONFIG, seed=1).state_dict(), assign=True)
    assert list(generate(model, [1, 9, 8], 30, temperature=0)) == before


def test_laid_out_weights_go_with_their_model() -> None:
    model = Transformer(CONFIG, seed=1).eval()
    kept = len(decoding._KEPT)
    laid_out(model)
    assert len(decoding._KEPT) == kept + 1
    del model
    assert len(decoding._KEPT) == kept


def test_short_answers_and_emulated_precisions_take_the_models_own_step() -> None:
    model = Transformer(CONFIG, seed=1).eval()
    assert not isinstance(decode_step(model, model.new_cache(1, 9), PAYS_FROM - 1), Decoder)
    half = model.to(torch.float16)
    if not decoding.cpu_has_fast(torch.float16):
        assert not isinstance(decode_step(half, half.new_cache(1, 9), PAYS_FROM), Decoder)
