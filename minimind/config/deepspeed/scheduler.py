"""A ``scheduler`` section in a user's JSON: honoured as DeepSpeed runs it, and said what that is.

Without the section the trainer's own schedule (``schedule.py``) runs. DeepSpeed's warmup schedulers train the
first steps at learning rate 0 and shape the warmup logarithmically by default; the numbers in the findings are
checked against the installed DeepSpeed in the tests.
"""

from __future__ import annotations

import copy
from typing import Any

from minimind.base.defaults import DEEPSPEED_LR, DEEPSPEED_WARMUP_STEPS
from minimind.base.findings import Finding
from minimind.base.problems import nearest
from minimind.config.deepspeed.agreement import say_winner, settle, wins
from minimind.config.deepspeed.lint import AUTO, Draft, check_params
from minimind.config.deepspeed.optimizer import OptimizerSpec
from minimind.config.deepspeed.schema import SCHEDULERS
from minimind.config.run import RunConfig

# DeepSpeed's name -> what the YAML would call its shape after warmup
_SHAPES = {"WarmupLR": "constant", "WarmupDecayLR": "linear", "WarmupCosineLR": "cosine"}


def resolve_scheduler(draft: Draft, run: RunConfig, optimizer: OptimizerSpec | None) -> dict[str, Any] | None:
    """The section with "auto" filled where the YAML knows it; step counts may stay "auto" until the data is
    known.
    """
    kind = draft.get("scheduler.type")
    if "scheduler" not in draft.values or kind is None:
        draft.values.pop("scheduler", None)
        return None
    if kind not in SCHEDULERS:
        draft.problem(
            "scheduler.type",
            f'"{kind}"{nearest(str(kind), SCHEDULERS)}: DeepSpeed\'s own are {", ".join(SCHEDULERS)}; '
            "torch schedulers by name fail under ZeRO and fp16: delete the section and set lr_scheduler_type in the "
            "YAML",
        )
        return None
    check_params(draft, "scheduler", SCHEDULERS[kind], kind)
    params = draft.values["scheduler"].setdefault("params", {})
    if not isinstance(params, dict):
        return None
    _drop_unfillable(draft, params)
    if _replaced(draft, run, kind):
        draft.values.pop("scheduler")
        return None
    _compare_with_run(draft, run, kind, params)
    rate = optimizer.params["lr"] if optimizer else DEEPSPEED_LR
    if params.get("warmup_min_lr") == AUTO:
        params["warmup_min_lr"] = 0
    if params.get("warmup_max_lr") == AUTO or (kind == "WarmupDecayLR" and "warmup_max_lr" not in params):
        params["warmup_max_lr"] = rate  # WarmupDecayLR's own default is 0.001 whatever the optimizer says
    if kind in ("WarmupDecayLR", "WarmupCosineLR"):
        params.setdefault("total_num_steps", AUTO)
    _check_params(draft, kind, params)
    draft.find(
        "scheduler-deepspeed",
        f"the JSON's {kind} runs as DeepSpeed runs it: {_first_steps(kind, params, rate)}",
        'delete "scheduler" to use the YAML\'s schedule, which starts at its first warmup step',
    )
    return {"type": kind, "params": params}


def _drop_unfillable(draft: Draft, params: dict[str, Any]) -> None:
    """DeepSpeed calculates with what it is given, also with the text "auto"."""
    for key in [key for key, value in params.items() if value == AUTO and key not in _FILLED]:
        del params[key]
        text = f'"scheduler.params.{key}": "auto" has no YAML counterpart: DeepSpeed\'s default applies'
        draft.find("auto-default", text, "write a value to choose one")


