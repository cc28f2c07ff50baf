"""Leftovers of older DeepSpeed versions: dropped and said where nothing changes, refused where training would."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from minimind.base.errors import UserError
from minimind.base.hardware import Hardware
from minimind.config.deepspeed import Resolved, resolve, schema
from minimind.config.run import load_run_config

GPU = Hardware("cuda", fp16=True, bf16=True)


def take(config: dict[str, Any], world: int = 1, **options: Any) -> Resolved:
    """The resolved config, which the installed DeepSpeed must parse too."""
    from deepspeed.runtime.config import DeepSpeedConfig

    resolved = resolve(config, load_run_config(None), world, GPU, **options)
    DeepSpeedConfig({**resolved.config, "train_batch_size": resolved.micro_batch_size * resolved.accumulation})
    return resolved


def refused(config: dict[str, Any], **options: Any) -> str:
    with pytest.raises(UserError) as caught:
        resolve(config, load_run_config(None), 1, GPU, **options)
    return str(caught.value)


def said(resolved: Resolved, code: str) -> list[str]:
    return [finding.message for finding in resolved.findings if finding.code == code]


SCALER = {"loss_scale": 0, "initial_scale_power": 16, "loss_scale_window": 1000, "hysteresis": 2, "min_loss_scale": 1}
ADAMW = {"type": "AdamW", "params": {"lr": 1e-3, "max_grad_norm": 0.3}}


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"bf16": {"enabled": True, **SCALER}}, [*(f"bf16.{key}" for key in SCALER), "no loss scale"]),
        ({"bfloat16": {"enabled": True, "auto_cast": False}}, ["bfloat16.auto_cast"]),
        ({"fp16": {"enabled": True, "opt_level": "O2"}}, ["fp16.opt_level", "fp32 masters"]),
        ({"fp16": {"enabled": "auto", "fp16_opt_level": "O2"}}, ["fp16.fp16_opt_level"]),
        ({"compile": {"enabled": True, "backend": "inductor"}}, ["compile.enabled, compile.backend", "compile: on"]),
        ({"optimizer": ADAMW, "gradient_clipping": 0.5}, ["optimizer.params.max_grad_norm", "clips (0.5)"]),
        ({"optimizer": ADAMW}, ["optimizer.params.max_grad_norm", "DeepSpeed's default 1.0"]),
        ({"fp16": {"enabled": True, "min_loss_scale": 1e-5}}, ["min_loss_scale 1e-05", "goes down to 1"]),
        ({"fp16": {"enabled": True, "min_loss_scale": "0.5"}}, ["min_loss_scale 0.5", "goes down to 1"]),
        ({"sparse_gradients": True}, ["sparse_gradients", "same sum"]),
        ({"zero_optimization": {"stage": 1, "find_unused_parameters": True}}, ["find_unused_parameters", "older"]),
        ({"zero_optimization": {"allgather_size": 5e8}}, ["allgather_size", "allgather_bucket_size is its name"]),
        ({"flops_profiler": {"enabled": False, "end_profile_step": 6}}, ["end_profile_step", "profile_step"]),
        ({"seq_parallel_comm_data_type": "fp32"}, ["seq_parallel_comm_data_type", "older"]),
        ({"zero_optimization": {"stage": 2, "verbose": True}}, ["zero_optimization.verbose", "refuses it"]),
        ({"fp16": {"enabled": False, "fp16_scale_tolerance": 0.25}}, ["fp16_scale_tolerance", "refuses it"]),
        ({"nebula": {"enabled": True}}, ["nebula", "written by this trainer"]),
        ({"zero_optimization": {"stage": 2, "mics_shard_size": 8}}, ["mics_shard_size", "all ranks"]),
        ({"sparse_attention": {"mode": "dense", "block": 16}}, ["sparse_attention", "it is off"]),
        (
            {"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 5, "total_num_steps": 50}}},
            ["scheduler.params.total_num_steps", "WarmupLR has no such"],
        ),
        (
            {"scheduler": {"type": "WarmupCosineLR", "params": {"total_num_steps": 50, "warmup_max_lr": 1}}},
            ["warmup_max_lr", "the optimizer's lr"],
        ),
    ],
)
def test_what_means_nothing_any_more_is_dropped_in_one_finding(config: dict[str, Any], words: list[str]) -> None:
    (message,) = said(take(config), "key-dropped")
    assert all(word in message for word in [*words, "dropped"]), message
    assert "--strict" in refused(config, strict=True)


@pytest.mark.parametrize("key", sorted(schema.REMOVED))
@pytest.mark.parametrize("off", [{"enabled": False}, {}, False, None, {"layers": {"enabled": False, "rate": 3}}])
def test_a_removed_block_that_is_off_is_dropped(key: str, off: Any) -> None:
    if key == "sparse_attention" and off:
        return  # it never had a switch: a block was on
    resolved = take({key: off})
    assert key not in resolved.config
    assert key in said(resolved, "key-dropped")[0]


@pytest.mark.parametrize(
    ("config", "word"),
    [
        ({"curriculum_learning": {"enabled": True, "curriculum_type": "seqlen"}}, "sample order"),
        ({"progressive_layer_drop": {"enabled": True, "theta": 0.5}}, "layer dropping"),
        ({"amp": {"enabled": "true", "opt_level": "O1"}}, "fp16 or bf16"),
        ({"elasticity": {"enabled": True}}, "batch sizes"),
        ({"sparse_attention": {"mode": "fixed"}}, "attention belongs"),
        ({"compression_training": {"weight_quantization": {"shared_parameters": {"enabled": True}}}}, "compression"),
        ({"quantize_training": {"enabled": True}}, "quantization"),
        ({"zero_optimization": {"stage": 1, "zeropp_loco_param": {"err_beta": 0.8}}}, "LoCo"),
    ],
)
def test_a_removed_block_that_trained_differently_is_refused(config: dict[str, Any], word: str) -> None:
    message = refused(config)
    assert word in message and "8489" in message and "train differently" in message


def test_a_size_with_a_fraction_is_rounded_down() -> None:
    resolved = take({"zero_optimization": {"stage": 2, "stage3_prefetch_bucket_size": 3774873.6}})
    assert resolved.config["zero_optimization"]["stage3_prefetch_bucket_size"] == 3774873
    assert "3774873 is used" in said(resolved, "size-rounded")[0]


@pytest.mark.parametrize("stage", [True, "1", 1])
def test_a_stage_is_read_as_pydantic_reads_it(stage: Any) -> None:
    assert take({"zero_optimization": {"stage": stage}}).stage == 1


@pytest.mark.parametrize(
    ("words", "taken"),
    [
        ({"init_scale": 65536.0, "growth_interval": 500}, {"initial_scale_power": 16, "loss_scale_window": 500}),
        ({"scale_init": 5000, "decr_every_n_nan_or_inf": 1}, {"initial_scale_power": 12, "hysteresis": 1}),
        ({"backoff_factor": 0.25, "growth_factor": 2.0}, {}),
    ],
)
def test_other_frameworks_words_for_the_loss_scaler(words: dict[str, float], taken: dict[str, int]) -> None:
    resolved = take({"fp16": {"enabled": True, **words}, "zero_optimization": {"stage": 1}})
    assert {key: value for key, value in resolved.config["fp16"].items() if key != "enabled"} == taken
    messages = "".join(said(resolved, "word-translated") + said(resolved, "key-dropped"))
    assert all(f"fp16.{word}" in messages for word in words)
    assert ("power of two below 5000" in messages) == ("scale_init" in words)


# ------------------------------------------------------------------ a place where DeepSpeed ignores them


@pytest.mark.parametrize(
    ("config", "code", "place"),
    [
        ({"optimizer": {"type": "AdamW", "eps": 1e-6, "params": {"lr": 1e-3}}}, "key-misplaced", "optimizer.params"),
        ({"scheduler": {"type": "WarmupLR", "warmup_num_steps": 5}}, "key-misplaced", "scheduler.params"),
        ({"min_lr": 5e-7}, "key-misplaced", "min_lr_ratio"),
        ({"max_grad_norm": 0.5}, "key-misplaced", '"gradient_clipping"'),
        ({"offload_optimizer": {"device": "cpu"}}, "key-misplaced", '"zero_optimization"'),
        ({"initial_scale_power": 8}, "key-misplaced", '"fp16"'),
        ({"num_train_epochs": 3}, "key-misplaced", "in the YAML"),
        ({"grad_accum_dtype": "fp32"}, "key-misplaced", '"data_types"'),
        ({"checkpoint": {"gradient_clipping": 1}}, "key-misplaced", "top level"),
        ({"cuda_visible_devices": "0"}, "key-ignored", "delete it"),
        ({"monitoring": {"enabled": True}}, "key-ignored", "delete it"),
    ],
)
def test_a_key_that_deepspeed_ignores_is_said_with_its_place(config: dict[str, Any], code: str, place: str) -> None:
    resolved = take(config)
    (finding,) = [finding for finding in resolved.findings if finding.code == code]
    assert place in finding.advice and next(iter(config)) in finding.message
    assert resolved.gradient_clipping == 1.0 and not resolved.offload
    assert "--strict" in refused(config, strict=True)


@pytest.mark.parametrize(
    "key", ["gradient_acumulation_steps", "grad_clipping", "bf_16", "zero_optimisation", "train_batch", "optimiser"]
)
def test_a_misspelling_stays_an_error(key: str) -> None:
    assert "did you mean" in refused({key: 1})


def test_a_key_has_its_line(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text('{\n "min_lr": 1e-6,\n "bf16": {"enabled": true,\n  "hysteresis": 2}}')
    messages = [finding.message for finding in resolve(path, load_run_config(None), 1, GPU).findings]
    assert any(message.startswith(f"{path}:2: min_lr") for message in messages)
    assert any(message.startswith(f"{path}:4: bf16.hysteresis") for message in messages)


# ------------------------------------------------------------------ what is not used, and batches for other ranks


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"checkpoint": {"use_node_local_storage": True}}, "one directory"),
        ({"checkpoint": {"load_universal": True}}, "--resume"),
        ({"checkpoint": {"writer": {"type": "fast"}}}, "verified checkpoints"),
        ({"prescale_gradients": True, "fp16": {"enabled": True}}, "same mean"),
        ({"prescale_gradients": True, "zero_optimization": {"stage": 2}}, "same mean"),
        ({"gradient_predivide_factor": 2.0, "zero_optimization": {"stage": 1}}, "same mean"),
        ({"hybrid_engine": {"enabled": True}}, "nothing is generated"),
        ({"compile": {"deepcompile": True}}, "engine.compile()"),
        ({"bf16": {"enabled": True, "immediate_grad_update": True}}, "same sum"),
        ({"zero_optimization": {"stage": 2, "load_from_fp32_weights": False}}, "exact"),
    ],
)
def test_a_setting_that_changes_no_update_is_dropped(config: dict[str, Any], words: str) -> None:
    (message,) = said(take(config), "setting-dropped")
    assert words in message
    assert "--strict" in refused(config, strict=True)


def test_prescaling_without_zero_is_deepspeeds() -> None:
    assert take({"prescale_gradients": True}).config["prescale_gradients"] is True


def test_data_efficiency_is_said_where_it_would_change_the_data_in_deepspeeds_loader() -> None:
    off = {"enabled": True, "data_sampling": {"enabled": True, "curriculum_learning": {}}}
    assert not said(take({"data_efficiency": off}), "setting-dropped")
    curriculum = {"enabled": True, "curriculum_learning": {"enabled": True}}
    config = {"data_efficiency": {"enabled": True, "data_sampling": curriculum}}
    (message,) = said(take(config), "setting-dropped")
    assert "own data loader" in message and "every token is trained" in message
    assert "--strict" in refused(config, strict=True)


@pytest.mark.parametrize(
    "config",
    [
        {"comment": "small model"},
        {"checkpoint-factor": 10000},
        {"checkpointing": {"enabled": True, "save_n_recent_checkpoints": 5}},
        {"micro_batch_size_per_gpu": 4},
        {"checkpoint": {"tag_validation_enabled": True}},
    ],
)
def test_what_resembles_a_key_and_can_not_be_it_is_no_misspelling(config: dict[str, Any]) -> None:
    resolved = take(config)
    assert said(resolved, "key-ignored") or said(resolved, "key-misplaced")
    assert "did you mean" in refused({"checkpoints": {"tag_validation": "Fail"}})


@pytest.mark.parametrize(("dtype", "precision"), [({}, "bf16"), ({"dtype": "float16"}, "fp16")])
def test_autocast_runs_as_the_section_of_its_dtype(dtype: dict[str, str], precision: str) -> None:
    resolved = take({"torch_autocast": {"enabled": True, **dtype}})
    assert resolved.precision == precision and "torch_autocast" not in resolved.config
    assert said(resolved, "autocast-as-section")


@pytest.mark.parametrize("world", [1, 2, 3])
def test_a_batch_for_other_ranks_keeps_what_each_rank_does(world: int) -> None:
    resolved = take(
        {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2}, world
    )
    assert (resolved.micro_batch_size, resolved.accumulation, resolved.train_batch_size) == (4, 2, 8 * world)
    (message,) = said(resolved, "batch-other-ranks")
    assert "written for 8" in message and f"{8 * world} rows" in message


@pytest.mark.parametrize("kind", ["Lamb", "Adafactor", "LBFGS", "SparseAdam", "MuAdam"])
def test_an_optimizer_that_is_not_here_has_its_reason(kind: str) -> None:
    assert f'"{kind}" is not supported: it' in refused({"optimizer": {"type": kind}})


@pytest.mark.parametrize(
    ("config", "words", "path", "taken"),
    [
        (
            {"zero_optimization": {"stage": 3, "cpu_offload_params": True}},
            ["cpu_offload_params", "taken as offload_param"],
            "zero_optimization.offload_param.device",
            "cpu",
        ),
        (
            {"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 0}}},
            ["warmup_num_steps 0", "DeepSpeed makes 2"],
            "scheduler.params.warmup_num_steps",
            1,
        ),
        (
            {"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 3, "warmup_type": "Linear"}}},
            ['"Linear" is log', "any other word"],
            "scheduler.params.warmup_type",
            "log",
        ),
    ],
)
def test_words_of_older_versions_are_taken_as_deepspeed_takes_them(
    config: dict[str, Any], words: list[str], path: str, taken: Any
) -> None:
    resolved = take(config)
    (message,) = said(resolved, "word-translated")
    assert all(word in message for word in words), message
    found: Any = resolved.config
    for name in path.split("."):
        found = found[name]
    assert found == taken
    assert "--strict" in refused(config, strict=True)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"zero_optimization": {"offload_optimizer": {"device": "cpu", "buffer_size": 1}}}, "buffer_size: DeepSpeed"),
        (
            {"zero_optimization": {"communication_data_type": "fp32"}},
            "communication_data_type: DeepSpeed 0.19.8 refuses",
        ),
    ],
)
def test_a_key_that_deepspeed_refuses_at_its_place_is_not_used_and_its_place_named(
    config: dict[str, Any], words: str
) -> None:
    (message,) = said(take(config), "key-misplaced")
    assert words in message
