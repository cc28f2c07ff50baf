"""Whether compiling pays: by device and length of the run."""

from __future__ import annotations

import pytest

from minimind.base.hardware import Hardware
from minimind.training.engine.compilation import pays

EPOCH = 330e6 * 1.68e8  # FLOPs of MiniMind's pretraining


def gpu(name: str) -> Hardware:
    return Hardware("cuda", fp16=True, bf16=True, name=name)


@pytest.mark.parametrize("name", ["NVIDIA GeForce RTX 3090", "NVIDIA H200"])
def test_an_epoch_is_compiled_and_a_trial_is_not(name: str) -> None:
    trial = 150 * 4096 * 1.68e8
    assert pays(gpu(name), "bf16", EPOCH)
    assert not pays(gpu(name), "bf16", trial)


def test_the_faster_the_card_the_longer_the_run_must_be() -> None:
    flops = 20e6 * 1.68e8
    assert pays(gpu("NVIDIA GeForce RTX 3090"), "fp16", flops)
    assert not pays(gpu("NVIDIA H200"), "fp16", flops)
    assert pays(gpu("NVIDIA H200"), "fp32", 10 * flops)  # fp32 is slow there: the same run takes longer


def test_an_unknown_card_compiles_and_a_cpu_never_does() -> None:
    assert pays(gpu("Some Card"), "bf16", 1.0)
    assert not pays(Hardware("cpu", fp16=False, bf16=True), "bf16", EPOCH)
