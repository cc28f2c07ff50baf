"""Muon for whole matrices and for the flat partitions that ZeRO hands to an optimizer.

Muon (https://kellerjordan.github.io/posts/muon/) replaces the momentum of a 2-D weight by the nearest
semi-orthogonal matrix, found by five Newton-Schulz iterations. Everything that is not a body matrix (embeddings,
norms) is trained by AdamW in the same optimizer.

ZeRO stages 1 and 2 flatten a parameter group into one vector and give each rank a slice, so a matrix may be cut in
two. Momentum is element-wise and stays in the slice; the updated momentum is gathered once a step, each rank
orthogonalises the matrices that its slice touches and keeps its own part. DeepSpeed has a Muon of its own, but it
compiles kernels at first use (a minute of silence on a CPU) and takes fp16 or bf16 by what the accelerator says.

Contract: the update equals ``torch.optim.Muon`` (same coefficients, Nesterov) on one process, and does not depend on
the stage or the number of ranks. In a slice on a GPU matrices of one shape are iterated together: 26M has 56 of
four shapes, and at this size a GPU waits for the launches of its kernels. Weakness: ranks repeat the work on the
matrices that two slices share, and at stage 3, which cuts every matrix, on all of them; the gather moves every body
gradient once more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from minimind.interop.partitioned import part, part_size

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # quintic with the steepest slope at 0 (the post above)
NEWTON_SCHULZ_STEPS = 5


def orthogonalize(matrix: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The nearest semi-orthogonal matrix, approximately: singular values end near 1.

    ``matrix`` [rows, columns], or several [n, rows, columns], any float dtype; the iteration runs in ``dtype``
    (bfloat16 is enough and fast where the hardware has it) and the result comes back in the matrix's own dtype.
    """
    a, b, c = NEWTON_SCHULZ
    x = matrix.to(dtype)
    tall = x.size(-2) > x.size(-1)
    x = x.mT if tall else x  # iterate on the short side: the Gram matrix is smaller
    several = x.ndim == 3
    norm = x.flatten(1).norm(dim=1)[:, None, None] if several else x.norm()
    add_product = torch.baddbmm if several else torch.addmm
    x = x / norm.clamp(min=1e-7)
    for _ in range(NEWTON_SCHULZ_STEPS):
        gram = x @ x.mT
        x = add_product(x, add_product(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.mT if tall else x).to(matrix.dtype)


def matrix_update(momentum: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Orthogonalised ``momentum`` [(n,) rows, columns], scaled so that tall matrices move as much as wide ones."""
    rows, columns = momentum.shape[-2:]
    scale: float = max(1.0, rows / columns) ** 0.5
    return orthogonalize(momentum, dtype) * scale


class Muon(torch.optim.Optimizer):
    """Muon for the groups with ``use_muon``, AdamW (decoupled decay) for the others.

    A Muon group carries ``shapes``: the shape of each of its matrices, in order. Its parameters are either those
    matrices or, under ZeRO, one flat slice of their concatenation (``rank`` of ``world_size`` equal slices, padded at
    the end; DeepSpeed's zero/stage_1_and_2.py and bf16_optimizer.py both cut it so). At stage 3 a flat parameter holds
    one part of each of its matrices: ``cuts`` says of which.
    """

    def __init__(
        self,
        params: Iterable[dict[str, Any]],
        lr: float = 0.02,
        momentum: float = 0.95,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        compute_dtype: torch.dtype = torch.float32,
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {**defaults, "use_muon": False, "shapes": ()})
        self.compute_dtype = compute_dtype
        self.cuts: dict[torch.Tensor, Sequence[Sequence[int]]] = {}

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Apply one update to every parameter that has a gradient."""
        for group in self.param_groups:
            present = [parameter for parameter in group["params"] if parameter.grad is not None]
            update = self._muon if group["use_muon"] else self._adamw
            for parameter in present:
                parameter.mul_(1.0 - group["lr"] * group["weight_decay"])
                update(parameter, group)

    def _adamw(self, parameter: torch.Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state.update(step=0, exp_avg=torch.zeros_like(parameter), exp_avg_sq=torch.zeros_like(parameter))
        state["step"] += 1
        beta1, beta2 = group["betas"]
        gradient = parameter.grad
        assert gradient is not None
        state["exp_avg"].lerp_(gradient, 1.0 - beta1)
        state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1.0 - beta2)
        correction1, correction2 = (1.0 - beta ** state["step"] for beta in (beta1, beta2))
        denominator = (state["exp_avg_sq"] / correction2).sqrt_().add_(group["eps"])
        parameter.addcdiv_(state["exp_avg"], denominator, value=-group["lr"] / correction1)

    def _muon(self, parameter: torch.Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        gradient = parameter.grad
        assert gradient is not None
        buffer = state["momentum_buffer"].lerp_(gradient, 1.0 - group["momentum"])
        nesterov = gradient.lerp(buffer, group["momentum"])
        if parameter.ndim == 2:
            update = matrix_update(nesterov, self.compute_dtype)
        elif parameter in self.cuts:
            update = self._cut_update(nesterov, self.cuts[parameter])
        else:
            update = self._flat_update(nesterov, group["shapes"])
        parameter.add_(update, alpha=-group["lr"])

    def _flat_update(self, momentum: torch.Tensor, shapes: Sequence[Sequence[int]]) -> torch.Tensor:
        """The update for one rank's flat slice [n] of the concatenated matrices."""
        start, whole = _gather_slices(momentum, sum(rows * columns for rows, columns in shapes))
        end = start + momentum.numel()
        update = torch.zeros_like(momentum)
        for (rows, columns), offsets in _batches(shapes, start, end, together=momentum.is_cuda):
            size = rows * columns
            parts = [whole[offset : offset + size].view(rows, columns) for offset in offsets]
            found = matrix_update(torch.stack(parts) if len(parts) > 1 else parts[0], self.compute_dtype)
            for offset, matrix in zip(offsets, found.reshape(len(parts), size), strict=True):
                first, last = max(offset, start), min(offset + size, end)
                update[first - start : last - start] = matrix[first - offset : last - offset]
        return update

    def _cut_update(self, momentum: torch.Tensor, shapes: Sequence[Sequence[int]]) -> torch.Tensor:
        """The update for one rank's flat parts [n] of the matrices, of which one at a time is whole in memory."""
        ranks, rank, start = dist.get_world_size(), dist.get_rank(), 0
        update = torch.zeros_like(momentum)
        for rows, columns in shapes:
            size = part_size(rows * columns, ranks)
            _, whole = _gather_slices(momentum[start : start + size], rows * columns)
            matrix = matrix_update(whole[: rows * columns].view(rows, columns), self.compute_dtype)
            update[start : start + size] = part(matrix, rank, ranks)
            start += size
        return update


def _batches(
    shapes: Sequence[Sequence[int]], start: int, end: int, together: bool
) -> list[tuple[tuple[int, int], list[int]]]:
    """Shapes and offsets of the matrices that touch [start, end): each alone, or those of one shape ``together``."""
    found: dict[tuple[int, int, int], list[int]] = {}
    offset = 0
    for rows, columns in shapes:
        if offset < end and offset + rows * columns > start:
            found.setdefault((rows, columns, 0 if together else offset), []).append(offset)
        offset += rows * columns
    return [((rows, columns), offsets) for (rows, columns, _), offsets in found.items()]


def _gather_slices(part: torch.Tensor, total: int) -> tuple[int, torch.Tensor]:
    """Where this rank's slice starts, and the concatenation [>= total] of all ranks' slices."""
    if part.numel() >= total:  # one rank holds everything; ZeRO only pads
        return 0, part
    whole = part.new_empty(part.numel() * dist.get_world_size())
    dist.all_gather(list(whole.chunk(dist.get_world_size())), part.contiguous())
    return dist.get_rank() * part.numel(), whole
