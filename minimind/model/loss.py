"""Cross-entropy of a large vocabulary without ever holding its fp32 logits.

Contract: the SUM over trainable tokens of ``logsumexp(logits) - logits[label]``, a 0-d fp32 tensor, always
connected to the graph (with no trainable token it is zero and so are its gradients, never None). Nothing is
divided here; the training step divides, once.

As in Liger Kernel, the gradient is taken chunk by chunk in the forward pass, while the chunk's logits
exist, so that logits are computed once; the backward pass only multiplies by the incoming gradient, which
must be a scalar (loss scale, 1 / tokens).

Half precision. Logits come out of the matrix product in the dtype of the weights and are widened to fp32 before the
log-softmax. The gradient kept is that of the bare sum, so its entries are probabilities: in [-1, 1], and below fp16's
smallest number (6e-8) they would vanish before any loss scale could save them. In fp16 they are therefore multiplied by
1024 before they are rounded, and divided again, in fp32, when the incoming gradient is known: entries down to 6e-11
survive, and no hidden gradient can overflow, since it is at most 2048 times the largest weight. The sum over tokens for
the weight has no such bound (a frequent token), so it is accumulated in fp32. Overflow after multiplying by a loss
scale shows as inf, which is what a dynamic loss scaler looks for.

`cross_entropy_by_row` also gives each row's own sum, for reporting: the same losses, added up a second time, outside
of the graph; the sum that is trained on is the same to the last bit.

Weaknesses: not differentiable twice; on a GPU all tokens are computed, trainable or not (choosing them
would stall the stream).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from minimind.base.defaults import IGNORE, loss_chunk
from minimind.model.ops import input_gradient, linear, product, through_fp32, weight_gradient

FP16_GRADIENT_SCALE = 1024.0
ROUND = 64  # tokens that need logits on a CPU: oneDNN makes (and keeps) a kernel for each number of them


def chunk_tokens(device: torch.device, vocab_size: int) -> int:
    """Tokens per chunk on ``device``, which ``memory.py`` counts with too."""
    return loss_chunk(device.type, vocab_size)


def _add_weight_gradient(total: Tensor, grad: Tensor, hidden: Tensor) -> None:
    """Add a chunk's ``grad.T @ hidden`` to the fp32 ``total``, without rounding it to half in between.

    Except in bf16 on a CPU that multiplies it: its product is twice as fast as fp32's and gives bf16. The sum over a
    chunk is rounded there, as a linear layer's weight gradient is, before it is added to the others in fp32.
    """
    if grad.device.type == "cuda" and grad.dtype != torch.float32:  # gpu
        total += torch.mm(grad.t(), hidden, out_dtype=torch.float32)
    elif grad.device.type == "cuda":  # gpu
        total.addmm_(grad.t(), hidden)
    elif grad.dtype == torch.float16:  # also where it is native: the sum over a chunk may overflow
        total += weight_gradient(grad.float(), hidden.float())
    else:
        total += weight_gradient(grad, hidden)


def _chunk_loss(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Logits [n, V], labels [n] -> losses [n, 1], log probabilities fp32 [n, V], trainable, label (0 if ignored)."""
    trainable = (labels != IGNORE)[:, None]  # [n, 1]
    target = labels.clamp(min=0)[:, None]  # [n, 1]
    log_probabilities = F.log_softmax(logits, dim=-1, dtype=torch.float32)  # [n, V]
    losses = -log_probabilities.gather(1, target).masked_fill_(~trainable, 0.0)
    return losses, log_probabilities, trainable, target


def _logits_gradient(log_probabilities: Tensor, trainable: Tensor, target: Tensor, scale: float) -> Tensor:
    """Turn log probabilities in place into ``scale * (softmax - one_hot(target))``, zero where not trainable."""
    grad = log_probabilities.exp_()
    grad.scatter_add_(1, target, grad.new_full((), -1.0).expand(target.shape))
    return grad.mul_(trainable * scale)


