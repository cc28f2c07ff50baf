"""Every word of the linter's tables, one by one: where it belongs, what it is dropped or refused for, its defaults."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest
import torch

from minimind.base.errors import UserError
from minimind.base.hardware import Hardware
from minimind.config.deepspeed import Resolved, resolve
from minimind.config.deepspeed.homes import home_of
from minimind.config.deepspeed.optimizers import OPTIMIZERS, kind_named
from minimind.config.deepspeed.schema import TOP_LEVEL
from minimind.config.run import load_run_config

GPU = Hardware("cuda", fp16=True, bf16=True, name="GPU")
OLD_GPU = Hardware("cuda", fp16=True, bf16=False, name="V100")
PARAMS = {"lr": 1e-3, "weight_decay": 0.01}
TORCHS = ("SGD", "Adagrad", "RMSprop", "Adadelta", "Adamax", "NAdam", "RAdam")

HOMES = {
    "gradient_clipping": ("clip_grad", "clip_norm", "grad_clip", "gradient_clip", "max_grad_norm"),
    "gradient_accumulation_steps": ("accumulation_steps", "grad_accumulation_steps"),
    "train_micro_batch_size_per_gpu": ("micro_batch_size", "per_gpu_batch_size"),
    "train_batch_size": ("batch_size",),
    "zero_optimization": ("zero_stage",),
    "fp16": ("mixed_precision", "loss_scaling"),
    "tensorboard": ("monitor_config",),
    "comms_logger": ("comms_config",),
    "data_types": ("gradient_accumulation_dtype",),
    "optimizer": ("optimizer_params",),
    "scheduler": ("scheduler_params",),
}


def lint(config: dict[str, Any], hardware: Hardware = GPU, *settings: str, **options: Any) -> Resolved:
    whole = {"gradient_clipping": 1.0, "optimizer": {"type": "AdamW", "params": PARAMS}, **config}
    return resolve(whole, load_run_config(None, settings), 1, hardware, **options)


def refusal(config: dict[str, Any]) -> str:
    with pytest.raises(UserError) as refused:
        lint(config)
    return str(refused.value)


@pytest.mark.parametrize(("home", "word"), [(home, word) for home, words in HOMES.items() for word in words])
def test_another_frameworks_word_is_told_its_home(home: str, word: str) -> None:
    assert f'"{home}"' in home_of(word, "")
    assert set(re.findall(r'"(\w+)"', home_of(word, ""))) & TOP_LEVEL.keys()
    (said,) = [each.advice for each in lint({word: 1}).findings if word in each.message]
    assert home in said


@pytest.mark.parametrize(
    ("word", "home"), [("min_lr", "min_lr_ratio"), ("max_lr", "warmup_max_lr"), ("warmup_steps", "warmup_num_steps")]
)
def test_a_schedules_word_is_told_its_home(word: str, home: str) -> None:
    assert home in home_of(word, "")


@pytest.mark.parametrize("name", ["OneBitAdam", "OneBitLamb", "ZeroOneAdam", "OneBitAdamW"])
def test_the_1_bit_optimizers_are_refused_as_removed(name: str) -> None:
    assert "removed the 1-bit optimizers" in refusal({"optimizer": {"type": name, "params": PARAMS}})


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        (kind, key)
        for kind, entry in OPTIMIZERS.items()
        for key in entry.params
        if entry.params[key] == "number" and key != "dampening"  # which torch lets be any number
    ],
)
def test_no_number_of_an_optimizer_may_be_negative(kind: str, key: str) -> None:
    said = refusal({"optimizer": {"type": kind, "params": {**PARAMS, key: -0.5}}})
    assert f"optimizer.params.{key}: -0.5 must be " in said


@pytest.mark.parametrize("key", ["lr", "eps"])
def test_rates_and_eps_may_not_be_zero(key: str) -> None:
    assert "must be above 0" in refusal({"optimizer": {"type": "AdamW", "params": {**PARAMS, key: 0}}})


@pytest.mark.parametrize("name", TORCHS)
def test_torchs_optimizers_have_torchs_defaults_and_state(name: str) -> None:
    kind = getattr(torch.optim, name)
    entry, defaults = OPTIMIZERS[name], inspect.signature(kind).parameters
    assert kind_named(name) == name
    assert entry.learning_rate == defaults["lr"].default
    assert entry.sft_learning_rate == pytest.approx(0.1 * entry.learning_rate)
    assert all(value == defaults[key].default for key, value in entry.absent.items())
    assert entry.params.keys() - {"fused"} <= defaults.keys() - {"params"}  # taken everywhere, handed on nowhere
    weight = torch.nn.Parameter(torch.ones(64))
    weight.grad = torch.ones(64)
    optimizer = kind([weight], **({"momentum": 0.9} if name == "SGD" else {}))
    optimizer.step()
    moments = [value for value in optimizer.state[weight].values() if torch.is_tensor(value) and value.numel() == 64]
    assert sum(value.nbytes for value in moments) / 64 == entry.state_bytes[0]


def test_bf16_on_a_gpu_without_it_names_the_json_that_is_fast_there() -> None:
    (slow,) = [each for each in lint({"bf16": {"enabled": True}}, OLD_GPU).findings if each.code == "bf16-slow"]
    assert "/fp16.json" in slow.advice and "V100" in slow.message


@pytest.mark.parametrize(
    ("other", "precision"),
    [({}, "bf16"), ({"fp16": {"enabled": True}}, "fp16"), ({"fp16": {"enabled": False}}, "bf16")],
)
def test_autocast_is_its_section_unless_another_one_is_open(other: dict[str, Any], precision: str) -> None:
    resolved = lint({"torch_autocast": {"enabled": True, "dtype": "bfloat16"}, **other})
    assert resolved.precision == precision
    assert "torch_autocast" not in resolved.config


@pytest.mark.parametrize("word", ["backoff_factor", "decr_ratio", "growth_factor", "incr_ratio"])
def test_words_for_a_fixed_part_of_the_loss_scaler_are_dropped_and_said(word: str) -> None:
    resolved = lint({"fp16": {"enabled": True, word: 0.5}})
    (dropped,) = [each for each in resolved.findings if f"fp16.{word}" in each.message]
    shrinks = word in ("backoff_factor", "decr_ratio")
    assert ("halved at an overflow" in dropped.message) == shrinks
    assert ("doubled after" in dropped.message) != shrinks
    assert word not in resolved.config["fp16"]


@pytest.mark.parametrize("word", ["enabled", "backend", "kwargs", "disable", "mode", "fullgraph", "dynamic", "options"])
def test_options_of_the_old_compile_section_are_dropped_and_said(word: str) -> None:
    value: Any = {} if word in ("kwargs", "options") else False
    findings = lint({"compile": {word: value}}).findings
    assert any(f"compile.{word}" in each.message and "`compile: on`" in each.message for each in findings) or word in (
        key for key in TOP_LEVEL["compile"]
    )


def test_an_auto_that_nobody_fills_is_said_once_and_by_run() -> None:
    """Two configs share no list: what one left to DeepSpeed is not said of the next."""
    config = {"zero_optimization": {"stage": 2, "overlap_comm": "auto"}}
    first, second = (
        [each.message for each in lint(config).findings if "overlap_comm" in each.message] for _ in range(2)
    )
    assert first == second
