"""The transformer against transformers.LlamaForCausalLM, and the promises of its docstring."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from minimind.model import attention
from minimind.model import cuda as attention_cuda
from minimind.model.transformer import ModelConfig, Transformer

SMALL = ModelConfig.preset("tiny", vocab_size=64, hidden_size=32, num_hidden_layers=2, head_dim=8)


def ids(batch: int, length: int, vocab: int = 64, seed: int = 0) -> Tensor:
    return torch.randint(0, vocab, (batch, length), generator=torch.Generator().manual_seed(seed))


def lively(config: ModelConfig = SMALL) -> Transformer:
    """A model whose logits are far from uniform, so that differences show (at 0.02 everything is nearly 0)."""
    return Transformer(config.model_copy(update={"initializer_range": 0.3}), seed=1)


def packed(*lengths: int) -> tuple[Tensor, Tensor]:
    """position_ids and document_ids [1, T] of one row of documents."""
    positions = torch.cat([torch.arange(n) for n in lengths])[None]
    documents = torch.cat([torch.full((n,), i) for i, n in enumerate(lengths)])[None]
    return positions, documents


@pytest.mark.parametrize(
    ("preset", "count"),
    [("26m", 25_829_888), ("104m", 104_030_976), ("64m", 63_912_192), ("qwen3-0.6b", 596_049_920)],
)
def test_parameter_counts(preset: str, count: int) -> None:
    config = ModelConfig.preset(preset)
    assert config.num_parameters() == count
    with torch.device("meta"):
        model = Transformer(config, seed=None)
    assert sum(p.numel() for p in model.parameters()) == count


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("preset", ["tiny", "104m"])
def test_logits_equal_transformers(preset: str, tied: bool) -> None:
    transformers = pytest.importorskip("transformers")
    config = ModelConfig.preset(
        preset, vocab_size=300, num_hidden_layers=2, tie_word_embeddings=tied, initializer_range=0.03
    )
    model = Transformer(config, seed=3)
    theirs = transformers.LlamaForCausalLM(transformers.LlamaConfig(**config.model_dump()))
    missing, unexpected = theirs.load_state_dict(model.state_dict(), strict=False)
    assert unexpected == []
    assert missing == (["lm_head.weight"] if tied else [])
    theirs.tie_weights()
    tokens = ids(2, 33, 300)
    with torch.no_grad():
        ours, reference = model(tokens), theirs.eval()(tokens).logits
    assert reference.std() > 0.1
    torch.testing.assert_close(ours, reference, rtol=0, atol=1e-5)


def test_training_gradient_equals_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    model = Transformer(SMALL, seed=3)
    theirs = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL.model_dump()))
    theirs.load_state_dict(model.state_dict(), strict=False)
    tokens = ids(2, 17)
    labels = torch.nn.functional.pad(tokens[:, 1:], (0, 1), value=-100)
    (model(tokens, labels) / 32).backward()  # 2 rows of 16 predictions
    theirs(tokens, labels=tokens).loss.backward()
    reference = dict(theirs.named_parameters())
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, reference[name].grad, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("backend", ["auto", "runs", "mask", "flex"])
def test_packed_document_does_not_feel_its_neighbours(backend: attention.Backend) -> None:
    model, lengths = lively(), (9, 1, 14, 8)
    model.attention_backend = backend
    tokens, (positions, documents) = ids(1, 32), packed(*lengths)
    with torch.no_grad():
        together = model(tokens, None, positions, documents)
        start = 0
        for length in lengths:
            alone = model(tokens[:, start : start + length])
            torch.testing.assert_close(together[:, start : start + length], alone, rtol=0, atol=1e-5)
            start += length
        assert (model(tokens, None, positions) - together).abs().max() > 0.1


def test_backends_agree_in_gradient() -> None:
    tokens, (positions, documents) = ids(2, 24), packed(10, 14)
    positions, documents = positions.expand(2, -1), torch.stack((documents[0], -documents[0]))
    grads = []
    for backend in ("runs", "mask"):
        model = lively()
        model.attention_backend = backend  # type: ignore[assignment]
        model(tokens, tokens, positions, documents).backward()
        grads.append([p.grad for p in model.parameters()])
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_flex_mask_logic_equals_dense_mask() -> None:
    documents = torch.tensor([[0, 0, 1, 1, 1, -1], [0, 1, 1, 2, 2, 2]])
    visible = attention_cuda.document_mask_mod(documents)
    dense = attention.document_mask(documents)
    for row in range(2):
        for query in range(6):
            for key in range(6):
                where = (torch.tensor(x) for x in (row, 0, query, key))
                assert bool(visible(*where)) == bool(dense[row, 0, query, key])


def test_run_lengths_end_with_the_row() -> None:
    documents = torch.tensor([[0, 0, 1, -1], [-1, -1, -1, -1], [3, 0, 0, 0]])
    assert attention.run_lengths(documents) == [2, 1, 1, 4, 1, 3]


def test_padding_changes_nothing_and_is_finite() -> None:
    model, tokens = lively(), ids(1, 10)
    padded = torch.cat((tokens, torch.zeros(1, 6, dtype=torch.long)), 1)
    positions, documents = packed(10, 6)
    documents = documents.where(documents == 0, torch.tensor(-1))
    labels = torch.full_like(padded, -100)
    labels[:, :9] = tokens[:, 1:]
    loss = model(padded, labels, positions, documents)
    alone = model(tokens, torch.nn.functional.pad(tokens[:, 1:], (0, 1), value=-100))
    torch.testing.assert_close(loss, alone, rtol=1e-5, atol=1e-5)


def test_row_without_trainable_tokens_gives_zero_gradients() -> None:
    model = lively()
    loss = model(ids(2, 8), torch.full((2, 8), -100))
    loss.backward()
    assert loss.item() == 0.0
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_follows_fp32(dtype: torch.dtype) -> None:
    model, tokens = Transformer(SMALL, seed=2), ids(2, 16)
    exact = model(tokens, tokens)
    exact.backward()
    truth = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    half = Transformer(SMALL, seed=2).to(dtype)
    loss = half(tokens, tokens)
    loss.backward()
    grads = torch.cat([p.grad.float().flatten() for p in half.parameters() if p.grad is not None])
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, exact, rtol=2e-3, atol=0)
    assert (grads - truth).norm() / truth.norm() < 0.03


@pytest.mark.parametrize(
    ("backend", "dtype"),
    [("runs", torch.float32), ("runs", torch.float16), ("blocks", torch.bfloat16), ("mask", torch.float32)],
)
def test_gradient_checkpointing_changes_nothing(backend: attention.Backend, dtype: torch.dtype) -> None:
    grads = []
    for recompute in (False, True):
        model = lively().to(dtype)
        model.attention_backend, model.gradient_checkpointing = backend, recompute
        model(ids(1, 12), ids(1, 12, seed=1), *packed(5, 7)).backward()
        grads.append([p.grad for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


def test_cast_to_half_keeps_positions_exact() -> None:
    """``module.bfloat16()`` casts buffers as well; there are none to cast."""
    assert list(Transformer(SMALL).buffers()) == []


def test_init_is_deterministic_and_leaves_the_global_state_alone() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first, second = Transformer(SMALL, seed=7), Transformer(SMALL, seed=7)
    assert torch.equal(before, torch.get_rng_state())
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)
    other = Transformer(SMALL, seed=8)
    assert not torch.equal(first.model.embed_tokens.weight, other.model.embed_tokens.weight)


def test_init_statistics() -> None:
    model = Transformer(ModelConfig.preset("tiny"))
    state = model.state_dict()
    assert state["model.embed_tokens.weight"].std().item() == pytest.approx(0.02, rel=0.02)
    assert state["model.layers.0.mlp.up_proj.weight"].std().item() == pytest.approx(0.02, rel=0.03)
    residual = 0.02 / (2 * model.config.num_hidden_layers) ** 0.5
    assert state["model.layers.1.mlp.down_proj.weight"].std().item() == pytest.approx(residual, rel=0.03)
    assert bool((state["model.norm.weight"] == 1).all())


def test_initial_loss_is_that_of_a_uniform_guess() -> None:
    model = Transformer(ModelConfig.preset("tiny"))
    loss = model(ids(2, 64, 6400), ids(2, 64, 6400, seed=1))
    assert loss.item() / 128 == pytest.approx(8.76, abs=0.15)  # ln 6400 = 8.764


def test_flops_per_token() -> None:
    assert Transformer(ModelConfig.preset("26m"), seed=None).flops_per_token(512) == 167_562_240


def test_cache_in_pieces_equals_one_forward() -> None:
    model, tokens = lively(), ids(2, 20)
    with torch.no_grad():
        cache = model.new_cache(2, 20)
        pieces = [model(part, cache=cache) for part in tokens.split([7, 1, 5, 1, 6], dim=1)]
        torch.testing.assert_close(torch.cat(pieces, 1), model(tokens), rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match="holds 20"):
        model(tokens[:, :1], cache=cache)


def test_left_padded_cache_rows_equal_rows_alone() -> None:
    model, long, short = lively(), ids(1, 9), ids(1, 4, seed=1)
    batch = torch.cat((long, torch.nn.functional.pad(short, (5, 0))))
    with torch.no_grad():
        cache = model.new_cache(2, 12, starts=torch.tensor([0, 5]))
        prompt = model(batch, cache=cache)
        next_token = model(ids(2, 1, seed=2), cache=cache)
        torch.testing.assert_close(prompt[1:, 5:], model(short), rtol=0, atol=1e-5)
        alone = model(torch.cat((short, ids(2, 1, seed=2)[1:]), 1))[:, -1:]
        torch.testing.assert_close(next_token[1:], alone, rtol=0, atol=1e-5)
