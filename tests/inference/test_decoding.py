"""The decode step with laid-out weights against the model's own step."""

from __future__ import annotations

import copy

import pytest
import torch

from minimind.base.processor import fbgemm_holds_half, onednn_packs
from minimind.inference import decoding
from minimind.inference.decoding import (
    PAYS_FROM,
    Decoder,
    HeldInHalf,
    Norm,
    Packed,
    decode_step,
    fastest_product,
    half_exponent,
    laid_out,
)
from minimind.inference.generation import Sampling, generate
from minimind.model.transformer import KVCache, ModelConfig, RMSNorm, Transformer

CONFIG = ModelConfig.preset(
    "tiny",
    vocab_size=64,
    hidden_size=32,
    num_hidden_layers=2,
    head_dim=8,
    max_position_embeddings=60,
    initializer_range=0.3,
)
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 4e-2}  # of the largest logit; bf16 keeps 8 bits
needs_fbgemm = pytest.mark.skipif(not fbgemm_holds_half(), reason="FBGEMM holds weights in fp16")
needs_packing = pytest.mark.skipif(not onednn_packs(torch.float32), reason="oneDNN packs the weights")


def started(model: Transformer, rows: int, padded: bool) -> KVCache:
    """A cache with six columns, the first rows' left-padded or not."""
    starts = torch.tensor([3, 0, 1, 5][:rows]) if padded else None
    cache = model.new_cache(rows, 40, starts)
    ids = torch.randint(6, 64, (rows, 6), generator=torch.Generator().manual_seed(0))
    model.next_logits(ids, cache)
    return cache


@torch.inference_mode()
@pytest.mark.parametrize(
    ("dtype", "saved"), [(dtype, dtype) for dtype in TOLERANCE] + [(torch.float32, torch.bfloat16)]
)
@pytest.mark.parametrize(("rows", "padded"), [(1, False), (4, False), (4, True)])
def test_logits_are_those_of_the_models_own_step(
    rows: int, padded: bool, dtype: torch.dtype, saved: torch.dtype
) -> None:
    """With weights that fp16 holds exactly (those once saved in bf16) and with others."""
    model = Transformer(CONFIG, seed=1).to(saved).to(dtype).eval()
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


@torch.inference_mode()
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("missing", [["onednn"], ["fbgemm"], ["onednn", "fbgemm"]])
def test_without_a_library_the_logits_are_the_same(
    missing: list[str], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ "onednn": it packs fp32 only, as on a processor without AVX-512, or nothing."""
    packs = torch.float32 if missing == ["onednn"] else None
    if "onednn" in missing:
        monkeypatch.setattr(decoding, "onednn_packs", lambda dtype: dtype == packs)
    if "fbgemm" in missing:
        monkeypatch.setattr(decoding, "fbgemm_holds_half", lambda: False)
    model = Transformer(CONFIG, seed=1).to(dtype).eval()
    cache = started(model, 2, padded=True)
    other = copy.deepcopy(cache)
    tokens = torch.tensor([7, 8])
    ours, plain = Decoder(model, cache)(tokens).float(), model.next_logits(tokens[:, None], other).float()
    assert (ours - plain).abs().max() < TOLERANCE[dtype] * plain.abs().max()


@pytest.mark.parametrize("saved", [torch.bfloat16, torch.float16])
def test_weights_that_were_rounded_once_fit_into_half_precision(saved: torch.dtype) -> None:
    weight = torch.randn(64, 48, generator=torch.Generator().manual_seed(0)) * 0.05
    weight[0, :8] = 0.05 * 2.0 ** -torch.arange(0, 24, 3)  # far below fp16's least normal number
    assert half_exponent(weight) is None
    rounded = weight.to(saved).float()
    exponent = half_exponent(rounded)
    assert exponent is not None
    shifted = rounded * 2.0**exponent
    assert 2**14 <= shifted.abs().max() < 2**15
    assert torch.equal(shifted.half().float(), shifted)
    assert half_exponent(torch.zeros(3, 3)) == 0
    assert half_exponent(torch.tensor([[1.0, 2.0**-60]])) is None
    assert half_exponent(torch.tensor([[2.0**-140]])) is None
    for broken in (torch.inf, torch.nan):
        assert half_exponent(torch.tensor([[1.0, broken]])) is None


@needs_packing
@needs_fbgemm
@torch.inference_mode()
@pytest.mark.parametrize("rows", [1, 3, 16, 33])
def test_products_round_their_sums_only(rows: int) -> None:
    """Errors against fp64 are those of fp32 sums, whichever form the weights take; rounded weights would show."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 512, generator=generator)
    weight = torch.randn(96, 512, generator=generator) * 0.05
    for w, form in ((weight, Packed), (weight.bfloat16().float(), HeldInHalf)):
        by = fastest_product(w[:32], w[32:])
        assert isinstance(by, form)
        error = (by(x) * by.scale).double() - x.double() @ w.double().t()
        assert (error.abs() <= 16 * 2.0**-24 * (x.abs() @ w.abs().t())).all()
        rounded = x @ (w.half().float() if form is Packed else w.to(torch.float8_e4m3fn).float()).t()
        error = rounded.double() - x.double() @ w.double().t()
        assert not (error.abs() <= 16 * 2.0**-24 * (x.abs() @ w.abs().t())).all()


@torch.inference_mode()
def test_norm_is_the_models() -> None:
    norm = RMSNorm(48, eps=1e-2)
    norm.weight.copy_(torch.rand(48))
    x = torch.randn(3, 48) * torch.tensor([[1.0], [1e-3], [0.0]])
    torch.testing.assert_close(Norm(norm, 0.25)(x), norm(x) * 0.25)


@needs_packing
def test_weights_are_kept_until_one_changes() -> None:
    model = Transformer(CONFIG, seed=1).eval()
    first = laid_out(model)
    assert laid_out(model) is first
    before = list(generate(model, [1, 9, 8], Sampling(PAYS_FROM + 1, temperature=0)))
    other = Transformer(CONFIG, seed=1).eval()
    for changed in (model, other):
        with torch.no_grad():
            changed.model.layers[0].mlp.down_proj.weight.mul_(-1)
    # Stale weights would differ from before as well: the prompt is read by the model itself.
    expected = list(generate(other, [1, 9, 8], Sampling(PAYS_FROM + 1, temperature=0)))
    assert list(generate(model, [1, 9, 8], Sampling(PAYS_FROM + 1, temperature=0))) == expected != before
    model.load_state_dict(Transformer(CONFIG, seed=1).state_dict(), assign=True)
    assert list(generate(model, [1, 9, 8], Sampling(PAYS_FROM + 1, temperature=0))) == before


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