_FILLED = ("warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "total_num_steps")


def _replaced(draft: Draft, run: RunConfig, kind: str) -> bool:
    """Whether the command line names another schedule, which wins; one in the YAML is a problem."""
    name, path = "lr_scheduler_type", "scheduler.type"
    if name not in run.explicit or _SHAPES.get(kind) == run.lr_scheduler_type:
        return False
    if run.commanded(name):
        say_winner(draft, run, path, name=name, given=kind, wanted=run.lr_scheduler_type)
        return True
    draft.problem(
        path, f"{kind} in the JSON but {name} is {run.lr_scheduler_type} {run.origin(name)}: delete one of them"
    )
    return False


def _compare_with_run(draft: Draft, run: RunConfig, kind: str, params: dict[str, Any]) -> None:
    for key, name in (
        ("warmup_max_lr", "learning_rate"),
        ("total_num_steps", "max_steps"),
        ("warmup_num_steps", "warmup_steps"),
    ):
        if key in params:
            settle(draft, run, f"scheduler.params.{key}", name)
    warmup = params.get("warmup_num_steps")
    if (
        "warmup_ratio" in run.explicit
        and isinstance(warmup, int)
        and wins(
            draft, run, "scheduler.params.warmup_num_steps", name="warmup_ratio", given=warmup, wanted=run.warmup_ratio
        )
    ):
        params["warmup_num_steps"] = AUTO  # the ratio's steps are known only with the data
    if "min_lr_ratio" in run.explicit:
        draft.find(
            "setting-unused",
            f"min_lr_ratio {run.min_lr_ratio:g} {run.origin('min_lr_ratio')} has no effect: the JSON's {kind} decides "
            "the learning rate",
            'delete "scheduler" from the JSON, or min_lr_ratio',
        )


def _check_params(draft: Draft, kind: str, params: dict[str, Any]) -> None:
    for key in ("warmup_num_steps", "lr_range_test_step_size", "total_num_steps", "cycle_first_step_size"):
        value = params.get(key)
        if isinstance(value, int) and value <= 0:
            draft.problem(f"scheduler.params.{key}", f"{value}: DeepSpeed wants a positive whole number")
    missing = [key for key in ("cycle_min_lr", "cycle_max_lr") if kind == "OneCycle" and key not in params]
    if missing:
        draft.problem("scheduler.params", f"OneCycle needs {' and '.join(missing)}")
    if kind == "OneCycle" and params.get("cycle_momentum", True):
        params["cycle_momentum"] = params.get("cycle_momentum", True)


def _first_steps(kind: str, params: dict[str, Any], rate: float) -> str:
    """What steps 1 and 2 train with (DeepSpeed 0.19.8, each traced in the tests)."""
    log = params.get("warmup_type", "log") == "log"
    if kind == "WarmupCosineLR":
        second = 0.0 if log else rate * float(params.get("warmup_min_ratio", 0.0))
        shape = "the warmup is logarithmic" if log else "the linear warmup never quite reaches the peak"
        return f"steps 1 and 2 train at learning rates 0 and {second:g}, and {shape}"
    if kind in ("WarmupLR", "WarmupDecayLR"):
        lowest = float(params.get("warmup_min_lr", 0.0) or 0.0)
        shape = "logarithmic" if log else "linear"
        return f"steps 1 and 2 both train at learning rate {lowest:g}, and the warmup is {shape}"
    if kind == "OneCycle":
        return f"steps 1 and 2 start the first cycle from {params.get('cycle_min_lr')}; the optimizer's lr is not used"
    start = params.get("lr_range_test_min_lr", DEEPSPEED_LR)
    return f"the learning rate rises from {start} without end; the optimizer's lr is not used"


def fill_total_steps(scheduler: dict[str, Any], total_steps: int, run: RunConfig) -> dict[str, Any]:
    """A copy with "auto" step counts filled as Hugging Face fills them (warmup at least 1: DeepSpeed refuses
    0).
    """
    filled = copy.deepcopy(scheduler)
    params = filled["params"]
    if params.get("total_num_steps") == AUTO:
        params["total_num_steps"] = total_steps
    if params.get("warmup_num_steps") == AUTO:
        params["warmup_num_steps"] = max(1, run.warmup(total_steps))
    return filled


def own_schedule_findings(total_steps: int, run: RunConfig) -> list[Finding]:
    """Whether a run of so many steps with the trainer's own schedule ends inside its warmup."""
    name = "warmup_steps" if run.warmup_steps is not None else "warmup_ratio"
    where = f"{name} {run.origin(name)}" if name in run.explicit else f"{name}, by default"
    return _inside_warmup(run.warmup(total_steps), total_steps, where)


def scheduler_findings(scheduler: dict[str, Any], total_steps: int) -> list[Finding]:
    """What of a filled JSON scheduler does not fit a run of so many steps."""
    kind, params = scheduler["type"], scheduler["params"]
    if kind not in _SHAPES:
        return []
    warmup = int(params.get("warmup_num_steps", DEEPSPEED_WARMUP_STEPS))
    stated = "in the JSON" if "warmup_num_steps" in params else "DeepSpeed's default"
    return _inside_warmup(warmup, total_steps, f"warmup_num_steps, {stated}") or _other_length(
        kind, int(params.get("total_num_steps", total_steps)), total_steps
    )


def _inside_warmup(warmup: int, total_steps: int, where: str) -> list[Finding]:
    """A warmup of one step is the whole of a run of one step, and nothing is wrong with it."""
    if warmup < total_steps or warmup == total_steps == 1:
        return []
    return [
        Finding(
            "run-inside-warmup",
            f"the run ends inside its warmup: {total_steps:,} steps, warmup {warmup:,} ({where}): the learning rate "
            f"only rises, to {total_steps / warmup:.2g} of its peak at most",
            f"train longer, or set warmup_steps to {max(1, total_steps // 10)} or less",
            values={"total_steps": total_steps, "warmup_steps": warmup},
        )
    ]


def _other_length(kind: str, planned: int, total_steps: int) -> list[Finding]:
    """A decay that is planned for another number of steps than the run's."""
    if planned == total_steps:
        return []
    then = (
        f"from step {planned:,} on the learning rate is at its lowest"
        if planned < total_steps
        else "the run ends before the decay does"
    )
    return [
        Finding(
            "scheduler-other-length",
            f"the JSON's {kind} is planned for total_num_steps {planned:,}, the run has {total_steps:,} steps: {then}",
            'write "total_num_steps": "auto", or set max_steps to the same number',
            values={"total_steps": total_steps, "total_num_steps": planned},
        )
    ]
