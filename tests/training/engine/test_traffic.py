"""What two gloo ranks send in one optimizer step of four micro-batches: counted, at ZeRO stages 0, 1 and 2."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from benchmarks.traffic import RING_FACTOR, Call, Traffic, counting, ring_bytes
from minimind.config.deepspeed import resolve
from minimind.training.engine.engine import Engine
from minimind.training.engine.step import train_step
from tests.support import CPU, DS_CONFIGS, RowBatch, random_rows, run_ranks, split, tiny_config, tiny_model

ACCUMULATION, RANKS = 4, 2
SIZES = {"fp32.json": 4, "bf16.json": 2, "fp16.json": 2, "bf16_zero2.json": 2}  # bytes of a gradient on the wire


def in_phases(engine: Engine, traffic: Traffic) -> Engine:
    """The engine, telling ``traffic`` which micro-batch's forward or backward it is in, or that it updates."""
    forward, update = engine.forward, engine.update
    number = iter(range(ACCUMULATION))

    def counted_forward(batch: Any, last: bool) -> Any:
        traffic.phase = f"micro-batch {next(number)}"
        return forward(batch, last)

    def counted_update() -> Any:
        traffic.phase = "update"
        return update()

    engine.forward, engine.update = counted_forward, counted_update  # type: ignore[method-assign]
    return engine


def rows(engine: Engine) -> list[RowBatch]:
    return split(random_rows(2 * ACCUMULATION * RANKS, seed=0), 2, engine.rank, RANKS)


def one_step(name: str) -> dict[str, Any]:
    """On one rank: payload bytes by phase and collective of the second step, and the number of parameters."""
    config = tiny_config("per_device_train_batch_size=2", f"gradient_accumulation_steps={ACCUMULATION}")
    resolved = resolve(json.loads((DS_CONFIGS / name).read_text()), config, RANKS, CPU, emulate_fp16=True)
    engine = Engine(tiny_model(), resolved, lambda step: 1.0)
    train_step(engine, rows(engine))  # the first step may set things up
    with counting() as traffic:
        train_step(in_phases(engine, traffic), rows(engine))
    large = [call for call in traffic.calls if call.bytes > 64]  # counts, norms and flags are smaller
    return {
        "parameters": sum(p.numel() for p in engine.module.parameters()),
        "calls": [(call.phase, call.name, call.bytes) for call in large],
        "small": sum(call.bytes for call in traffic.calls if call.bytes <= 64),
    }


@pytest.fixture(scope="module")
def measured() -> dict[str, dict[str, Any]]:
    return run_ranks(RANKS, all_configs)[0]


def all_configs() -> dict[str, dict[str, Any]]:
    return {name: one_step(name) for name in SIZES}


@pytest.mark.parametrize("name", ["fp32.json", "bf16.json", "fp16.json"])
def test_stages_0_and_1_reduce_gradients_once_a_step(measured: dict[str, dict[str, Any]], name: str) -> None:
    found, size = measured[name], SIZES[name]
    gradients = [call for call in found["calls"] if call[0].startswith("micro-batch")]
    assert gradients == [(f"micro-batch {ACCUMULATION - 1}", "all_reduce", found["parameters"] * size)]


def test_stage_2_reduces_in_every_micro_batch(measured: dict[str, dict[str, Any]]) -> None:
    # DeepSpeed 0.19.8 all-reduces the bucket (use_multi_rank_bucket_allreduce) where the paper has a reduce-scatter
    found = measured["bf16_zero2.json"]
    gradients = [call for call in found["calls"] if call[0].startswith("micro-batch")]
    assert gradients == [(f"micro-batch {i}", "all_reduce", found["parameters"] * 2) for i in range(ACCUMULATION)]


@pytest.mark.parametrize("name", ["bf16.json", "fp16.json", "bf16_zero2.json"])
def test_partitioned_weights_are_gathered_once(measured: dict[str, dict[str, Any]], name: str) -> None:
    found = measured[name]
    gathered = [size for phase, kind, size in found["calls"] if phase == "update" and kind.startswith("all_gather")]
    padding = 64 * RANKS * SIZES[name]  # by parameter group
    assert found["parameters"] * SIZES[name] <= sum(gathered) <= found["parameters"] * SIZES[name] + padding


def test_stage_0_gathers_nothing(measured: dict[str, dict[str, Any]]) -> None:
    assert all(phase != "update" for phase, _, _ in measured["fp32.json"]["calls"])


@pytest.mark.parametrize("name", list(SIZES))
def test_everything_else_is_a_few_bytes(measured: dict[str, dict[str, Any]], name: str) -> None:
    assert measured[name]["small"] <= 64


def test_a_ring_all_reduce_moves_twice_what_a_gather_does() -> None:
    assert ring_bytes("all_reduce", 100, 4) == 150
    assert ring_bytes("all_gather_into_tensor", 100, 4) == 75
    assert RING_FACTOR["all_reduce"] == 2
    calls = [Call("all_reduce", 100, torch.float32, "a"), Call("broadcast", 100, torch.float32, "b")]
    traffic = Traffic(calls)
    assert traffic.link_bytes(2) == 150
    assert traffic.bytes_in("a") == 100
    assert traffic.by_name() == {"all_reduce": (1, 100), "broadcast": (1, 100)}
