"""Optimizers by the name in the DeepSpeed JSON (config/deepspeed/optimizers.py), with decay and no-decay groups.

No option needs nvcc: AdamW is PyTorch's fused one (CPU and GPU), Lion, Muon, Adagrad and Adam without bias correction
are plain PyTorch, SGD and other element-wise ones are PyTorch's own, AdamW8bit is bitsandbytes. DeepSpeedCPUAdam, which
must be compiled, is chosen by engine.py only for CPU offload.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from minimind.base.errors import UserError
from minimind.base.hardware import detect
from minimind.config.deepspeed.optimizers import OPTIMIZERS
from minimind.training.engine.muon import Muon
from minimind.training.engine.plain_optimizers import Adagrad, UncorrectedAdam

Builder = Callable[[list[dict[str, Any]], dict[str, Any]], torch.optim.Optimizer]


def shape_of(parameter: torch.Tensor) -> tuple[int, ...]:
    """The parameter's shape, also where ZeRO stage 3 has cut it already (construction.py)."""
    return tuple(getattr(parameter, "ds_shape", parameter.shape))


def is_body_matrix(name: str, parameter: torch.Tensor) -> bool:
    """A 2-D weight inside a layer. The embedding is not, and with it the head that is tied to it."""
    return len(shape_of(parameter)) == 2 and "embed_tokens" not in name and "lm_head" not in name


def parameter_groups(model: nn.Module, optimizer_type: str, params: dict[str, Any]) -> list[dict[str, Any]]:
    """Two groups, in the model's order: body matrices (decayed) and the rest (embeddings and norms, not decayed).

    For Muon the first is its own, at ``muon_lr``, and the second is AdamW's, at ``adam_lr`` (both default to ``lr``).
    Each parameter is in exactly one group: DeepSpeed trains nothing that is left out, silently.
    """
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    body = [parameter for name, parameter in named if is_body_matrix(name, parameter)]
    rest = [parameter for name, parameter in named if not is_body_matrix(name, parameter)]
    decay = params.get("weight_decay", 0.0)
    groups: list[dict[str, Any]] = [{"params": body, "weight_decay": decay}, {"params": rest, "weight_decay": 0.0}]
    if optimizer_type.lower() == "muon":
        groups[0].update(lr=params.get("muon_lr", params["lr"]), use_muon=True, shapes=[shape_of(p) for p in body])
        groups[1].update(lr=params.get("adam_lr", params["lr"]), use_muon=False)
    return [group for group in groups if group["params"]]


class Lion(torch.optim.Optimizer):
    """Lion: the sign of an interpolated momentum (https://arxiv.org/abs/2302.06675, algorithm 2)."""

    def __init__(
        self,
        params: Iterable[dict[str, Any]],
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Apply one update to every parameter that has a gradient."""
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["exp_avg"] = torch.zeros_like(parameter)
                parameter.mul_(1.0 - group["lr"] * group["weight_decay"])
                direction = state["exp_avg"].lerp(parameter.grad, 1.0 - beta1).sign_()
                parameter.add_(direction, alpha=-group["lr"])
                state["exp_avg"].lerp_(parameter.grad, 1.0 - beta2)


def adamw(groups: list[dict[str, Any]], params: dict[str, Any]) -> torch.optim.Optimizer:
    if params.get("bias_correction") is False:
        return UncorrectedAdam(groups, **_pick(params, "lr", "betas", "eps"))
    return torch.optim.AdamW(groups, fused=True, **_pick(params, "lr", "betas", "eps"))


def adam(groups: list[dict[str, Any]], params: dict[str, Any]) -> torch.optim.Optimizer:
    """Weight decay as an L2 term of the gradient (``"adam_w_mode": false``)."""
    if params.get("bias_correction") is False:
        return UncorrectedAdam(groups, decoupled=False, **_pick(params, "lr", "betas", "eps"))
    return torch.optim.Adam(groups, fused=True, **_pick(params, "lr", "betas", "eps"))


def adamw8bit(groups: list[dict[str, Any]], params: dict[str, Any]) -> torch.optim.Optimizer:
    try:
        from bitsandbytes.optim import AdamW8bit
    except ImportError as error:
        raise UserError("AdamW8bit needs bitsandbytes, which is not installed; pip install bitsandbytes") from error
    optimizer: torch.optim.Optimizer = AdamW8bit(groups, **_pick(params, "lr", "betas", "eps"))
    return optimizer


def lion(groups: list[dict[str, Any]], params: dict[str, Any]) -> torch.optim.Optimizer:
    return Lion(groups, **_pick(params, "lr", "betas"))


def muon(groups: list[dict[str, Any]], params: dict[str, Any]) -> torch.optim.Optimizer:
    # bf16 where matrix multiplication in it is fast, also on a CPU that has the instructions (a quarter of fp32's time
    # on an EPYC); an emulated bf16 is slower and rougher than fp32.
    dtype = torch.bfloat16 if detect().bf16 else torch.float32
    return Muon(groups, compute_dtype=dtype, **_pick(params, "lr", "betas", "eps", "momentum"))


def _by_its_own_names(
    kind: type[torch.optim.Optimizer],
) -> Callable[[list[dict[str, Any]], dict[str, Any]], torch.optim.Optimizer]:
    """An optimizer that takes the JSON's parameters as they are; the groups have the weight decay."""

    def build(groups: list[dict[str, Any]], params: dict[str, Any]) -> torch.optim.Optimizer:
        return kind(groups, **_pick(params, *(name for name in params if name != "weight_decay")))

    return build


def _pick(params: dict[str, Any], *names: str) -> dict[str, Any]:
    values = {name: params[name] for name in names if name in params}
    if "betas" in values:
        values["betas"] = tuple(values["betas"])
    return values


adagrad = _by_its_own_names(Adagrad)
sgd = _by_its_own_names(torch.optim.SGD)
rmsprop = _by_its_own_names(torch.optim.RMSprop)
adadelta = _by_its_own_names(torch.optim.Adadelta)
adamax = _by_its_own_names(torch.optim.Adamax)
nadam = _by_its_own_names(torch.optim.NAdam)
radam = _by_its_own_names(torch.optim.RAdam)


def build_optimizer(model: nn.Module, optimizer_type: str, params: dict[str, Any]) -> torch.optim.Optimizer:
    """The optimizer for ``optimizer_type`` (any case) over ``model``'s parameters.

    Raises UserError for a type that this trainer does not have.
    """
    entry = next((entry for name, entry in OPTIMIZERS.items() if name.lower() == optimizer_type.lower()), None)
    if entry is None:
        raise UserError(f"optimizer type {optimizer_type!r} is not supported; choose one of {', '.join(OPTIMIZERS)}")
    build: Builder = pkgutil.resolve_name(entry.builder)
    return build(parameter_groups(model, optimizer_type, params), params)
