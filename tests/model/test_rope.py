"""Stretched rotary positions against transformers' own frequencies."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pydantic import ValidationError

from minimind.config.model import ModelConfig
from minimind.model.ops import rope_tables
from minimind.model.rope import attention_factor, inverse_frequencies

YARN = {"rope_type": "yarn", "factor": 16.0}
SCALINGS: list[dict[str, Any]] = [
    {"rope_type": "linear", "factor": 4.0},
    {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 256,
    },
    {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 2.0},
    YARN,
    YARN | {"original_max_position_embeddings": 128, "beta_fast": 16, "beta_slow": 2},
    YARN | {"attention_factor": 0.7, "truncate": False, "original_max_position_embeddings": 64},
    YARN | {"mscale": 0.8, "mscale_all_dim": 1.2},
    YARN | {"mscale": 0.8},
    YARN | {"factor": 1.0},
]


@pytest.mark.parametrize("scaling", SCALINGS, ids=lambda scaling: "-".join(map(str, scaling.values())))
@pytest.mark.parametrize("head_dim", [16, 64])
def test_frequencies_equal_transformers(scaling: dict[str, Any], head_dim: int) -> None:
    transformers = pytest.importorskip("transformers")
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    shape = {"hidden_size": 4 * head_dim, "num_attention_heads": 4, "max_position_embeddings": 1024}
    theirs = transformers.LlamaConfig(**shape, rope_theta=1e4, rope_scaling=dict(scaling))
    expected, factor = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](theirs)
    ours = ModelConfig(**shape, rope_scaling=scaling).rope_scaling
    assert ours is not None
    torch.testing.assert_close(inverse_frequencies(head_dim, 1e4, ours), expected, rtol=1e-6, atol=0)
    assert attention_factor(ours) == pytest.approx(factor)
    cos, sin = rope_tables(torch.tensor([[0, 7]]), head_dim, 1e4, ours)
    assert cos[0, 0, 0, 0] == pytest.approx(factor)
    torch.testing.assert_close(sin[0, 1, 0, head_dim // 2 :], (7 * expected).sin() * factor)


@pytest.mark.parametrize(
    ("scaling", "words"),
    [
        ({"rope_type": "dynamic", "factor": 2}, "linear"),
        ({"rope_type": "linear"}, "factor"),
        ({"rope_type": "linear", "factor": 0}, "factor"),
        ({"rope_type": "linear", "factor": 2, "beta_fast": 3}, "linear has no beta_fast"),
        ({"rope_type": "llama3", "factor": 2, "low_freq_factor": 1}, "llama3 needs high_freq_factor"),
        ({"rope_type": "llama3", "factor": 2, "low_freq_factor": 1, "high_freq_factor": 1}, "must differ"),
    ],
)
def test_a_scaling_that_makes_no_sense_is_refused(scaling: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        ModelConfig(rope_scaling=scaling)


def test_what_is_written_of_a_plain_llama_is_what_older_runs_wrote() -> None:
    assert {"model_type", "rope_scaling"}.isdisjoint(ModelConfig().model_dump())
    assert ModelConfig(rope_scaling={"type": "default"}) == ModelConfig()
    stretched = ModelConfig(rope_scaling={"type": "linear", "factor": 2})
    assert stretched.model_dump()["rope_scaling"] == {"rope_type": "linear", "factor": 2.0}
    assert ModelConfig(**stretched.model_dump()) == stretched
