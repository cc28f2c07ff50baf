"""The shape of a model: ``ModelConfig`` and its presets, without torch.

Field names and meanings are those of Hugging Face ``LlamaConfig``, so that export and import copy them
unchanged. Kept apart from ``model.py`` so that configuration, ``plan`` and ``--help`` never pay for importing
torch. Weakness: only shapes that ``model.py`` can build are accepted (no biases, no dropout, no RoPE scaling),
so a foreign Llama may be refused.
"""

from __future__ import annotations

import difflib
import math
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from minimind.base.defaults import VOCABULARY
from minimind.base.errors import UserError

Positive = Annotated[int, Field(gt=0)]


def default_intermediate_size(hidden_size: int) -> int:
    """SwiGLU width: two thirds of 4 x hidden, rounded up to a multiple of 64 (MiniMind's rule)."""
    return 64 * math.ceil((8 * hidden_size // 3) / 64)


class ModelConfig(BaseModel):
    """Sizes of one transformer; ``head_dim`` and ``intermediate_size`` follow from ``hidden_size`` unless
    given.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    vocab_size: Positive = VOCABULARY
    hidden_size: Positive = 512
    num_hidden_layers: Positive = 8
    num_attention_heads: Positive = 8
    num_key_value_heads: Positive = 2
    head_dim: Positive = 64
    intermediate_size: Positive = 1408
    rms_norm_eps: Annotated[float, Field(gt=0)] = 1e-5
    rope_theta: Annotated[float, Field(gt=0)] = 1e6
    max_position_embeddings: Positive = 32768
    tie_word_embeddings: bool = True
    initializer_range: Annotated[float, Field(gt=0)] = 0.02

    @model_validator(mode="before")
    @classmethod
    def _derive(cls, values: Any) -> Any:
        """Fill the sizes that follow from others, so that ``hidden_size: 768`` alone gives a consistent model."""
        if not isinstance(values, dict):
            return values
        filled = {name: value for name, value in values.items() if value is not None}
        hidden, heads = (
            filled.get(name, cls.model_fields[name].default) for name in ("hidden_size", "num_attention_heads")
        )
        if isinstance(hidden, int) and isinstance(heads, int) and hidden > 0 and heads > 0:
            filled.setdefault("intermediate_size", default_intermediate_size(hidden))
            filled.setdefault("head_dim", max(1, hidden // heads))
        return filled

    @model_validator(mode="after")
    def _check(self) -> ModelConfig:
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads ({self.num_attention_heads}) must be a multiple of "
                f"num_key_value_heads ({self.num_key_value_heads})"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim ({self.head_dim}) must be even: rotary positions turn pairs of channels")
        return self

    @classmethod
    def preset(cls, name: str, **overrides: Any) -> ModelConfig:
        """The preset ``name`` with some fields replaced; sizes that follow from a replaced one follow it.

        Raises UserError for an unknown preset, naming the nearest.
        """
        if name not in _PRESET_FIELDS:
            near = difflib.get_close_matches(name.lower(), _PRESET_FIELDS, n=1, cutoff=0.3)
            hint = f'did you mean "{near[0]}"? ' if near else ""
            raise UserError(f'unknown model preset "{name}": {hint}presets are {", ".join(_PRESET_FIELDS)}')
        return cls(**{**_PRESET_FIELDS[name], **overrides})

    def layer_parameters(self) -> int:
        """Parameters of one layer: attention, SwiGLU and its two norms."""
        queries = self.num_attention_heads * self.head_dim
        keys = self.num_key_value_heads * self.head_dim
        attention = 2 * self.hidden_size * queries + 2 * self.hidden_size * keys
        return attention + 3 * self.hidden_size * self.intermediate_size + 2 * self.hidden_size

    def num_parameters(self) -> int:
        """Exact number of parameters, a tied embedding counted once, without building the model."""
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tie_word_embeddings else 2)
        return embeddings + self.num_hidden_layers * self.layer_parameters() + self.hidden_size


_PRESET_FIELDS: dict[str, dict[str, Any]] = {
    # For tests and two CPU cores: large enough to learn the built-in corpus in minutes.
    "tiny": {"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2},
    "26m": {"hidden_size": 512, "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 2},
    "104m": {"hidden_size": 768, "num_hidden_layers": 16, "num_attention_heads": 8, "num_key_value_heads": 2},
    # For several GPUs or ZeRO stage 3; nothing was trained to the end with them here.
    "306m": {"hidden_size": 1024, "num_hidden_layers": 27, "num_attention_heads": 16, "num_key_value_heads": 4},
    "1.1b": {  # TinyLlama's shape (arXiv:2401.02385), 1,100,048,384 parameters
        "vocab_size": 32000,
        "hidden_size": 2048,
        "num_hidden_layers": 22,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "intermediate_size": 5632,
        "tie_word_embeddings": False,
    },
}

PRESETS: dict[str, ModelConfig] = {name: ModelConfig(**fields) for name, fields in _PRESET_FIELDS.items()}
