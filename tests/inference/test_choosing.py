"""Choosing tokens: distributions, and rows that know nothing of each other."""

from __future__ import annotations

import random
from collections import Counter

import pytest
import torch
from torch import Tensor

from minimind.base.errors import UserError
from minimind.inference.choosing import Row, _shares, _top_p, choose
from minimind.inference.sampling import Sampling


def drawn(sampling: Sampling, logits: Tensor, seen: Tensor | None = None, count: int = 1) -> list[int]:
    """As often from the same logits."""
    row = Row(sampling, [0], len(logits))
    tokens = []
    for _ in range(count):
        row.seen = None if seen is None else seen.clone()
        tokens += choose([row], logits[None])
    return tokens


def draws(sampling: Sampling, logits: Tensor, seen: Tensor | None = None, count: int = 400) -> Counter[int]:
    return Counter(drawn(sampling, logits, seen, count))


LOGITS = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()


def test_sampling_follows_the_distribution() -> None:
    counts = draws(Sampling(temperature=1.0, top_p=1.0), LOGITS, count=4000)
    for token, probability in enumerate((0.5, 0.3, 0.15, 0.05)):
        assert counts[token] / 4000 == pytest.approx(probability, abs=0.03)


def test_low_temperature_sharpens() -> None:
    counts = draws(Sampling(temperature=0.5, top_p=1.0), LOGITS, count=4000)
    assert counts[0] / 4000 == pytest.approx(0.25 / (0.25 + 0.09 + 0.0225 + 0.0025), abs=0.03)


def test_top_k_and_top_p_cut_the_tail() -> None:
    assert set(draws(Sampling(temperature=1.0, top_p=1.0, top_k=2), LOGITS)) == {0, 1}
    # 0.5 does not reach 0.6, so the next one stays
    assert set(draws(Sampling(temperature=1.0, top_p=0.6), LOGITS)) == {0, 1}
    assert set(draws(Sampling(temperature=1.0, top_p=0.01), LOGITS)) == {0}


def test_of_equally_likely_tokens_top_p_keeps_the_first() -> None:
    assert set(draws(Sampling(temperature=1.0, top_p=0.5), torch.zeros(5))) == {0, 1, 2}
    assert set(draws(Sampling(temperature=1.0, top_p=0.7), torch.tensor([0.0, 0.0, 2.0, 0.0, 0.0]))) == {0, 2}


def test_half_precision_logits_choose_as_their_values_do() -> None:
    logits = torch.randn(64, generator=torch.Generator().manual_seed(0)).bfloat16()
    assert draws(Sampling(), logits, count=50) == draws(Sampling(), logits.float(), count=50)


def test_repetition_penalty_weakens_what_was_seen() -> None:
    seen = torch.tensor([True, False, False, False])
    assert drawn(Sampling(temperature=0, repetition_penalty=3.0), LOGITS, seen) == [1]
    assert drawn(Sampling(temperature=0, repetition_penalty=3.0), LOGITS + 5, seen) == [1]


def test_sampler_agrees_with_transformers() -> None:
    """The same filtered distribution as transformers' processors in the same order."""
    lp = pytest.importorskip("transformers.generation.logits_process")
    logits = torch.randn(1, 50, generator=torch.Generator().manual_seed(0)) * 3
    steps = [lp.TemperatureLogitsWarper(0.7), lp.TopKLogitsWarper(20), lp.TopPLogitsWarper(0.9)]
    theirs = logits
    for step in steps:
        theirs = step(None, theirs)
    sampling = Sampling(temperature=0.7, top_p=0.9, top_k=20)
    shares = _shares([sampling], logits)[0]
    ours = torch.zeros(50)
    kept = _top_p(shares, sampling.top_p)
    ours[kept] = torch.from_numpy(shares[kept])
    torch.testing.assert_close(ours / ours.sum(), theirs.softmax(-1)[0], rtol=1e-5, atol=1e-6)


def test_a_row_chooses_beside_others_as_alone() -> None:
    draw, generator = random.Random(0), torch.Generator().manual_seed(1)
    samplings = [
        Sampling(
            temperature=draw.choice([0, 0.5, 1.3]),
            top_p=draw.choice([0.3, 0.95, 1]),
            top_k=draw.choice([0, 5]),
            seed=seed,
            repetition_penalty=draw.choice([1, 1.3]),
        )
        for seed in range(16)
    ]
    together, alone = ([Row(sampling, [1, 2], 300) for sampling in samplings] for _ in range(2))
    for _ in range(20):
        logits = torch.randn(16, 300, generator=generator) * 3
        assert choose(together, logits) == [choose([row], logits[i : i + 1])[0] for i, row in enumerate(alone)]


@pytest.mark.parametrize("top_p", [1.0, 0.9])
def test_broken_weights_are_said_and_not_sampled_from(top_p: float) -> None:
    logits = torch.zeros(10)
    logits[3] = torch.nan
    with pytest.raises(UserError, match="weights are broken"):
        drawn(Sampling(temperature=1.0, top_p=top_p), logits)
