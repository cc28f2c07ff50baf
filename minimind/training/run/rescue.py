"""What the recovery ladder does to a run: choose the checkpoint, write the rollback down, build everything again; or
end it with a post-mortem.

All ranks call these together, and build the engine again in the same process. Which rung is taken is decided in
recovery.py.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

from minimind.base.command_lines import OwnCommand
from minimind.base.defaults import FIXED_LOSS_SCALE, POST_MORTEM
from minimind.base.files import write_durably
from minimind.base.findings import Finding
from minimind.base.hardware import detect
from minimind.config.deepspeed import Resolved
from minimind.config.deepspeed.optimizer import RATES
from minimind.training.checkpoint.directory import (
    Checkpoint,
    all_checkpoints,
    delete,
    point_back,
    problem,
    read_about,
    restore_best,
)
from minimind.training.health.culprits import find_culprits
from minimind.training.health.ladder import Rollback, make_rollback, next_rung, write_rollbacks
from minimind.training.record.advice import LOWER_CLIPPING
from minimind.training.run.builder import Builder
from minimind.training.run.loop import Run


def rescue(run: Run, builder: Builder) -> Run | None:
    """The same run one rung further, ready to train; None: no rung is left. All ranks call it."""
    assert run.trouble is not None
    now = run.engine.resolved
    fixed_scale = now.precision == "fp16" and not now.dynamic_scale
    rung = next_rung(run.trouble, run.rollbacks, now.precision, fixed_scale, run.config.recovery)
    if rung is None:
        return None
    run.saver.finish()
    checkpoint = run.engine.control.first_does(lambda: go_back(run))
    rollbacks = [*run.rollbacks, _rollback(run, rung, checkpoint)]
    run.engine.control.first_does(lambda: write_rollbacks(run.run_dir, rollbacks))
    run.engine.close()
    engine, progress = builder.build(checkpoint, rollbacks)
    run.metrics.best = progress.best
    if run.rank == 0:
        restore_best(run.run_dir, progress.best.step)
    run.metrics.rollback(rollbacks[-1])
    run.saver.follow(engine, checkpoint)
    return replace(
        run,
        engine=engine,
        progress=progress,
        rollbacks=rollbacks,
        about=builder.settings(engine.resolved),
        waits={},
    )


def _rollback(run: Run, rung: str, checkpoint: Checkpoint | None) -> Rollback:
    """The record of this rung, with the samples of the step where the trouble began."""
    assert run.trouble is not None
    data_step = run.data_step(run.trouble.onset - 1)
    samples = find_culprits(run.engine, run.batches, run.data.train, data_step)
    step, applied = run.engine.control.first_does(lambda: _where(checkpoint))
    return make_rollback(
        rung, run.trouble, run.rollbacks, to_step=step, applied=applied, config=run.config.recovery, samples=samples
    )


def _where(checkpoint: Checkpoint | None) -> tuple[int, int]:
    """Its step, and how many steps were applied by then. Rank 0 only: others may not see it."""
    return (checkpoint.step, read_about(checkpoint.path)["applied"]) if checkpoint else (0, 0)


def go_back(run: Run) -> Checkpoint | None:
    """The newest complete checkpoint from before the trouble, made the run's last one: later ones are deleted.

    Rank 0 only. None: there is none, the run begins again.
    """
    assert run.trouble is not None
    every = all_checkpoints(run.run_dir)
    before = (c for c in every if c.step <= run.trouble.last_good and problem(c.path) is None)
    good = next(before, None)
    point_back(run.run_dir, good)
    for later in [c for c in every if good is None or c.step > good.step]:
        delete(later.path)
    return good


def give_up(run: Run, builder: Builder) -> str:
    """No rung is left: say so and leave a post-mortem. The last good checkpoint stays as it was."""
    assert run.trouble is not None
    finding = Finding(
        code="run-failed",
        message=f"{run.trouble.message}; rollbacks so far: {len(run.rollbacks)}; no rung of the ladder is left",
        advice=f"look at the samples in {POST_MORTEM}, then try its remedies in order",
        step=run.progress.step,
    )
    run.metrics.finding(finding)
    samples = find_culprits(run.engine, run.batches, run.data.train, run.data_step(run.progress.step - 1))
    if run.rank == 0:
        text = json.dumps(post_mortem(run, builder, samples), indent=1, ensure_ascii=False, default=str)
        write_durably(run.run_dir / POST_MORTEM, text + "\n")
    return "failed"


def post_mortem(run: Run, builder: Builder, samples: list[str]) -> dict[str, Any]:
    """What happened, what was tried, scale history, last norms, the samples in the last step, remedies in order."""
    return {
        "step": run.progress.step,
        "trouble": run.trouble and asdict(run.trouble),
        "rollbacks": [asdict(rollback) for rollback in run.rollbacks],
        "history": run.progress.state()["history"],
        "samples": samples,
        "remedies": remedies(builder.resolved, builder.command, run.metrics.adviser.rate, detect().bf16),
    }


def remedies(resolved: Resolved, command: OwnCommand, rate: Finding | None, bf16: bool) -> list[str]:
    """What to try, in order, each with the whole command. ``rate``: the finding that the rate is unusual; ``bf16``:
    whether the hardware has it."""

    def again(*settings: str) -> str:
        return command.line(*(word for setting in settings for word in ("--set", setting)), "--resume")

    params, found = resolved.optimizer.params, ["look at the samples above for text unlike the rest"]
    if len([name for name in RATES if name in params]) > 1:
        names = " and ".join(name for name in RATES if name in params)
        found.append(f"halve {names} in {resolved.source}: {again()}")
    else:
        found.append(f"halve the learning rate: {again('learning_rate=' + format(params['lr'] / 2, 'g'))}")
    if rate is not None:
        start = f"{rate.values['start']:g}"
        found.insert(0, f"{rate.message}: start from {start}: {again(f'learning_rate={start}')}")
    if not 0 < resolved.gradient_clipping <= LOWER_CLIPPING:
        found.append(f"clip gradients at {LOWER_CLIPPING:g}: {again(f'max_grad_norm={LOWER_CLIPPING:g}')}")
    if resolved.dynamic_scale:
        fixed = f'write "loss_scale": {FIXED_LOSS_SCALE:g} into "fp16" of {resolved.source}'
        found.append(f"a fixed loss scale: {fixed}, then {again()}")
    if resolved.precision == "fp16" and bf16:
        found.append(f"bf16: {again('fp16=false', 'bf16=true')}")
    if resolved.precision != "fp32":
        found.append(f"fp32: {again('fp16=false', 'bf16=false')}")
    return found
