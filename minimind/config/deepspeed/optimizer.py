"""The ``optimizer`` section -> ``OptimizerSpec``, which ``engine.py`` turns into an optimizer with decay
groups.

Known weakness: only the optimizers whose update is tested here are accepted; DeepSpeed itself takes any
torch.optim name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from minimind.base.defaults import DEEPSPEED_EPS, DEEPSPEED_LR, DEEPSPEED_WEIGHT_DECAY, LION_BETAS, learning_rate
from minimind.base.problems import nearest
from minimind.config.deepspeed.agreement import settle, wins
from minimind.config.deepspeed.lint import AUTO, Draft, check_params
from minimind.config.deepspeed.schema import OPTIMIZERS
from minimind.config.run import RunConfig

RATES = ("lr", "muon_lr", "adam_lr")  # params that are learning rates


@dataclass(frozen=True)
class OptimizerSpec:
    """``type`` is one of AdamW, Adam (decay as L2), AdamW8bit, Lion, Muon; ``params`` always holds lr and
    weight_decay, and betas and eps where the type has them. ``betas`` is a tuple.
    """

    type: str
    params: dict[str, Any]


_ALIASES = {
    "adam": "AdamW",
    "adamw": "AdamW",
    "adamw8bit": "AdamW8bit",
    "adam8bit": "AdamW8bit",
    "lion": "Lion",
    "muon": "Muon",
    "fusedadam": "AdamW",
    "deepspeedcpuadam": "AdamW",
}
_REMOVED = {"onebitadam", "onebitlamb", "zerooneadam", "onebitadamw"}


def resolve_optimizer(
    draft: Draft, run: RunConfig, fallback: Mapping[str, float], offload: bool
) -> OptimizerSpec | None:
    """The optimizer to build; None with the reason among the problems. Without a section: AdamW from the YAML."""
    if not draft.get("optimizer.type"):
        draft.find(
            "optimizer-default",
            'no "optimizer" in the JSON: AdamW with the values of the YAML and the command line, else the defaults',
            'add an "optimizer" section to own them in the JSON',
        )
        draft.values["optimizer"] = {
            "type": "AdamW",
            "params": dict.fromkeys(("lr", "betas", "eps", "weight_decay"), AUTO),
        }
    name = str(draft.get("optimizer.type"))
    kind = _kind(draft, name)
    if kind is None:
        return None
    check_params(draft, "optimizer", OPTIMIZERS[kind], kind)
    params = draft.get("optimizer.params") or {}
    if not isinstance(params, dict):
        return None
    if kind == "AdamW" and params.get("adam_w_mode") is False:
        kind = "Adam"
    _fill(draft, run, kind, params, fallback)
    _check_ranges(draft, params)
    if offload and kind != "AdamW" and kind != "Adam":
        draft.problem(
            "zero_optimization.offload_optimizer.device",
            f"{kind} has no CPU form that this trainer has proven: use AdamW, or delete offload_optimizer",
        )
    clean = {key: value for key, value in params.items() if value != AUTO and key not in _ENGINE_CHOICES}
    if isinstance(clean.get("betas"), list):
        clean["betas"] = tuple(clean["betas"])
    return OptimizerSpec(kind, clean)


# How the update is computed, not what it is: the engine chooses by device and offload
_ENGINE_CHOICES = {
    "torch_adam",
    "adam_w_mode",
    "fused",
    "foreach",
    "bias_correction",
    "amsgrad",
    "set_grad_none",
    "fp32_optimizer_states",
}


def _kind(draft: Draft, name: str) -> str | None:
    plain = name.lower().replace("_", "").replace("-", "")
    if plain in _ALIASES:
        return _ALIASES[plain]
    if plain in _REMOVED:
        draft.problem("optimizer.type", f'"{name}": DeepSpeed removed the 1-bit optimizers: use AdamW')
    else:
        draft.problem(
            "optimizer.type",
            f'"{name}" is not one of the optimizers whose update is proven here'
            f"{nearest(name, OPTIMIZERS)}: {', '.join(OPTIMIZERS)}",
        )
    return None


def _fill(draft: Draft, run: RunConfig, kind: str, params: dict[str, Any], fallback: Mapping[str, float]) -> None:
    """Hugging Face fills "auto" only; a key that is absent takes the YAML's value too, else DeepSpeed's
    default.
    """
    unset: list[str] = []
    automatic = {"learning_rate": learning_rate(draft.kind, kind), **fallback}
    for key, yaml_name, default in (
        ("lr", "learning_rate", DEEPSPEED_LR),
        ("eps", "adam_epsilon", DEEPSPEED_EPS),
        # FusedAdam's; torch's AdamW has 0.01, and what absence means must not depend on the class
        ("weight_decay", "weight_decay", DEEPSPEED_WEIGHT_DECAY),
    ):
        if key in OPTIMIZERS[kind]:
            value = automatic[yaml_name] if params.get(key) == AUTO else default
            unset += _fill_one(draft, run, params, key, yaml_name, value)
    if "betas" in OPTIMIZERS[kind]:
        adam = (fallback["adam_beta1"], fallback["adam_beta2"])
        _fill_betas(draft, run, params, LION_BETAS if kind == "Lion" else adam)
    if unset:
        message = f"set in no place, JSON, YAML or command line: {', '.join(unset)}"
        draft.find("optimizer-values", message, "set learning_rate, adam_epsilon, weight_decay in the YAML")


def _fill_one(
    draft: Draft, run: RunConfig, params: dict[str, Any], key: str, yaml_name: str, default: float
) -> list[str]:
    """Fill or compare one parameter; returns what nobody set, as text."""
    value = settle(draft, run, f"optimizer.params.{key}", yaml_name)
    params[key] = default if value is None else value
    return [f"{key} = {default:g}"] if value is None else []


def _fill_betas(draft: Draft, run: RunConfig, params: dict[str, Any], default: tuple[float, float]) -> None:
    given = params.get("betas")
    wanted = (run.adam_beta1, run.adam_beta2)
    if given is None or given == AUTO:
        params["betas"] = [default[i] if value is None else value for i, value in enumerate(wanted)]
        return
    two_numbers = isinstance(given, list) and len(given) == 2 and all(isinstance(b, (int, float)) for b in given)
    if not two_numbers:
        draft.problem("optimizer.params.betas", f"expected two numbers, got {given!r}")
        return
    for index, value in enumerate(wanted):
        name = f"adam_beta{index + 1}"
        if (
            value is not None
            and value != given[index]
            and wins(draft, run, "optimizer.params.betas", name, given[index], value)
        ):
            given[index] = value


def _check_ranges(draft: Draft, params: Mapping[str, Any]) -> None:
    for key, lowest, strict in (
        ("lr", 0, True),
        ("eps", 0, True),
        ("weight_decay", 0, False),
        ("muon_lr", 0, True),
        ("adam_lr", 0, True),
    ):
        value = params.get(key)
        if isinstance(value, (int, float)) and (value < lowest or (strict and value == lowest)):
            draft.problem(f"optimizer.params.{key}", f"{value} must be {'above' if strict else 'at least'} {lowest}")
    betas = params.get("betas")
    if isinstance(betas, list) and any(isinstance(beta, (int, float)) and not 0 <= beta < 1 for beta in betas):
        draft.problem("optimizer.params.betas", f"{betas}: each must be at least 0 and below 1")
    if params.get("amsgrad") is True:
        draft.problem(
            "optimizer.params.amsgrad", "true is not supported: neither DeepSpeed's fused nor its CPU Adam has it"
        )
    if params.get("bias_correction") is False:
        draft.problem(
            "optimizer.params.bias_correction",
            "false is not supported: torch's AdamW, which runs here, always corrects: delete it",
        )
