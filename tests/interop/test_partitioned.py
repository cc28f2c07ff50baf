"""Weights out of a stage-3 checkpoint's files, made by hand; DeepSpeed's own are in tests/test_launch.py."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from minimind.base.defaults import PARTITIONED_STATES
from minimind.base.errors import UserError
from minimind.interop.partitioned import join, part, part_size, read_weights

SHAPES = {"a": (3, 5), "b": (2,), "c": (1,)}


def weights() -> dict[str, torch.Tensor]:
    return {name: torch.randn(*shape).bfloat16() for name, shape in SHAPES.items()}


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 20])
def test_what_is_cut_is_joined_again(ranks: int) -> None:
    """Also where some ranks get only padding."""
    whole = weights()
    flats = [torch.cat([part(value, rank, ranks) for value in whole.values()]) for rank in range(ranks)]
    assert {flat.numel() for flat in flats} == {sum(part_size(value.numel(), ranks) for value in whole.values())}
    assert all(torch.equal(value, whole[name]) for name, value in join(flats, SHAPES).items())


def checkpoint(directory: Path, whole: dict[str, torch.Tensor], ranks: int = 2) -> dict[str, Any]:
    """Its model states; the ranks' files are in ``directory``, in two flat tensors as with a small sub_group_size."""
    groups = [["a"], ["b", "c"]]
    for rank in range(ranks):
        flats = [torch.cat([part(whole[name].float(), rank, ranks) for name in group]) for group in groups]
        for flat in flats:
            flat.requires_grad = True
        states = {"optimizer_state_dict": {"fp32_flat_groups": flats}}
        torch.save(states, directory / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
    shapes = [{name: torch.Size(SHAPES[name]) for name in group} for group in groups]
    empty = {name: torch.empty(0, dtype=torch.bfloat16) for name in whole}
    return {"module": empty, "dp_world_size": ranks, "param_shapes": shapes}


def test_weights_come_back_in_the_training_precision(tmp_path: Path) -> None:
    whole = weights()
    found = read_weights(tmp_path, checkpoint(tmp_path, whole))
    assert found.keys() == whole.keys()
    assert all(torch.equal(value, whole[name]) and not value.requires_grad for name, value in found.items())


class Evil:
    def __reduce__(self) -> Any:
        return os.system, ("true",)


def _lose(directory: Path, saved: dict[str, Any]) -> None:
    (directory / "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt").unlink()


def _poison(directory: Path, saved: dict[str, Any]) -> None:
    torch.save({"optimizer_state_dict": Evil()}, directory / "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt")


def _shorten(directory: Path, saved: dict[str, Any]) -> None:
    saved["param_shapes"][0]["a"] = torch.Size((30, 50))


def _more_ranks(directory: Path, saved: dict[str, Any]) -> None:
    saved["dp_world_size"] = 10**12


def _forget(directory: Path, saved: dict[str, Any]) -> None:
    del saved["param_shapes"]


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_lose, "No such file.*every rank"),
        (_poison, "can't be read as weights only"),
        (_shorten, "does not fit the files"),
        (_more_ranks, "No such file"),
        (_forget, "does not fit the files"),
    ],
)
def test_a_file_that_is_gone_foreign_or_evil_is_one_line(
    spoil: Callable[[Path, dict[str, Any]], None], words: str, tmp_path: Path
) -> None:
    saved = checkpoint(tmp_path, weights())
    spoil(tmp_path, saved)
    with pytest.raises(UserError, match=words) as caught:
        read_weights(tmp_path, saved)
    assert "\n" not in str(caught.value) and (
        PARTITIONED_STATES in str(caught.value) or "rank_1" in str(caught.value) or "rank_2" in str(caught.value)
    )
