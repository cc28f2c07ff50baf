"""Generation: the cache changes nothing, seeds decide, rows of a batch are independent."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from minimind.base.errors import UserError
from minimind.inference.generation import Sampling, generate, generate_batch, load_model
from minimind.interop.huggingface import save_pretrained
from minimind.model.transformer import KVCache, ModelConfig, Transformer
from minimind.text.tokenizer import Tokenizer

CONFIG = ModelConfig.preset(
    "tiny",
    vocab_size=64,
    hidden_size=32,
    num_hidden_layers=2,
    head_dim=8,
    max_position_embeddings=60,
    initializer_range=0.3,
)
PROMPT = [1, 9, 8, 7, 30]
PROMPTS = [PROMPT, [1], [1, 5, 40], list(range(20))]


@pytest.fixture(scope="module")
def model() -> Transformer:
    return Transformer(CONFIG, seed=1).eval()


def uncached(model: Transformer, prompt: list[int], count: int) -> list[int]:
    """Greedy, everything recomputed for each token."""
    ids = list(prompt)
    with torch.no_grad():
        for _ in range(count):
            ids.append(int(model(torch.tensor([ids]))[0, -1].argmax()))
    return ids[len(prompt) :]


def test_greedy_with_cache_equals_without(model: Transformer) -> None:
    answer = list(generate(model, PROMPT, Sampling(40, temperature=0)))
    assert answer == uncached(model, PROMPT, 40)
    assert len(set(answer)) > 3


def test_greedy_batch_equals_each_alone(model: Transformer) -> None:
    assert generate_batch(model, PROMPTS, Sampling(20, temperature=0)) == [uncached(model, p, 20) for p in PROMPTS]


def test_sampled_row_equals_the_prompt_alone(model: Transformer) -> None:
    rows = generate_batch(model, PROMPTS, Sampling(20, seed=7, top_k=20, repetition_penalty=1.3))
    for i, prompt in enumerate(PROMPTS):
        assert rows[i] == list(generate(model, prompt, Sampling(20, seed=7 + i, top_k=20, repetition_penalty=1.3)))


def test_stop_ids_end_the_answer_and_are_not_in_it(model: Transformer) -> None:
    whole = uncached(model, PROMPT, 20)
    stop = whole[6]
    expected = whole[: whole.index(stop)]
    assert list(generate(model, PROMPT, Sampling(20, temperature=0), stop_ids=[stop])) == expected
    batch = generate_batch(model, [PROMPT, PROMPTS[3]], Sampling(20, temperature=0), stop_ids=[stop])
    assert batch[0] == expected
    other = uncached(model, PROMPTS[3], 20)
    assert batch[1] == (other[: other.index(stop)] if stop in other else other)


def test_no_new_tokens_are_empty_answers(model: Transformer) -> None:
    assert generate_batch(model, PROMPTS, Sampling(0)) == [[]] * len(PROMPTS)
    assert list(generate(model, PROMPT, Sampling(0))) == []


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rows_that_have_ended_leave_the_batch(
    model: Transformer, monkeypatch: pytest.MonkeyPatch, temperature: float
) -> None:
    """Each answer is the prompt's own cut at its stop, however many rows are left around it."""
    prompts = [[1, 5, 9 + i] + [7] * (i % 3) for i in range(6)]
    alone = [list(generate(model, p, Sampling(40, temperature=temperature, seed=i))) for i, p in enumerate(prompts)]
    stops = {alone[0][3], alone[1][5], alone[2][20], alone[4][12]}
    cut = [next((n for n, token in enumerate(answer) if token in stops), 40) for answer in alone]
    kept: list[int] = []
    original = KVCache.keep
    monkeypatch.setattr(KVCache, "keep", lambda cache, rows: kept.append(len(rows)) or original(cache, rows))
    answers = generate_batch(model, prompts, Sampling(40, temperature=temperature), stop_ids=stops)
    assert answers == [answer[:n] for answer, n in zip(alone, cut, strict=True)]
    assert kept and kept[0] <= 3 and len(set(cut)) > 2


def test_seed_decides_and_the_global_state_is_left_alone(model: Transformer) -> None:
    before = torch.get_rng_state()
    first, again, other = (list(generate(model, PROMPT, Sampling(30, temperature=1.0, seed=s))) for s in (3, 3, 4))
    assert first == again != other
    assert torch.equal(before, torch.get_rng_state())


def test_streams_one_token_at_a_time(model: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    original = model.next_logits

    def spy(ids: Tensor, cache: object) -> Tensor:
        calls.append(ids.shape[1])
        return original(ids, cache)  # type: ignore[arg-type]

    monkeypatch.setattr(model, "next_logits", spy)
    stream = generate(model, PROMPT, Sampling(10, temperature=0))
    assert calls == []
    next(stream)
    assert calls == [5]
    next(stream)
    assert calls == [5, 1]
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()


def test_ends_at_the_last_position(model: Transformer) -> None:
    assert len(list(generate(model, PROMPT, Sampling(1000, temperature=0)))) == 55


@pytest.mark.parametrize(("prompt", "words"), [([], "empty"), ([1] * 60, "60 tokens")])
def test_impossible_prompts_are_refused_at_once(model: Transformer, prompt: list[int], words: str) -> None:
    with pytest.raises(UserError, match=words):
        generate(model, prompt)
    with pytest.raises(UserError, match=words):
        generate_batch(model, [prompt])


@pytest.mark.parametrize(
    ("temperature", "penalty"), [(0.0, 1.0), (2.0, 1.0), (1.0, 1.3)], ids=["greedy", "hot", "penalised"]
)
def test_ids_beyond_the_tokenizer_are_never_generated(
    temperature: float, penalty: float, files: dict[str, Path], tmp_path: Path
) -> None:
    """A vocabulary larger than the tokenizer is allowed; its untrained rows must not come out."""
    tokenizer = Tokenizer.load(files["tokenizer"])
    config = ModelConfig.preset("tiny", vocab_size=tokenizer.vocab_size + 70)
    trained = Transformer(config)
    with torch.no_grad():
        trained.model.embed_tokens.weight[tokenizer.vocab_size :] *= 50  # far likelier than any real piece
    save_pretrained(trained.state_dict(), config, tokenizer, tmp_path)
    loaded, _ = load_model(tmp_path)
    options = {"temperature": temperature, "repetition_penalty": penalty}
    single = list(generate(loaded, [1, 5, 9], Sampling(30, **options)))
    (batched,) = generate_batch(loaded, [[1, 5, 9]], Sampling(30, **options))
    assert len(single) == len(batched) == 30
    assert max(single + batched) < tokenizer.vocab_size
