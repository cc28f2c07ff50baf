"""The ``optimizer`` section -> ``OptimizerSpec``, which ``engine.py`` turns into an optimizer with decay
groups.

Of the torch.optim names that DeepSpeed takes, those are accepted whose update is a function of each number's own
gradients: ZeRO hands an optimizer flat slices, in which one that looks at whole matrices (Adafactor) means another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from minimind.base.defaults import DEEPSPEED_EPS, DEEPSPEED_LR, DEEPSPEED_WEIGHT_DECAY, LION_BETAS
from minimind.base.problems import nearest
from minimind.config.deepspeed.agreement import say_winner, settle, wins
from minimind.config.deepspeed.lint import AUTO, Draft, check_params
from minimind.config.deepspeed.optimizers import OPTIMIZERS, kind_named, learning_rate
from minimind.config.run import RunConfig

RATES = ("lr", "muon_lr", "adam_lr")  # params that are learning rates


@dataclass(frozen=True)
class OptimizerSpec:
    """``type`` is a key of ``OPTIMIZERS`` (Adam: decay as L2); ``params`` always holds lr and weight_decay, and betas
    and eps where the type has them. ``betas`` is a tuple.
    """

    type: str
    params: dict[str, Any]


_REMOVED = {"onebitadam", "onebitlamb", "zerooneadam", "onebitadamw"}
_NOT_HERE = {
    "lamb": "it is a CUDA kernel (FusedLamb), whose rate for a layer is a ratio of norms, and under ZeRO these are of "
    "slices of many layers",
    "adafactor": "it factors whole matrices, and ZeRO hands it flat slices",
    "lbfgs": "it needs a closure, which DeepSpeed never gives it",
    "sparseadam": "it takes sparse gradients only, and these are dense",
    **dict.fromkeys(("muadam", "muadamw", "musgd"), "it needs the package mup and a model with its base shapes"),
}


def resolve_optimizer(draft: Draft, run: RunConfig, fallback: Mapping[str, float]) -> OptimizerSpec | None:
    """The optimizer to build; None with the reason among the problems. Without a section: AdamW from the YAML."""
    if not draft.get("optimizer.type"):
        if stated := draft.get("optimizer.params"):
            names = ", ".join(stated) if isinstance(stated, Mapping) else repr(stated)
            text = f"is missing beside the params ({names}): DeepSpeed makes no optimizer without one"
            draft.problem("optimizer.type", f'{text}: write "type": "AdamW", or delete "optimizer"')
            return None
        _by_the_yaml(draft, run)
    _settle_type(draft, run)
    name = str(draft.get("optimizer.type"))
    kind = _kind(draft, name)
    if kind is None:
        return None
    check_params(draft, "optimizer", OPTIMIZERS[kind].params, kind)
    params = draft.get("optimizer.params") or {}
    if not isinstance(params, dict):
        return None
    if kind == "AdamW" and params.get("adam_w_mode") is False:
        kind = _with_l2(draft, name)
    _fill(draft, run, kind, params, fallback)
    _check_ranges(draft, params)
    clean = {key: value for key, value in params.items() if value != AUTO and key not in _ENGINE_CHOICES}
    if clean.get("bias_correction") is True:
        del clean["bias_correction"]
    if isinstance(clean.get("betas"), list):
        clean["betas"] = tuple(clean["betas"])
    return OptimizerSpec(kind, clean)


def _with_l2(draft: Draft, name: str) -> str:
    """``adam_w_mode`` false means L2 with the type Adam alone (runtime/engine.py ``effective_adam_w_mode``)."""
    if _plain(name) != "adamw":
        return "Adam"
    path = "optimizer.params.adam_w_mode"
    text = f"{path} false is not used: with the type AdamW DeepSpeed decays the weights themselves all the same"
    draft.unused("setting-dropped", path, text, 'write "type": "Adam" for L2, or delete it')
    return "AdamW"


def _by_the_yaml(draft: Draft, run: RunConfig) -> None:
    """No section: the optimizer with every value left to the YAML."""
    kind = run.optim or "AdamW"
    if run.optim is None:
        draft.find(
            "optimizer-default",
            'no "optimizer" in the JSON: AdamW with the values of the YAML and the command line, else the defaults',
            'add an "optimizer" section to own them in the JSON',
        )
    automatic = [key for key in ("lr", "betas", "eps", "weight_decay") if key in OPTIMIZERS[kind].params]
    draft.values["optimizer"] = {"type": kind, "params": dict.fromkeys(automatic, AUTO)}


def _settle_type(draft: Draft, run: RunConfig) -> None:
    """The run's ``optim`` against the JSON's type: the command line's wins, with its own default values."""
    name = str(draft.get("optimizer.type"))
    given = kind_named(name)
    if run.optim is None or given is None or given == run.optim:
        return
    if run.commanded("optim"):
        say_winner(draft, run, "optimizer.type", "optim", given=name, wanted=run.optim)
        params = draft.get("optimizer.params")
        kept = params if isinstance(params, dict) else {}
        draft.values["optimizer"] = {
            "type": run.optim,
            "params": {key: value for key, value in kept.items() if key in OPTIMIZERS[run.optim].params and key != "lr"}
            | {"lr": AUTO},
        }
    else:
        draft.problem(
            "optimizer.type", f"{name} in the JSON but optim is {run.optim} {run.origin('optim')}: delete one of them"
        )


