"""Keys that older DeepSpeed versions knew and 0.19.8 refuses: dropped where that changes no update, and said.

A leftover that asks for other training (a curriculum that is on, dropped layers, sparse attention) stays a problem:
dropping it would train something else than the file says.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from minimind.config.deepspeed.lint import AUTO, Draft
from minimind.config.deepspeed.schema import BF16, COMPILE, FP16, REMOVED, REMOVED_ZERO, SCHEDULERS

_REFUSES = "DeepSpeed 0.19.8 refuses"

# Removed blocks that never changed an update, also when they are on: what happens instead
_HARMLESS = {
    "nebula": "checkpoints are written by this trainer",
    "sparse_gradients": "every gradient is reduced dense, with the same sum",
    "eigenvalue": "it only timed quantize_training, which is gone",
    "graph_harvesting": "nothing is captured into CUDA graphs",
    "mics_shard_size": "stage 3 splits over all ranks",
    "mics_hierarchical_params_gather": "stage 3 gathers from all ranks",
}
# Keys that older versions had and 0.19.8 no longer reads: what holds instead
_FORMER = {
    "zero_optimization": {
        "find_unused_parameters": "every parameter of the model has a gradient",
        "allgather_size": "allgather_bucket_size is its name now",
        "max_elements_per_comm": "reduce_bucket_size is its name now",
    },
    "flops_profiler": {
        "start_step": "profile_step is the one step that is measured",
        "end_step": "profile_step is the one step that is measured",
        "end_profile_step": "profile_step is the one step that is measured",
    },
    "": {"seq_parallel_comm_data_type": "rows are not split over ranks"},
}
# Words of NVIDIA Apex in a precision section, which no DeepSpeed version read there
_APEX = ("opt_level", "fp16_opt_level", "fp16_backend", "half_precision_backend", "backend", "master_weights")
# Options of DeepSpeed's own torch.compile section, before it became DeepCompile's
_TORCH_COMPILE = ("enabled", "backend", "kwargs", "disable", "mode", "fullgraph", "dynamic", "options")


def drop_obsolete(draft: Draft) -> None:
    """Remove what means nothing any more, with a finding that says what happens instead."""
    _drop_removed_blocks(draft)
    _drop_former(draft)
    _drop_scaler_of_bf16(draft)
    _translate_scaler(draft)
    for section in ("fp16", "bf16", "bfloat16"):
        _drop(draft, section, [key for key in _APEX if key not in FP16], "a half precision always has fp32 masters")
    _drop_torch_compile(draft)
    _drop_max_grad_norm(draft)
    _drop_fractions(draft)
    _drop_other_schedulers_params(draft)
    _take_schedule_as_deepspeed_does(draft)


def _drop(draft: Draft, section: str, keys: list[str], instead: str) -> None:
    """Delete these ``keys`` of a section; one finding for those that were there."""
    found = _section(draft, section)
    present = [key for key in keys if key in found]
    if not present:
        return
    names = [f"{section}.{key}" for key in present]
    draft.unused("key-dropped", names[0], f"{', '.join(names)}: {_REFUSES} this, dropped: {instead}", _delete(names))
    for key in present:
        del found[key]


def _section(draft: Draft, path: str) -> dict[str, Any]:
    """The section at ``path``; an empty one if it is missing or no object."""
    found = draft.get(path)
    return found if isinstance(found, dict) else {}


def _delete(names: list[str]) -> str:
    return f"delete {'it' if len(names) == 1 else 'them'}"


def _drop_removed_blocks(draft: Draft) -> None:
    for key in [key for key in draft.values if key in REMOVED]:
        _drop_block(draft, key, draft.values, key, REMOVED[key])
    zero = _section(draft, "zero_optimization")
    for key in [key for key in zero if key in REMOVED_ZERO]:
        _drop_block(draft, f"zero_optimization.{key}", zero, key, REMOVED_ZERO[key])


def _drop_block(draft: Draft, path: str, section: dict[str, Any], key: str, what: str) -> None:
    value = section.pop(key)
    gone = f"({what}): removed from DeepSpeed (github.com/deepspeedai/DeepSpeed/issues/8489)"
    if not _is_on(key, value):
        draft.unused("key-dropped", path, f"{path} {gone}; it is off, dropped: nothing changes", "delete it")
    elif key in _HARMLESS:
        draft.unused("key-dropped", path, f"{path} {gone}, dropped: {_HARMLESS[key]}", "delete it")
    else:
        draft.problem(path, f"{gone}, and on it would train differently: delete it")


def _is_on(key: str, value: Any) -> bool:
    """Whether a removed block asked for something: a switch anywhere in it, or what counted as one without."""
    if key == "mics_shard_size":
        return isinstance(value, int) and value > 0
    if key == "sparse_attention":
        return bool(value) and not (isinstance(value, Mapping) and value.get("mode") == "dense")
    if not isinstance(value, Mapping):
        return str(value).lower() not in ("", "false", "none", "null", "0", "auto", "[]")
    switches = list(_switches(value))
    return any(switches) if switches else key == "zeropp_loco_param" and bool(value)


def _switches(block: Mapping[str, Any]) -> list[bool]:
    """The value of every ``enabled`` in a block, at any depth."""
    found = [str(value).lower() in ("true", "1") for key, value in block.items() if key.endswith("enabled")]
    inner = [_switches(value) for value in block.values() if isinstance(value, Mapping)]
    return [*found, *(switch for switches in inner for switch in switches)]


def _drop_former(draft: Draft) -> None:
    for section, keys in _FORMER.items():
        for key, instead in keys.items():
            path = f"{section}.{key}".removeprefix(".")
            if draft.get(path) is not None:
                text = f"{path}: of an older DeepSpeed, not read by 0.19.8, dropped: {instead}"
                draft.unused("key-dropped", path, text, "delete it")
                draft.drop(path)
    zero = _section(draft, "zero_optimization")
    if "cpu_offload_params" in zero:
        zero.setdefault("cpu_offload_param", zero.pop("cpu_offload_params"))
        path = "zero_optimization.cpu_offload_params"
        text = f"{path}: of an older DeepSpeed; {_REFUSES} it; taken as offload_param"
        draft.unused("word-translated", path, text, 'write "offload_param": {"device": "cpu"}')


def _drop_scaler_of_bf16(draft: Draft) -> None:
    """What only fp16 has, written into the bf16 section."""
    for section in ("bf16", "bfloat16"):
        only_fp16 = [key for key in FP16 if key not in BF16 and key != "fp16_master_weights_and_grads"]
        _drop(draft, section, only_fp16, "bf16 has fp32's range and no loss scale")


# torch.amp's and Paddle's words for the loss scaler, of which DeepSpeed's fp16 section refuses every one
_SCALER_WORDS = {
    "growth_interval": "loss_scale_window",
    "incr_every_n_steps": "loss_scale_window",
    "decr_every_n_nan_or_inf": "hysteresis",
    "init_scale": "initial_scale_power",
    "scale_init": "initial_scale_power",
    "init_loss_scaling": "initial_scale_power",
}
_FIXED = {"backoff_factor": 0.5, "decr_ratio": 0.5, "growth_factor": 2.0, "incr_ratio": 2.0}


def _translate_scaler(draft: Draft) -> None:
    """Other frameworks' words in the fp16 section: their meaning in DeepSpeed's, said."""
    fp16 = _section(draft, "fp16")
    for word in [word for word in _SCALER_WORDS if word in fp16]:
        name, value = _SCALER_WORDS[word], _number(fp16.pop(word))
        if value is None or value < 1 or name in fp16:
            draft.problem(
                f"fp16.{word}", f"DeepSpeed's name is {name}" + (", which is given too: keep one" * (name in fp16))
            )
            continue
        fp16[name] = int(math.log2(value)) if name == "initial_scale_power" else int(value)
        rounded = name == "initial_scale_power" and 2.0 ** fp16[name] != value
        note = f" (the power of two below {value:g})" if rounded else ""
        message = f"fp16.{word} {value:g}: {_REFUSES} this word; taken as {name} {fp16[name]}{note}"
        draft.unused("word-translated", f"fp16.{word}", message, f"write {name}")
    for word in [word for word in _FIXED if word in fp16]:
        value, fixed = fp16.pop(word), _FIXED[word]
        message = f"fp16.{word} {value}: {_REFUSES} this word, dropped: the loss scale is always "
        what = "halved at an overflow" if fixed < 1 else "doubled after loss_scale_window good steps"
        draft.unused("key-dropped", f"fp16.{word}", message + what, "delete it")


def _drop_torch_compile(draft: Draft) -> None:
    keys = [key for key in _TORCH_COMPILE if key not in COMPILE]
    _drop(draft, "compile", keys, "torch.compile is switched by `compile: on`, `off` or `auto` in the YAML")


def _drop_max_grad_norm(draft: Draft) -> None:
    clipping = draft.get("gradient_clipping")
    holds = "DeepSpeed's default 1.0" if clipping is None else clipping
    _drop(draft, "optimizer.params", ["max_grad_norm"], f"the top-level gradient_clipping clips ({holds})")


def _drop_fractions(draft: Draft) -> None:
    """Numbers with a fraction where DeepSpeed wants a whole one: a floor below 1, and sizes that a formula gave."""
    floor = _number(draft.get("fp16.min_loss_scale"))
    if floor is not None and floor > 0 and floor != int(floor):
        lowest = max(1, int(floor))
        draft.unused(
            "key-dropped",
            "fp16.min_loss_scale",
            f"fp16.min_loss_scale {floor:g}: {_REFUSES} a fraction, dropped: the scale goes down to {lowest}",
            f"write {lowest}, or bf16 where gradients need less",
        )
        draft.set("fp16.min_loss_scale", lowest)
    zero = _section(draft, "zero_optimization")
    for key in [key for key in zero if key.endswith(("_size", "_threshold", "_parameters", "_distance"))]:
        size = _number(zero[key])
        if size is not None and size > 1 and size != int(size):
            path = f"zero_optimization.{key}"
            draft.unused(
                "size-rounded",
                path,
                f"{path} {size:g}: {_REFUSES} a fraction; {int(size)} is used",
                f"write {int(size)}",
            )
            zero[key] = int(size)


def _number(value: Any) -> float | None:
    """A finite number, also one in a string; None for everything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if abs(number) < float("inf") else None


