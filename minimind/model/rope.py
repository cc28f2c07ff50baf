"""The frequencies of rotary positions, plain and stretched for longer texts.

Contract: equal to ``transformers.modeling_rope_utils`` for the types ``linear``, ``llama3`` and ``yarn``
(tests/model/test_rope.py). All of them change the frequencies once, whatever the length of a text; types that change
with the length (``dynamic``, ``longrope``) are refused on import.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from minimind.config.model import RopeScaling


def inverse_frequencies(
    head_dim: int, theta: float, scaling: RopeScaling | None, device: torch.device | None = None
) -> Tensor:
    """Radians by position of each pair of channels: fp32 ``[head_dim / 2]``."""
    exponent = torch.arange(0, head_dim, 2, dtype=torch.int64, device=device).float() / head_dim
    plain = 1.0 / theta**exponent
    if scaling is None:
        return plain
    if scaling.rope_type == "linear":
        return plain / scaling.factor
    return _llama3(plain, scaling) if scaling.rope_type == "llama3" else _yarn(plain, theta, scaling)


def attention_factor(scaling: RopeScaling) -> float:
    """What YaRN multiplies the rotated queries and keys by; 1 for the other types."""
    if scaling.rope_type != "yarn":
        return 1.0
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    if scaling.mscale and scaling.mscale_all_dim:
        return _mscale(scaling.factor, scaling.mscale) / _mscale(scaling.factor, scaling.mscale_all_dim)
    return _mscale(scaling.factor, 1.0)


def _mscale(factor: float, weight: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def _original_length(scaling: RopeScaling) -> int:
    assert scaling.original_max_position_embeddings is not None, "ModelConfig fills it in"
    length: int = scaling.original_max_position_embeddings
    return length


def _llama3(plain: Tensor, scaling: RopeScaling) -> Tensor:
    """Long waves divided by the factor, short ones left, those between blended."""
    assert scaling.low_freq_factor is not None and scaling.high_freq_factor is not None, "RopeScaling checks it"
    low, high, length = scaling.low_freq_factor, scaling.high_freq_factor, _original_length(scaling)
    waves = 2 * math.pi / plain
    stretched = torch.where(waves > length / low, plain / scaling.factor, plain)
    blend = (length / waves - low) / (high - low)
    blended = (1 - blend) * stretched / scaling.factor + blend * stretched
    between = ~(waves < length / high) & ~(waves > length / low)
    return torch.where(between, blended, stretched)


def _yarn(plain: Tensor, theta: float, scaling: RopeScaling) -> Tensor:
    """Channels that turn often over the original length left, those that turn rarely divided, a ramp between."""
    size, length = 2 * len(plain), _original_length(scaling)

    def channel(turns: float) -> float:
        return size * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = channel(scaling.beta_fast or 32), channel(scaling.beta_slow or 1)
    if scaling.truncate is not False:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    width = high - low if high != low else 0.001
    ramp = ((torch.arange(len(plain), device=plain.device, dtype=torch.float32) - low) / width).clamp(0, 1)
    return plain / scaling.factor * ramp + plain * (1 - ramp)
