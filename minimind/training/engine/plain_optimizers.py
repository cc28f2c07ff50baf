"""Optimizers whose torch form can't take what DeepSpeed does: both keep no state before their first step.

ZeRO puts its own flat tensors into a finished optimizer; ``torch.optim.Adagrad`` makes its sums when it is built, for
parameters that are gone then. ``bias_correction: false`` of DeepSpeed's Adams has no counterpart in torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch


class Adagrad(torch.optim.Optimizer):
    """The update of ``torch.optim.Adagrad``, weight decay as an L2 term."""

    def __init__(
        self,
        params: Iterable[dict[str, Any]],
        lr: float = 1e-2,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
    ) -> None:
        defaults = {"lr": lr, "lr_decay": lr_decay, "weight_decay": weight_decay, "eps": eps}
        super().__init__(params, {**defaults, "initial_accumulator_value": initial_accumulator_value})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Apply one update to every parameter that has a gradient."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state.update(step=0, sum=torch.full_like(parameter, group["initial_accumulator_value"]))
                gradient = parameter.grad.add(parameter, alpha=group["weight_decay"])
                rate = group["lr"] / (1.0 + state["step"] * group["lr_decay"])
                state["step"] += 1
                state["sum"].addcmul_(gradient, gradient)
                parameter.addcdiv_(gradient, state["sum"].sqrt().add_(group["eps"]), value=-rate)


class UncorrectedAdam(torch.optim.Optimizer):
    """Adam without bias correction, as DeepSpeed's FusedAdam has it; ``decoupled``: AdamW's weight decay."""

    def __init__(
        self,
        params: Iterable[dict[str, Any]],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        decoupled: bool = True,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        self.decoupled = decoupled

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Apply one update to every parameter that has a gradient."""
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state, gradient = self.state[parameter], parameter.grad
                if not state:
                    state.update(exp_avg=torch.zeros_like(parameter), exp_avg_sq=torch.zeros_like(parameter))
                if self.decoupled:
                    parameter.mul_(1.0 - group["lr"] * group["weight_decay"])
                else:
                    gradient = gradient.add(parameter, alpha=group["weight_decay"])
                state["exp_avg"].lerp_(gradient, 1.0 - beta1)
                state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1.0 - beta2)
                denominator = state["exp_avg_sq"].sqrt().add_(group["eps"])
                parameter.addcdiv_(state["exp_avg"], denominator, value=-group["lr"])
