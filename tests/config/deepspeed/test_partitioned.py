"""ZeRO stage 3 in a DeepSpeed JSON: what is filled, dropped, and refused."""

from __future__ import annotations

from typing import Any

import pytest

from minimind.base.errors import UserError
from minimind.base.hardware import Hardware
from minimind.config.deepspeed import Resolved, resolve
from minimind.config.run import load_run_config

GPU = Hardware("cuda", fp16=True, bf16=True, name="RTX 3090")


def partitioned(world: int = 1, strict: bool = False, **zero: Any) -> Resolved:
    config = {"gradient_clipping": 1.0, "bf16": {"enabled": True}, "zero_optimization": {"stage": 3, **zero}}
    return resolve(config, load_run_config(None), world, GPU, strict=strict)


def test_stage_3_with_both_offloads_is_taken() -> None:
    resolved = partitioned(offload_optimizer={"device": "cpu"}, offload_param={"device": "cpu", "pin_memory": True})
    assert (resolved.stage, resolved.offload, resolved.offload_param) == (3, True, True)
    assert resolved.config["zero_optimization"]["offload_param"]["device"] == "cpu"
    old = partitioned(cpu_offload=True, cpu_offload_param=True)
    assert (old.stage, old.offload, old.offload_param) == (3, True, True)
    here = partitioned(offload_param={"device": "none"})
    assert not here.offload_param and "offload_param" not in here.config["zero_optimization"]


@pytest.mark.parametrize("prefix", ["", "stage3_"])
def test_auto_is_what_hugging_face_fills_in(prefix: str) -> None:
    """transformers/integrations/deepspeed.py ``trainer_config_finalize``."""
    names = ("prefetch_bucket_size", "param_persistence_threshold")
    resolved = partitioned(reduce_bucket_size="auto", **{f"{prefix}{name}": "auto" for name in names})
    zero, hidden = resolved.config["zero_optimization"], load_run_config(None).model.hidden_size
    assert [zero[f"{prefix}{name}"] for name in names] == [int(0.9 * hidden * hidden), 10 * hidden]
    assert zero["reduce_bucket_size"] == hidden * hidden
    assert "auto-default" not in [finding.code for finding in resolved.findings]


@pytest.mark.parametrize(
    ("zero", "word"),
    [
        ({"zero_hpz_partition_size": 0}, "does not divide"),
    ],
)
def test_refusals_are_true_of_stage_3(zero: dict[str, Any], word: str) -> None:
    with pytest.raises(UserError, match=word):
        partitioned(**zero)


@pytest.mark.parametrize(
    ("zero", "word"),
    [
        ({"offload_optimizer": {"device": "nvme", "nvme_path": "/d"}}, "the optimizer's states are kept in CPU memory"),
        ({"offload_param": {"device": "nvme", "nvme_path": "/d"}}, "the weights are kept in CPU memory"),
        ({"offload_optimizer": {"device": "cpu", "ratio": 0.3}}, "all states are in CPU memory"),
        ({"offload_optimizer": {"device": "cpu", "super_offload": True}}, "updated after it"),
        ({"zero_quantized_weights": True}, "8 bits"),
        ({"zero_quantized_gradients": True}, "4 bits"),
    ],
)
def test_what_would_only_make_it_rougher_is_dropped_aloud(zero: dict[str, Any], word: str) -> None:
    resolved = partitioned(**zero)
    (finding,) = [finding for finding in resolved.findings if finding.code == "setting-dropped"]
    assert word in finding.message
    kept = resolved.config["zero_optimization"]
    assert not {"zero_quantized_weights", "zero_quantized_gradients"} & kept.keys()
    assert not {"ratio", "super_offload"} & kept.get("offload_optimizer", {}).keys()
    assert (resolved.offload, resolved.offload_param) == ("offload_optimizer" in zero, "offload_param" in zero)
    with pytest.raises(UserError, match="--strict"):
        partitioned(strict=True, **zero)


@pytest.mark.parametrize("world", [1, 2])
def test_a_second_partition_is_no_larger_than_the_ranks_as_in_deepspeed(world: int) -> None:
    resolved = partitioned(world=world, zero_hpz_partition_size=8)
    assert resolved.config["zero_optimization"]["zero_hpz_partition_size"] == world
    assert "hpz-other-ranks" in [finding.code for finding in resolved.findings]


def test_a_second_partition_needs_ranks_that_it_divides() -> None:
    assert partitioned(world=4, zero_hpz_partition_size=2).stage == 3
    with pytest.raises(UserError, match="3 does not divide the 4"):
        partitioned(world=4, zero_hpz_partition_size=3)


def test_what_means_nothing_for_this_model_is_dropped_aloud() -> None:
    resolved = partitioned(leaf_module={"classes": ["Experts"]})
    assert "leaf_module" not in resolved.config["zero_optimization"]
    assert "leaf_module" in next(f.message for f in resolved.findings if f.code == "section-unused")
