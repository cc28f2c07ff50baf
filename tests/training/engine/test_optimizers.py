"""Optimizers against reference implementations, and the grouping of parameters."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn

from minimind.base.errors import UserError
from minimind.base.hardware import Hardware
from minimind.training.engine import muon, optimizers
from minimind.training.engine.muon import Muon, matrix_update
from minimind.training.engine.optimizers import Lion, build_optimizer, is_body_matrix, parameter_groups

SHAPES = [(8, 4), (4, 8), (6, 6)]


class Tiny(nn.Module):
    """Names like the real model's: an embedding, a body matrix, a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(10, 4)
        self.q_proj = nn.Linear(4, 8, bias=False)
        self.norm = nn.RMSNorm(4)


def matrices(seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in SHAPES]


def run_muon(parameters: list[torch.Tensor], optimizer: torch.optim.Optimizer, steps: int = 3) -> None:
    for step in range(steps):
        for parameter, gradient in zip(parameters, matrices(step + 1), strict=True):
            parameter.grad = gradient
        optimizer.step()


def test_muon_equals_torch_on_whole_matrices() -> None:
    ours, theirs = ([nn.Parameter(m.clone()) for m in matrices(0)] for _ in range(2))
    group = {"params": ours, "use_muon": True, "shapes": SHAPES}
    run_muon(ours, Muon([group], lr=0.02, weight_decay=0.1, compute_dtype=torch.bfloat16))
    run_muon(theirs, torch.optim.Muon(theirs, lr=0.02, weight_decay=0.1, momentum=0.95))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=2e-6)


def test_muon_on_a_padded_flat_partition_equals_whole_matrices() -> None:
    whole = [nn.Parameter(m.clone()) for m in matrices(0)]
    run_muon(whole, Muon([{"params": whole, "use_muon": True, "shapes": SHAPES}], lr=0.02))
    flat = nn.Parameter(torch.cat([*(m.reshape(-1) for m in matrices(0)), torch.zeros(4)]))
    optimizer = Muon([{"params": [flat], "use_muon": True, "shapes": SHAPES}], lr=0.02)
    for step in range(3):
        flat.grad = torch.cat([*(m.reshape(-1) for m in matrices(step + 1)), torch.zeros(4)])
        optimizer.step()
    expected = torch.cat([m.detach().reshape(-1) for m in whole])
    assert torch.equal(flat.detach()[:-4], expected)
    assert torch.equal(flat.detach()[-4:], torch.zeros(4))


@pytest.mark.parametrize("cuts", [(0, 164), (0, 40, 70, 100, 164), (0, 1, 163, 164)])
def test_muon_of_one_shape_together_equals_one_by_one(cuts: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs on a GPU, on any rank's slice, matrices of one shape not beside each other."""
    shapes = [(8, 4), (4, 8), (6, 6), (4, 8), (8, 4)]
    whole = torch.randn(164, generator=torch.Generator().manual_seed(3))
    optimizer = Muon([{"params": [nn.Parameter(whole)], "use_muon": True, "shapes": shapes}])
    expected = optimizer._flat_update(whole, shapes)
    one_by_one = muon._batches
    assert [len(offsets) for _, offsets in one_by_one(shapes, 0, 164, together=True)] == [2, 2, 1]
    monkeypatch.setattr(muon, "_batches", lambda *where, together: one_by_one(*where, together=True))
    updates = []
    for start, end in pairwise(cuts):
        monkeypatch.setattr(muon, "_gather_slices", lambda part, total, start=start: (start, whole))
        updates.append(optimizer._flat_update(whole[start:end], shapes))
    torch.testing.assert_close(torch.cat(updates), expected, rtol=0, atol=1e-6)


def test_muon_update_is_nearly_orthogonal_and_scaled_for_tall_matrices() -> None:
    tall = matrix_update(matrices(5)[0], torch.float32)
    singular = torch.linalg.svdvals(tall) / 2**0.5
    assert singular.min() > 0.5 and singular.max() < 1.5


def test_muons_other_group_is_adamw() -> None:
    ours, theirs = ([nn.Parameter(m.clone()) for m in matrices(0)] for _ in range(2))
    settings = {"lr": 0.01, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
    run_muon(ours, Muon([{"params": ours, "use_muon": False}], **settings))
    run_muon(theirs, torch.optim.AdamW(theirs, **settings))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


def test_lion_by_hand() -> None:
    parameter = nn.Parameter(torch.tensor([1.0, -2.0]))
    optimizer = Lion([{"params": [parameter]}], lr=0.1, betas=(0.9, 0.99), weight_decay=0.5)
    parameter.grad = torch.tensor([3.0, -4.0])
    optimizer.step()
    torch.testing.assert_close(parameter.detach(), torch.tensor([1.0 * 0.95 - 0.1, -2.0 * 0.95 + 0.1]))
    # the momentum is now 0.01 * gradient, so a small opposite gradient does not turn the sign of both
    parameter.grad = torch.tensor([-0.2, 0.5])
    before = parameter.detach().clone()
    optimizer.step()
    assert (parameter.detach() - before * 0.95).sign().tolist() == [-1.0, -1.0]


def test_decay_is_for_body_matrices_only() -> None:
    model = Tiny()
    groups = parameter_groups(model, "AdamW", {"lr": 1.0, "weight_decay": 0.1})
    assert [(len(group["params"]), group["weight_decay"]) for group in groups] == [(1, 0.1), (2, 0.0)]
    assert groups[0]["params"][0] is model.q_proj.weight
    assert not is_body_matrix("model.embed_tokens.weight", model.embed_tokens.weight)
    assert not is_body_matrix("lm_head.weight", model.embed_tokens.weight)


def test_muon_groups_take_their_own_learning_rates() -> None:
    params = {"lr": 0.5, "muon_lr": 0.02, "adam_lr": 0.003, "weight_decay": 0.0}
    groups = parameter_groups(Tiny(), "Muon", params)
    assert [(group["lr"], group["use_muon"]) for group in groups] == [(0.02, True), (0.003, False)]
    assert groups[0]["shapes"] == [(8, 4)]


def test_unknown_type_names_the_choices() -> None:
    with pytest.raises(UserError, match=r"OneBitAdam.*AdamW8bit"):
        build_optimizer(Tiny(), "OneBitAdam", {"lr": 1.0})


@pytest.mark.parametrize("native", [True, False])
def test_muon_iterates_in_bf16_where_the_hardware_multiplies_it(native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimizers, "detect", lambda: Hardware("cpu", fp16=False, bf16=native))
    built = build_optimizer(nn.Linear(4, 4, bias=False), "Muon", {"lr": 0.01, "muon_lr": 0.02})
    assert isinstance(built, Muon)
    assert built.compute_dtype == (torch.bfloat16 if native else torch.float32)
