"""The shape of a model: ``ModelConfig`` and its presets, without torch.

Field names and meanings are those of Hugging Face's ``LlamaConfig``, so that export and import copy them
unchanged. Four dense families differ in little: ``model_type`` names the one, and with it which parameters there are
and what an export is called. Kept apart from the transformer so that configuration, ``plan`` and ``--help`` never pay
for importing torch. Weakness: only shapes that the transformer can build are accepted (no other biases, no dropout, no
window, no experts), so a foreign model may be refused.
"""

from __future__ import annotations

import difflib
import math
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from minimind.base.defaults import VOCABULARY
from minimind.base.errors import UserError

# Far above every dense model that was published, and low enough that counting and naming the parameters of what a
# stranger's configuration declares takes neither long nor numbers that 64 bits don't hold.
MOST_LAYERS, LARGEST_WIDTH, LARGEST_TABLE = 1 << 10, 1 << 18, 1 << 24
Layers = Annotated[int, Field(gt=0, le=MOST_LAYERS)]
Width = Annotated[int, Field(gt=0, le=LARGEST_WIDTH)]
Table = Annotated[int, Field(gt=0, le=LARGEST_TABLE)]
Finite = Annotated[float, Field(gt=0, allow_inf_nan=False)]


ModelType = Literal["llama", "mistral", "qwen2", "qwen3"]
RopeType = Literal["linear", "llama3", "yarn"]


def default_intermediate_size(hidden_size: int, model_type: str = "llama") -> int:
    """MiniMind's SwiGLU widths, multiples of 64: two thirds of 4 x hidden; of its Qwen3 shape pi x hidden."""
    if model_type == "qwen3":
        return 64 * math.ceil(hidden_size * math.pi / 64)
    return 64 * math.ceil((8 * hidden_size // 3) / 64)


# What Hugging Face reads for each type besides its factor: the fields that must be there, and those that may
_LENGTH = "original_max_position_embeddings"
_ROPE_FIELDS: dict[str, tuple[set[str], set[str]]] = {
    "linear": (set(), set()),
    "llama3": ({"low_freq_factor", "high_freq_factor"}, {_LENGTH}),
    "yarn": (set(), {_LENGTH, "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"}),
}


def rope_fields(rope_type: str) -> set[str] | None:
    """The names that a scaling of this type may have besides its type; None for a type that is not known."""
    if rope_type not in _ROPE_FIELDS:
        return None
    needed, optional = _ROPE_FIELDS[rope_type]
    return {"factor"} | needed | optional


class RopeScaling(BaseModel):
    """How rotary angles are stretched for longer texts; fields as in Hugging Face's ``rope_scaling``.

    ``original_max_position_embeddings`` (llama3, yarn): what the model was trained for first; the model's own
    ``max_position_embeddings`` unless given.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    rope_type: RopeType
    factor: Annotated[float, Field(ge=1, allow_inf_nan=False)]
    original_max_position_embeddings: Table | None = None
    low_freq_factor: Finite | None = None
    high_freq_factor: Finite | None = None
    attention_factor: Finite | None = None
    beta_fast: Finite | None = None
    beta_slow: Finite | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool | None = None

    @model_validator(mode="after")
    def _check(self) -> RopeScaling:
        needed, optional = _ROPE_FIELDS[self.rope_type]
        given = {name for name, value in self if value is not None} - {"rope_type", "factor"}
        if missing := sorted(needed - given):
            raise ValueError(f"{self.rope_type} needs {', '.join(missing)}")
        if unknown := sorted(given - needed - optional):
            raise ValueError(f"{self.rope_type} has no {', '.join(unknown)}")
        if self.rope_type == "llama3" and self.low_freq_factor == self.high_freq_factor:
            raise ValueError("low_freq_factor and high_freq_factor must differ")
        return self

    @model_serializer(mode="wrap")
    def _given(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in serialize(self).items() if value is not None}


def _rope_scaling(value: Any) -> Any:
    """Older files spell ``rope_type`` as ``type``; type "default" is none."""
    if not isinstance(value, dict):
        return value
    fields = dict(value)
    kind = fields.pop("type", None)
    fields.setdefault("rope_type", kind)
    return None if fields["rope_type"] == "default" else fields


class ModelConfig(BaseModel):
    """Sizes of one transformer; ``head_dim`` and ``intermediate_size`` follow from ``hidden_size`` unless
    given.

    Written out, a Llama without scaled positions has the fields that it had before there were other families, so that
    the records of older runs and of newer ones agree.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    vocab_size: Table = VOCABULARY
    hidden_size: Width = 512
    num_hidden_layers: Layers = 8
    num_attention_heads: Width = 8
    num_key_value_heads: Width = 2
    head_dim: Width = 64
    intermediate_size: Width = 1408
    rms_norm_eps: Finite = 1e-5
    rope_theta: Finite = 1e6
    max_position_embeddings: Table = 32768
    tie_word_embeddings: bool = True
    initializer_range: Finite = 0.02
    model_type: ModelType = "llama"
    rope_scaling: Annotated[RopeScaling | None, BeforeValidator(_rope_scaling)] = None

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
            filled.setdefault("intermediate_size", default_intermediate_size(hidden, filled.get("model_type", "llama")))
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
        scaling = self.rope_scaling
        if scaling and scaling.rope_type == "yarn" and self.rope_theta <= 1:
            raise ValueError(f"rope_theta ({self.rope_theta}) must be more than 1 for yarn")
        if scaling and scaling.rope_type != "linear" and scaling.original_max_position_embeddings is None:
            known = scaling.model_copy(update={_LENGTH: self.max_position_embeddings})
            object.__setattr__(self, "rope_scaling", known)  # frozen for everybody else
        return self

    @model_serializer(mode="wrap")
    def _as_before(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        usual = {"model_type": "llama", "rope_scaling": None}
        return {name: value for name, value in serialize(self).items() if name not in usual or value != usual[name]}

    @property
    def qk_norm(self) -> bool:
        """Whether each head of the queries and keys is normed, with one gain for all heads."""
        return self.model_type == "qwen3"

    @property
    def qkv_bias(self) -> bool:
        """Whether the projections to queries, keys and values have biases."""
        return self.model_type == "qwen2"

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

    def layer_matrices(self) -> int:
        """Parameters in the matrices of one layer: attention and SwiGLU."""
        queries = self.num_attention_heads * self.head_dim
        keys = self.num_key_value_heads * self.head_dim
        attention = 2 * self.hidden_size * queries + 2 * self.hidden_size * keys
        return attention + 3 * self.hidden_size * self.intermediate_size

    def layer_parameters(self) -> int:
        """Parameters of one layer: its matrices, its two norms, and what its family has besides."""
        biases = (self.num_attention_heads + 2 * self.num_key_value_heads) * self.head_dim if self.qkv_bias else 0
        head_norms = 2 * self.head_dim if self.qk_norm else 0
        return self.layer_matrices() + 2 * self.hidden_size + biases + head_norms

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
    # MiniMind-3, MiniMind of 2026
    "64m": {
        "model_type": "qwen3",
        "hidden_size": 768,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-6,
    },
    "qwen3-0.6b": {
        "model_type": "qwen3",
        "vocab_size": 151936,
        "hidden_size": 1024,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 3072,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 40960,
    },
}

PRESETS: dict[str, ModelConfig] = {name: ModelConfig(**fields) for name, fields in _PRESET_FIELDS.items()}