def _plain(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


# How the update is computed, not what it is: the engine chooses by device and offload
_ENGINE_CHOICES = {
    "torch_adam",
    "adam_w_mode",
    "fused",
    "foreach",
    "amsgrad",
    "set_grad_none",
    "fp32_optimizer_states",
}


def _kind(draft: Draft, name: str) -> str | None:
    if kind := kind_named(name):
        return kind
    plain = _plain(name)
    if plain in _REMOVED:
        draft.problem("optimizer.type", f'"{name}": DeepSpeed removed the 1-bit optimizers: use AdamW')
    elif plain in _NOT_HERE:
        draft.problem("optimizer.type", f'"{name}" is not supported: {_NOT_HERE[plain]}: use AdamW')
    else:
        draft.problem(
            "optimizer.type",
            f'"{name}" is not one of the optimizers whose update is proven here'
            f"{nearest(name, OPTIMIZERS)}: {', '.join(OPTIMIZERS)}",
        )
    return None


_TORCHS_DECAY = 0.01  # what torch.optim.AdamW takes, which "torch_adam": true asks for, where none is given


def _fill(draft: Draft, run: RunConfig, kind: str, params: dict[str, Any], fallback: Mapping[str, float]) -> None:
    """Hugging Face fills "auto" only; a key that is absent takes the YAML's value too, else DeepSpeed's
    default.
    """
    unset: list[str] = []
    torchs = kind == "AdamW" and params.get("torch_adam") is True
    automatic = {"learning_rate": learning_rate(draft.kind, kind), **fallback}
    for key, yaml_name, default in (
        ("lr", "learning_rate", OPTIMIZERS[kind].absent.get("lr", DEEPSPEED_LR)),
        ("eps", "adam_epsilon", OPTIMIZERS[kind].absent.get("eps", DEEPSPEED_EPS)),
        ("weight_decay", "weight_decay", _TORCHS_DECAY if torchs else DEEPSPEED_WEIGHT_DECAY),
    ):
        if key in OPTIMIZERS[kind].params:
            value = automatic[yaml_name] if params.get(key) == AUTO else default
            unset += _fill_one(draft, run, params, key=key, yaml_name=yaml_name, default=value)
    if "betas" in OPTIMIZERS[kind].params:
        adam = (fallback["adam_beta1"], fallback["adam_beta2"])
        automatic_betas = LION_BETAS if kind == "Lion" else adam
        absent = OPTIMIZERS[kind].absent_betas
        _fill_betas(draft, run, params, automatic_betas if params.get("betas") == AUTO else absent)
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
            and wins(draft, run, "optimizer.params.betas", name=name, given=given[index], wanted=value)
        ):
            given[index] = value


def _check_ranges(draft: Draft, params: Mapping[str, Any]) -> None:
    for key, lowest, strict in (
        ("lr", 0, True),
        ("eps", 0, True),
        ("weight_decay", 0, False),
        ("muon_lr", 0, True),
        ("adam_lr", 0, True),
        ("momentum", 0, False),
        ("lr_decay", 0, False),
        ("initial_accumulator_value", 0, False),
        ("momentum_decay", 0, False),
        ("alpha", 0, False),
        ("rho", 0, False),
    ):
        value = params.get(key)
        if isinstance(value, (int, float)) and (value < lowest or (strict and value == lowest)):
            draft.problem(f"optimizer.params.{key}", f"{value} must be {'above' if strict else 'at least'} {lowest}")
    for key in ("alpha", "rho"):
        if isinstance(params.get(key), (int, float)) and params[key] > 1:
            draft.problem(f"optimizer.params.{key}", f"{params[key]} must be at most 1")
    if params.get("nesterov") is True and (not params.get("momentum") or params.get("dampening")):
        draft.problem("optimizer.params.nesterov", "true needs a momentum, and no dampening")
    betas = params.get("betas")
    if isinstance(betas, list) and any(isinstance(beta, (int, float)) and not 0 <= beta < 1 for beta in betas):
        draft.problem("optimizer.params.betas", f"{betas}: each must be at least 0 and below 1")
    if params.get("amsgrad") is True:
        draft.problem(
            "optimizer.params.amsgrad",
            "true is not supported: DeepSpeed's Adams have it not, and torch's with it is another optimizer",
        )
