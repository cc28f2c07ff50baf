"""Which checkpoint a run goes on from: what must be the same, what may change, and saying which did.

The same must be all that makes the run what it is: the model, the data and its order, the optimizer's type. How it is
computed (ranks, ZeRO stage, precision, micro-batch) and how it is trained from here on (rates, schedule, clipping, loss
scaling) may change: the present configuration wins, and the differences are printed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from minimind.base.errors import UserError
from minimind.base.findings import Finding
from minimind.config.deepspeed import Resolved
from minimind.config.run import RunConfig
from minimind.training.checkpoint.directory import Checkpoint, all_checkpoints, read_about, resolve_resume
from minimind.training.health.ladder import FILE_NAME as RECOVERY
from minimind.training.health.ladder import Rollback, read_rollbacks
from minimind.training.run.setup import Data, Plan

AUTO = "auto"  # of --resume: go on if there is something to go on from, begin otherwise
FIXED = ("model", "tokenizer", "data", "sources", "row_length", "rows_per_step", "seed", "optimizer")

_WORDS = {
    "world_size": "ranks",
    "zero_stage": "ZeRO stage",
    "optimizer_params.lr": "learning rate",
    "loss_scaling.loss_scale": "loss scale (0: dynamic)",
}


def run_settings(config: RunConfig, resolved: Resolved, data: Data, plan: Plan) -> dict[str, Any]:
    """What a checkpoint says of its run (JSON): FIXED, which must agree on resume, and what may change."""
    schedule = {name: value for name, value in asdict(plan.schedule).items() if name != "total_steps"}
    about: dict[str, Any] = {
        "model": config.model.model_dump(),
        "tokenizer": data.tokenizer.fingerprint,
        "data": data.train.manifest["key"],
        "sources": data.parts and [[part.weight, part.files] for part in data.parts],
        "row_length": config.max_seq_length,
        "rows_per_step": resolved.train_batch_size,
        "seed": config.seed,
        "optimizer": resolved.optimizer.type.lower(),
        "world_size": resolved.world_size,
        "micro_batch_size": resolved.micro_batch_size,
        "accumulation": resolved.accumulation,
        "zero_stage": resolved.stage,
        "offload": resolved.offload,
        "precision": resolved.precision,
        "optimizer_params": resolved.optimizer.params,
        "gradient_clipping": resolved.gradient_clipping,
        "loss_scaling": resolved.config["fp16"] if resolved.precision == "fp16" else None,
        "total_steps": plan.total_steps,
        "schedule": resolved.scheduler or schedule,
        "save_steps": plan.save_steps,
        "eval_steps": plan.eval_steps,
    }
    plain: dict[str, Any] = json.loads(json.dumps(about))  # as a manifest gives it back: no tuples
    return plain


@dataclass(frozen=True)
class Start:
    """Where a run begins: at ``checkpoint`` with the ``rollbacks`` that it lives with, or (None) at the beginning."""

    checkpoint: Checkpoint | None
    rollbacks: list[Rollback]
    findings: list[Finding]


def require_one_run(first: dict[str, Any], own: dict[str, Any]) -> None:
    """Raises UserError where this rank's settings are not the first rank's: its host has another YAML or JSON."""
    fixed = [f"{_word(name)} {first[name]} -> {own[name]}" for name in FIXED if first[name] != own[name]]
    if different := fixed + changes(first, own):
        raise UserError(f"other settings than the first rank's: {'; '.join(different)}; give all hosts the same files")


def find_start(resume: str | None, run_dir: Path) -> Start:
    """What ``--resume`` means (None: not given), with findings about checkpoints that could not be used.

    Raises UserError if there is no complete checkpoint; ``auto`` then begins, unless there is one that is damaged.
    """
    if resume is None:
        return Start(None, [], [])
    if resume == AUTO:
        if not all_checkpoints(run_dir):
            return Start(None, [], [_begun(run_dir)])
        resume = ""
    checkpoint, findings = resolve_resume(Path(resume) if resume else run_dir)
    return Start(checkpoint, _rollbacks(checkpoint), findings)


def _begun(run_dir: Path) -> Finding:
    return Finding(
        code="nothing-to-resume",
        message=f"--resume auto: {run_dir} has no checkpoint yet, so the run begins",
        advice="right for a job's first start; else look whether --output-dir is that of the run",
    )


def _rollbacks(checkpoint: Checkpoint) -> list[Rollback]:
    """Those of the checkpoint's run. UserError if they can't be read: the data order would silently be another."""
    try:
        return read_rollbacks(checkpoint.run_dir, checkpoint.step)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(
            f"{checkpoint.run_dir / RECOVERY}: can't be read ({error}), and with it which data this run has left out; "
            "restore the file, or start a new run without --resume"
        ) from None


def agree(checkpoint: Checkpoint | None, about: dict[str, Any]) -> list[Finding]:
    """What differs between the checkpoint's settings and the present ones, as a finding.

    Raises UserError if the checkpoint belongs to another run, with the list of differences.
    """
    if checkpoint is None:
        return []
    theirs = read_about(checkpoint.path)
    different = [
        f"{name} (checkpoint {theirs.get(name)}, now {about[name]})"
        for name in FIXED
        if theirs.get(name) != about[name]
    ]
    if different:
        raise UserError(
            f"{checkpoint.path}: can't resume, these differ: {'; '.join(different)}; "
            "give the settings of that run, or start a new one without --resume"
        )
    changed = changes(theirs, about)
    return [_changed(checkpoint, changed)] if changed else []


def changes(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> list[str]:
    """``learning rate 0.001 -> 0.0005`` for each setting that may change and did.

    What an older checkpoint does not record can't be compared and is left out.
    """
    lines = []
    for name in [name for name in ours if name in theirs and name not in FIXED]:
        before, now = theirs[name], ours[name]
        if isinstance(before, dict) and isinstance(now, dict):
            pairs = {f"{name}.{key}": (before.get(key), now.get(key)) for key in {**before, **now}}
        elif name == "loss_scaling":  # fp16 on one side only: the precision says it
            continue
        else:
            pairs = {name: (before, now)}
        lines += [f"{_word(key)} {_value(a)} -> {_value(b)}" for key, (a, b) in pairs.items() if a != b]
    return lines


def _word(name: str) -> str:
    return _WORDS.get(name, name.removeprefix("optimizer_params.").replace(".", " ").replace("_", " "))


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "none" if value is None else str(value)


def _changed(checkpoint: Checkpoint, changed: list[str]) -> Finding:
    return Finding(
        code="resumed-with-changes",
        message=f"other settings than the checkpoint's from here on: {'; '.join(changed)}",
        advice="if that was not meant, resume that checkpoint with its own settings",
        step=checkpoint.step,
    )
