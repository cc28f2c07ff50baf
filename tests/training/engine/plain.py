"""Training steps in plain PyTorch: the truth that test_applied_update.py compares DeepSpeed's with.

One process, the whole step's rows one by one: gradients by autograd in the precision, their sum in fp32, clipped by
torch, applied to fp32 masters by torch's own optimizer (Lion and Muon by their papers), and the weights rounded anew.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from minimind.config.deepspeed.optimizers import OPTIMIZERS
from minimind.model.transformer import Transformer
from tests.support import RowBatch, random_rows, split
from tests.training.engine.layouts import BETAS, CLIP, DECAY, EPS, LR, SCALE_POWER, SMALL, factor

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
Tensors = dict[str, torch.Tensor]


def small_model() -> Transformer:
    return Transformer(SMALL.model, seed=0)


@dataclass(frozen=True)
class Run:
    """What decides a reference: the optimizer with its own settings, the precision, clipping, and the windows.

    ``accumulation``: micro-batches of one row and rank in a whole window; the second window is one shorter.
    """

    optimizer: str
    precision: str
    clips: bool
    accumulation: int
    world: int
    steps: int = 3
    momentum: float | None = None
    muon_lr: float = LR
    adam_lr: float = LR
    others: tuple[tuple[str, Any], ...] = ()  # further parameters of the optimizer

    def windows(self) -> list[RowBatch]:
        """The rows of each step, of all ranks."""
        counts = [self.accumulation, max(1, self.accumulation - 1), self.accumulation][: self.steps]
        return [random_rows(count * self.world, seed=10 + step) for step, count in enumerate(counts)]


class Lion:
    """Algorithm 2 of https://arxiv.org/abs/2302.06675, word for word."""

    def __init__(self, groups: Sequence[dict[str, Any]]) -> None:
        self.param_groups = [{**group, "lr": LR} for group in groups]
        self.momenta: dict[torch.Tensor, torch.Tensor] = {}

    def step(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                momentum, gradient = self.momenta.get(parameter, torch.zeros(())), parameter.grad
                direction = (BETAS[0] * momentum + (1 - BETAS[0]) * gradient).sign()
                parameter.sub_(group["lr"] * (direction + group["weight_decay"] * parameter))
                self.momenta[parameter] = BETAS[1] * momentum + (1 - BETAS[1]) * gradient


class Muon:
    """https://kellerjordan.github.io/posts/muon/ with Nesterov; the iteration acts on the singular values, in fp64."""

    def __init__(self, group: dict[str, Any], lr: float, momentum: float) -> None:
        self.param_groups, self.momentum = [{**group, "lr": lr}], momentum
        self.momenta: dict[torch.Tensor, torch.Tensor] = {}

    def step(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                momentum, gradient = self.momenta.get(parameter, torch.zeros(())), parameter.grad
                momentum = self.momentum * momentum + (1 - self.momentum) * gradient
                self.momenta[parameter] = momentum
                update = self._orthogonal(self.momentum * momentum + (1 - self.momentum) * gradient)
                rows, columns = parameter.shape
                update = update * max(1.0, rows / columns) ** 0.5
                parameter.sub_(group["lr"] * (update + group["weight_decay"] * parameter))

    @staticmethod
    def _orthogonal(matrix: torch.Tensor) -> torch.Tensor:
        left, values, right = torch.linalg.svd(matrix.double(), full_matrices=False)
        values = values / values.norm()
        for _ in range(5):
            values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
        return (left @ values.diag() @ right).to(matrix.dtype)


class UncorrectedAdam:
    """DeepSpeed's csrc/adam/multi_tensor_adam.cu with ``bias_correction`` 0, word for word."""

    def __init__(self, groups: Sequence[dict[str, Any]], kind: str) -> None:
        self.param_groups, self.decoupled = [{**group, "lr": LR} for group in groups], kind == "AdamW"
        self.moments: dict[torch.Tensor, tuple[torch.Tensor, torch.Tensor]] = {}

    def step(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                gradient, decay = parameter.grad, group["weight_decay"] * parameter
                gradient = gradient if self.decoupled else gradient + decay
                first, second = self.moments.get(parameter, (torch.zeros(()), torch.zeros(())))
                first = BETAS[0] * first + (1 - BETAS[0]) * gradient
                second = BETAS[1] * second + (1 - BETAS[1]) * gradient**2
                self.moments[parameter] = first, second
                update = first / (second.sqrt() + EPS) + (decay if self.decoupled else 0.0)
                parameter.sub_(group["lr"] * update)


def _by_torch(run: Run, groups: Sequence[dict[str, Any]]) -> torch.optim.Optimizer:
    """torch's own class of that name."""
    own = {name: value for name, value in (("betas", BETAS), ("eps", EPS)) if name in OPTIMIZERS[run.optimizer].params}
    momentum = {} if run.momentum is None else {"momentum": run.momentum}
    kind: Any = getattr(torch.optim, run.optimizer)
    found: torch.optim.Optimizer = kind(groups, lr=LR, **own, **momentum, **dict(run.others))
    return found


def _optimizers(run: Run, masters: Tensors) -> list[Any]:
    body = [value for name, value in masters.items() if value.ndim == 2 and "embed" not in name]
    rest = [value for name, value in masters.items() if value.ndim == 1 or "embed" in name]
    groups: list[dict[str, Any]] = [{"params": body, "weight_decay": DECAY}, {"params": rest, "weight_decay": 0.0}]
    if run.optimizer == "Lion":
        return [Lion(groups)]
    if run.optimizer == "Muon":
        adam = torch.optim.AdamW(groups[1:], lr=run.adam_lr, betas=BETAS, eps=EPS)
        return [Muon(groups[0], run.muon_lr, 0.95 if run.momentum is None else run.momentum), adam]
    if run.optimizer not in ("Adam", "AdamW", "AdamW8bit"):
        return [_by_torch(run, groups)]
    if dict(run.others).get("bias_correction") is False:
        return [UncorrectedAdam(groups, run.optimizer)]
    adam_class = torch.optim.Adam if run.optimizer == "Adam" else torch.optim.AdamW
    return [adam_class(groups, lr=LR, betas=BETAS, eps=EPS)]


@functools.cache
def updates(run: Run) -> list[Tensors]:
    """What each step adds to each master, by name."""
    model = small_model().to(DTYPES[run.precision])
    parameters = dict(model.named_parameters())
    masters = {name: nn.Parameter(value.detach().float()) for name, value in parameters.items()}
    optimizers = _optimizers(run, masters)
    peaks = [[group["lr"] for group in optimizer.param_groups] for optimizer in optimizers]
    found = []
    for step, rows in enumerate(run.windows()):
        _add_gradients(model, masters, rows, 2.0**SCALE_POWER if run.precision == "fp16" else 1.0)
        if run.clips:
            nn.utils.clip_grad_norm_(masters.values(), CLIP)
        before = {name: value.detach().clone() for name, value in masters.items()}
        with torch.no_grad():
            for optimizer, rates in zip(optimizers, peaks, strict=True):
                for group, peak in zip(optimizer.param_groups, rates, strict=True):
                    group["lr"] = peak * factor(step)
                optimizer.step()
            for name, value in parameters.items():
                value.copy_(masters[name])
        found.append({name: value.detach() - before[name] for name, value in masters.items()})
    return found


def _add_gradients(model: Transformer, masters: Tensors, rows: RowBatch, scale: float) -> None:
    """The mean over the step's trainable tokens; ``scale`` is the loss scale, a power of two."""
    for master in masters.values():
        master.grad = torch.zeros_like(master)
    for row in split(rows, 1):
        loss = model(row.input_ids, row.labels, row.position_ids, row.document_ids)
        gradients = torch.autograd.grad(loss * (scale / rows.num_trainable), list(model.parameters()))
        for master, gradient in zip(masters.values(), gradients, strict=True):
            master.grad += gradient.float() / scale