class _SummedCrossEntropy(torch.autograd.Function):
    """Of ``hidden`` [N, H], ``weight`` [V, H], ``labels`` [N], ``chunk`` rows at a time: the sum, and losses [N]."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor, chunk: int) -> tuple[Tensor, Tensor]:
        ctx.scale = FP16_GRADIENT_SCALE if hidden.dtype == torch.float16 else 1.0
        wide = weight.float() if through_fp32(hidden) else weight
        grad_hidden = torch.empty_like(hidden)  # [N, H]
        grad_weight = torch.zeros_like(weight, dtype=torch.float32)  # [V, H]
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        losses = torch.zeros(hidden.shape[0], dtype=torch.float32, device=hidden.device)
        for start in range(0, hidden.shape[0], chunk):
            piece = slice(start, start + chunk)
            part = hidden[piece].to(wide.dtype)  # [n, H]
            logits = product(part, wide).to(hidden.dtype)  # [n, V]
            loss, log_probabilities, trainable, target = _chunk_loss(logits, labels[piece])
            total += loss.sum()
            losses[piece] = loss[:, 0]
            grad32 = _logits_gradient(log_probabilities, trainable, target, ctx.scale)
            grad = grad32.to(hidden.dtype).to(wide.dtype)  # [n, V]
            grad_hidden[piece] = input_gradient(grad, wide)
            _add_weight_gradient(grad_weight, grad, part)
        ctx.save_for_backward(grad_hidden, grad_weight)
        ctx.weight_dtype = weight.dtype
        ctx.mark_non_differentiable(losses)
        return total, losses

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor, _: Tensor) -> tuple[Tensor, Tensor, None, None]:
        grad_hidden, grad_weight = ctx.saved_tensors
        factor = grad_output.float() / ctx.scale
        scaled_hidden = (
            grad_hidden * factor
            if grad_hidden.dtype == torch.float32
            else (grad_hidden.float() * factor).to(grad_hidden.dtype)
        )
        return scaled_hidden, (grad_weight * factor).to(ctx.weight_dtype), None, None


def _loss_only(hidden: Tensor, weight: Tensor, labels: Tensor, chunk: int) -> tuple[Tensor, Tensor]:
    total = torch.zeros((), dtype=torch.float32, device=hidden.device)
    losses = torch.zeros(hidden.shape[0], dtype=torch.float32, device=hidden.device)
    for start in range(0, hidden.shape[0], chunk):
        piece = slice(start, start + chunk)
        loss = _chunk_loss(linear(hidden[piece], weight), labels[piece])[0]
        total += loss.sum()
        losses[piece] = loss[:, 0].detach()
    return total, losses


def summed_cross_entropy(hidden: Tensor, weight: Tensor, labels: Tensor, chunk: int | None = None) -> Tensor:
    """Sum of the cross-entropy of ``hidden [..., H] @ weight [V, H].T`` against ``labels [...]`` (-100: not trained).

    ``chunk`` is the number of tokens whose logits exist at once (default: ``chunk_tokens``); it changes the result by
    rounding only. A label outside the vocabulary is an error on a CPU and undefined on a GPU, as in torch.
    """
    return _sum_and_losses(hidden, weight, labels.reshape(-1), chunk)[0]


def cross_entropy_by_row(
    hidden: Tensor, weight: Tensor, labels: Tensor, chunk: int | None = None
) -> tuple[Tensor, Tensor]:
    """``summed_cross_entropy`` of labels [B, T], and the sum of each row: fp32 [B], not connected to the graph."""
    total, losses = _sum_and_losses(hidden, weight, labels.reshape(-1), chunk)
    return total, losses.view(labels.shape).sum(1)


def _rounded_up(trainable: Tensor) -> Tensor:
    """``trainable`` [n] with some more positions, so that their number is a multiple of ``ROUND`` if it can be."""
    missing = -int(trainable.sum()) % ROUND
    others = (~trainable).nonzero()[:missing, 0]
    return trainable.index_fill(0, others, True)


def _sum_and_losses(hidden: Tensor, weight: Tensor, labels: Tensor, chunk: int | None) -> tuple[Tensor, Tensor]:
    """The sum over labels [N], and the detached loss of each, fp32 [N], zero where nothing is trained."""
    hidden, keep = hidden.reshape(-1, hidden.shape[-1]), None  # [N, H]
    if hidden.device.type == "cpu" and not torch.compiler.is_compiling():
        trainable = labels != IGNORE
        if not bool(trainable.all()):
            # Fine-tuning trains perhaps a third of the tokens: the others need no logits at all.
            keep = _rounded_up(trainable)  # boolean [N]
            hidden, labels = hidden[keep], labels[keep]
    chunk = chunk or chunk_tokens(hidden.device, weight.shape[0])
    if torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad):
        total, losses = _SummedCrossEntropy.apply(hidden, weight, labels, chunk)
    else:
        total, losses = _loss_only(hidden, weight, labels, chunk)
    return total, losses if keep is None else losses.new_zeros(keep.shape).masked_scatter_(keep, losses)
