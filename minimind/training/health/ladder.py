"""The recovery ladder: which rung a run in trouble takes, and what that changes. Pure, but for ``recovery.json``.

    skip         the update, and name the samples (no rollback: DeepSpeed skips, loop.py names)
    rollback     to the last good checkpoint; the offending data left out, the learning rate halved and warmed up again
    fixed-scale  the same checkpoint once more, with a fixed loss scale of 1024 (fp16 only)
    fp32         once more, in fp32
    stop         with a report

Contract. Trouble again within ``heal_steps`` of the last one is the same trouble and takes the next rung; trouble
elsewhere starts at the bottom again. At most ``max_rollbacks`` in a run. Data are left out and the rate is halved on
the first rung only: if that did not help, neither was the cause.

Every rollback is kept in ``recovery.json`` of the run directory: together with a checkpoint's step it decides which
data a step trains on, so a resumed run goes on with the same treatment. Checkpoints after the one that is gone back
to are deleted before it is written, so that a kill in between finds either the old story or the new one.

To skip data and restart before a spike is PaLM's practice (arXiv 2204.02311, section 5.1).
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from minimind.base.defaults import RECOVERY
from minimind.base.files import write_durably
from minimind.base.findings import Finding
from minimind.base.strict.json_text import brief, is_count, is_number, read_json
from minimind.config.recovery import RecoveryConfig
from minimind.training.health.trouble import Trouble

FILE_NAME = RECOVERY
RUNGS = ("rollback", "fixed-scale", "fp32")


@dataclass(frozen=True)
class Rollback:
    """One rung taken. ``to_step``: the checkpoint's step, 0 for the beginning; ``applied``: updates applied up to it.

    ``skipped``: first and last step of the data order (0-based) that are left out; None: none.
    """

    number: int
    rung: str
    trouble: str
    message: str
    onset: int
    trouble_step: int
    to_step: int
    applied: int
    skipped: tuple[int, int] | None
    lr_factor: float
    rewarmup_steps: int
    samples: list[str] = field(default_factory=list)


def next_rung(
    trouble: Trouble, past: Sequence[Rollback], precision: str, fixed_scale: bool, config: RecoveryConfig
) -> str | None:
    """The rung to take; None: stop. ``fixed_scale``: fp16 whose scale is fixed already."""
    if not config.enabled or len(past) >= config.max_rollbacks:
        return None
    useless = {"fixed-scale": precision != "fp16" or fixed_scale, "fp32": precision == "fp32"}
    first = RUNGS.index(past[-1].rung) + 1 if _same_trouble(trouble, past, config) else 0
    return next((rung for rung in RUNGS[first:] if not useless.get(rung, False)), None)


def _same_trouble(trouble: Trouble, past: Sequence[Rollback], config: RecoveryConfig) -> bool:
    return bool(past) and trouble.onset <= past[-1].trouble_step + config.heal_steps


def make_rollback(
    rung: str,
    trouble: Trouble,
    past: Sequence[Rollback],
    to_step: int,
    applied: int,
    config: RecoveryConfig,
    samples: Sequence[str] = (),
) -> Rollback:
    """What ``rung`` changes. Only the lowest rung leaves data out and lowers the rate."""
    lowest = rung == RUNGS[0]
    window = (data_step(trouble.last_good, past), data_step(trouble.step - 1, past))
    return Rollback(
        number=len(past) + 1,
        rung=rung,
        trouble=trouble.code,
        message=trouble.message,
        onset=trouble.onset,
        trouble_step=trouble.step,
        to_step=to_step,
        applied=applied,
        skipped=window if lowest else None,
        lr_factor=config.lr_factor if lowest else 1.0,
        rewarmup_steps=config.rewarmup_steps,
        samples=list(samples),
    )


def data_step(step: int, past: Sequence[Rollback]) -> int:
    """Which step of the data order training step ``step`` (both 0-based) uses, the skipped windows left out."""
    end = -1
    for first, last in sorted(rollback.skipped for rollback in past if rollback.skipped):
        first = max(first, end + 1)  # windows may overlap
        if step >= first:
            step += max(last - first + 1, 0)
        end = max(end, last)
    return step


def rate_factor(applied: int, past: Sequence[Rollback]) -> float:
    """What is left of the schedule's rate at applied step ``applied`` (0-based); only the last rollback warms up."""
    if not past:
        return 1.0
    since = applied - past[-1].applied + 1
    ramp = min(max(since, 1) / past[-1].rewarmup_steps, 1.0)
    return ramp * math.prod(rollback.lr_factor for rollback in past)


