"""The gradients that torch has no public name for: its own operators and the plain formulas that replace them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from minimind.model import torch_gradients
from minimind.model.torch_gradients import plain_silu, plain_softmax, silu_gradient, softmax_gradient


def truth(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
    """By autograd, in fp64."""
    wide = x.double().requires_grad_()
    (found,) = torch.autograd.grad(function(wide), wide, grad.double())
    return found


def gone(*_: Any) -> torch.Tensor:
    raise AttributeError("no such operator")


def other_arguments(*_: Any) -> torch.Tensor:
    raise RuntimeError("expected at most 3 argument(s)")


def other_meaning(grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return grad + x


@pytest.mark.parametrize("own", [None, gone, other_arguments, other_meaning])
def test_both_forms_are_autograds_gradient(own: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    torch_gradients._chosen.cache_clear()
    if own is not None:
        monkeypatch.setattr(torch_gradients, "_own_softmax", own)
        monkeypatch.setattr(torch_gradients, "_own_silu", own)
    generator = torch.Generator().manual_seed(0)
    x, grad = (torch.randn(2, 5, 7, generator=generator) for _ in range(2))
    scores = truth(lambda wide: wide.softmax(-1), x, grad)
    torch.testing.assert_close(softmax_gradient(grad, x.softmax(-1)).double(), scores, rtol=1e-5, atol=1e-6)
    gates = truth(torch.nn.functional.silu, x, grad)
    torch.testing.assert_close(silu_gradient(grad, x).double(), gates, rtol=1e-5, atol=1e-6)
    half = silu_gradient(grad.bfloat16(), x.bfloat16())
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.double(), gates, rtol=2e-2, atol=2e-2)
    chosen = torch_gradients._chosen(torch_gradients._own_silu, plain_silu)
    assert (chosen is plain_silu) == (own is not None)
    torch_gradients._chosen.cache_clear()


def test_this_torch_has_both() -> None:
    assert torch_gradients._chosen(torch_gradients._own_softmax, plain_softmax) is not plain_softmax