def _drop_other_schedulers_params(draft: Draft) -> None:
    """Parameters of another of DeepSpeed's schedulers, left over when the type was changed."""
    kind = draft.get("scheduler.type")
    if not isinstance(kind, str) or kind not in SCHEDULERS:
        return
    others = {key for kinds in SCHEDULERS.values() for key in kinds} - set(SCHEDULERS[kind])
    peak = "; its peak is the optimizer's lr" if kind == "WarmupCosineLR" else ""
    _drop(draft, "scheduler.params", sorted(others), f"{kind} has no such parameter{peak}")


def _take_schedule_as_deepspeed_does(draft: Draft) -> None:
    """A shape of the warmup that DeepSpeed does not know, and a warmup of no steps."""
    params = _section(draft, "scheduler.params")
    shape, steps = params.get("warmup_type"), params.get("warmup_num_steps")
    if isinstance(shape, str) and shape not in (*_WARMUPS, AUTO):
        path = "scheduler.params.warmup_type"
        known = " and ".join(f'"{name}"' for name in _WARMUPS)
        text = f'{path} "{shape}" is log: DeepSpeed knows {known}, and takes any other word for log'
        draft.unused("word-translated", path, text, 'write "linear" or "log"')
        params["warmup_type"] = "log"
    if _number(steps) == 0:
        path = "scheduler.params.warmup_num_steps"
        text = f"{path} 0: {_REFUSES} it; 1 is used, of which DeepSpeed makes 2, as older versions did of 0"
        draft.unused("word-translated", path, text, 'delete "scheduler" to begin at the full rate')
        params["warmup_num_steps"] = 1


_WARMUPS = ("log", "linear")