def read_rollbacks(run_dir: Path, step: int) -> list[Rollback]:
    """The rollbacks that a run at checkpoint ``step`` lives with; those to later steps have not happened for it.

    Raises ValueError when the file is damaged.
    """
    try:
        content = read_json(run_dir, FILE_NAME)
    except FileNotFoundError:
        return []
    records = content.get("rollbacks") if isinstance(content, dict) else None
    if not isinstance(records, list):
        raise ValueError("it holds no list of rollbacks")
    every = [_rollback(record) for record in records]
    # A later rollback may go back further: from its step on, the earlier ones hold too.
    begins = [min(later.to_step for later in every[i:]) for i in range(len(every))]
    return [rollback for rollback, begin in zip(every, begins, strict=True) if begin <= step]


def _rollback(record: Any) -> Rollback:
    """A rollback as ``write_rollbacks`` wrote it. Raises ValueError for anything else."""
    names = {item.name for item in fields(Rollback)}
    if not isinstance(record, dict) or not names - {"samples"} <= record.keys() <= names:
        raise ValueError("a rollback lacks a field, or has an unknown one")
    for name in ("number", "onset", "trouble_step", "to_step", "applied", "rewarmup_steps"):
        if not is_count(record[name], least=int(name == "rewarmup_steps")):
            raise ValueError(f"{name} of a rollback is {brief(record[name])}, not a count")
    window = record["skipped"]
    if window is not None and not (isinstance(window, list) and len(window) == 2 and all(map(is_count, window))):
        raise ValueError(f"skipped of a rollback is {brief(window)}, not two steps")
    if not is_number(record["lr_factor"]) or record["rung"] not in RUNGS:
        raise ValueError("a rollback has no rung or no factor of the learning rate")
    if not isinstance(record["trouble"], str) or not isinstance(record["message"], str):
        raise ValueError("a rollback does not say what the trouble was")
    samples = record.get("samples", [])
    if not isinstance(samples, list) or not all(isinstance(sample, str) for sample in samples):
        raise ValueError("samples of a rollback is not a list of texts")
    return Rollback(**{**record, "skipped": window and tuple(window)})


def write_rollbacks(run_dir: Path, rollbacks: Sequence[Rollback]) -> None:
    """Keep them, durably; rank 0 only."""
    content = {"rollbacks": [asdict(rollback) for rollback in rollbacks]}
    write_durably(run_dir / FILE_NAME, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def describe_rollback(rollback: Rollback) -> Finding:
    """The finding that tells of it."""
    done = {"rollback": f"learning rate x {rollback.lr_factor:g}", "fixed-scale": "a fixed loss scale", "fp32": "fp32"}[
        rollback.rung
    ]
    parts = [f"back to step {rollback.to_step}", done, f"{rollback.rewarmup_steps} steps of warmup"]
    if rollback.skipped:
        first, last = rollback.skipped
        parts.append(f"the data of {last - first + 1} steps left out")
    return Finding(
        code="rolled-back",
        message=f"{rollback.message}; rollback {rollback.number}: {', '.join(parts)}",
        advice=f"look at {rollback.samples[0]} and what is beside it in {FILE_NAME}" if rollback.samples else "",
        step=rollback.trouble_step,
    )
