"""A new model whose parameters are cut as they come to be (ZeRO stage 3): no rank ever holds all of it.

``zero.Init`` cuts each module when it is built, before ``init_weights`` could fill it: the weights would be unset
memory (NaN). So they are filled afterwards, one at a time, with the values that an uncut model of the seed has. At
most one parameter is whole at once.
"""

from __future__ import annotations

import deepspeed
import torch
import torch.distributed as dist

from minimind.config.deepspeed import Resolved
from minimind.config.model import ModelConfig
from minimind.model.transformer import Transformer


def new_model(config: ModelConfig, seed: int, resolved: Resolved) -> Transformer:
    """The model of ``seed``, ready for an Engine of ``resolved``; all ranks call it, after ``start_processes``."""
    secondary = resolved.config.get("zero_optimization", {}).get("zero_hpz_partition_size", 1) > 1
    if resolved.stage != 3 or secondary:  # the groups of hpZ are made by the engine
        return Transformer(config, seed=seed)
    with torch.device("meta"):
        shapes = Transformer(config, seed=None)
    with deepspeed.zero.Init(config_dict_or_path=resolved.config, mem_efficient_linear=False):
        model = Transformer(config, seed=None)
    _fill(model, shapes, seed)
    return model


@torch.no_grad()
def _fill(model: Transformer, shapes: Transformer, seed: int) -> None:
    """The first rank draws the values and hands out their parts. ``shapes``: the same model, without memory."""
    values = shapes.initial_values(seed)
    for parameter in model.parameters():
        with deepspeed.zero.GatheredParameters([parameter], modifier_rank=0):
            if dist.get_rank() == 0:
                parameter.data.copy_(next(values))
