"""What gloo ranks send in one optimizer step of four micro-batches: counted by ZeRO stage, beside the formulas."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from benchmarks.paper import payloads
from benchmarks.step_traffic import SMALL, STAGES, compared, on_ranks
from benchmarks.traffic import RING_FACTOR, Call, Traffic, ring_bytes

ACCUMULATION = 4
SIZES = {"fp32": 4, "bf16": 2, "fp16": 2, "bf16_zero2": 2}  # bytes of a gradient on the wire
RANKS = [2, *(pytest.param(ranks, marks=pytest.mark.soak) for ranks in (4, 8))]


@cache
def measured(ranks: int) -> dict[str, tuple[int, Traffic]]:
    return on_ranks(ranks, [*SIZES, "bf16_zero3"], ACCUMULATION)


def large(traffic: Traffic) -> list[Call]:
    """Without counts, norms and flags."""
    return [call for call in traffic.calls if call.bytes > SMALL]


def gradients(ranks: int, name: str) -> tuple[int, list[tuple[str, str, int]]]:
    """The number of parameters, and the large calls of forward and backward passes."""
    parameters, traffic = measured(ranks)[name]
    calls = [(call.phase, call.name, call.bytes) for call in large(traffic) if call.phase.startswith("micro-batch")]
    return parameters, calls


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("name", ["fp32", "bf16", "fp16"])
def test_stages_0_and_1_reduce_gradients_once_a_step(ranks: int, name: str) -> None:
    parameters, calls = gradients(ranks, name)
    assert calls == [(f"micro-batch {ACCUMULATION - 1}", "all_reduce", parameters * SIZES[name])]


@pytest.mark.parametrize("ranks", RANKS)
def test_stage_2_reduces_in_every_micro_batch(ranks: int) -> None:
    # DeepSpeed 0.19.8 all-reduces the bucket (use_multi_rank_bucket_allreduce) where the paper has a reduce-scatter
    parameters, calls = gradients(ranks, "bf16_zero2")
    assert calls == [(f"micro-batch {i}", "all_reduce", parameters * 2) for i in range(ACCUMULATION)]


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("name", ["bf16", "fp16", "bf16_zero2"])
def test_partitioned_weights_are_gathered_once(ranks: int, name: str) -> None:
    parameters, traffic = measured(ranks)[name]
    gathered = sum(c.bytes for c in large(traffic) if c.phase == "update" and c.name.startswith("all_gather"))
    padding = 64 * ranks * SIZES[name]  # by parameter group
    assert parameters * SIZES[name] <= gathered <= parameters * SIZES[name] + padding


@pytest.mark.parametrize("ranks", RANKS)
def test_stage_3_scatters_gradients_and_gathers_weights_up_to_twice_in_every_micro_batch(ranks: int) -> None:
    parameters, calls = gradients(ranks, "bf16_zero3")
    matrices = parameters - 5 * 32  # the norms' gains stay whole: below stage3_param_persistence_threshold
    for index in range(ACCUMULATION):
        here = [(name, size) for phase, name, size in calls if phase == f"micro-batch {index}"]
        scattered = sum(size for name, size in here if name.startswith("reduce_scatter"))
        gathered = sum(size for name, size in here if name.startswith("all_gather"))
        assert scattered == 2 * matrices
        assert 1.5 * 2 * matrices < gathered < 2 * 2 * matrices  # the embedding and the last weights once


@pytest.mark.parametrize("ranks", RANKS)
def test_stage_0_gathers_nothing(ranks: int) -> None:
    assert all(call.phase != "update" for call in large(measured(ranks)["fp32"][1]))


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("name", list(SIZES))
def test_everything_else_is_a_few_bytes(ranks: int, name: str) -> None:
    assert sum(call.bytes for call in measured(ranks)[name][1].calls if call.bytes <= SMALL) <= 64


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("name", ["fp32", "bf16", "bf16_zero2"])
def test_the_formulas_are_what_is_counted(ranks: int, name: str) -> None:
    parameters, traffic = measured(ranks)[name]
    computed = payloads(STAGES[name], parameters, ACCUMULATION)
    for kind, size in computed.items():
        counted = sum(call.bytes for call in large(traffic) if call.name.startswith(kind))
        assert counted == pytest.approx(size, rel=64 * ranks / parameters), kind


def test_a_line_of_the_comparison() -> None:
    traffic = Traffic([Call("all_reduce", 200, torch.bfloat16, ""), Call("all_gather_single", 220, torch.bfloat16, "")])
    traffic.calls.append(Call("all_reduce", 24, torch.float64, ""))
    assert compared("bf16", 100, traffic, 4) == ["200 / 200 = 1.000", "220 / 200 = 1.100", "0 / 0", "24"]


def test_a_ring_all_reduce_moves_twice_what_a_gather_does() -> None:
    assert ring_bytes("all_reduce", 100, 4) == 150
    assert ring_bytes("all_gather_into_tensor", 100, 4) == 75
    assert RING_FACTOR["all_reduce"] == 2
    calls = [Call("all_reduce", 100, torch.float32, "a"), Call("broadcast", 100, torch.float32, "b")]
    traffic = Traffic(calls)
    assert traffic.link_bytes(2) == 150
    assert traffic.bytes_in("a") == 100
    assert traffic.by_name() == {"all_reduce": (1, 100), "broadcast": (1, 100)}
