"""Builds what trains: the model and the DeepSpeed engine around it, at a run's start and after each rollback."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from minimind.base.command_lines import OwnCommand
from minimind.base.hardware import detect
from minimind.config.deepspeed import Resolved
from minimind.config.run import RunConfig
from minimind.model.attention import check_backend
from minimind.model.transformer import Transformer
from minimind.training.checkpoint.directory import Checkpoint
from minimind.training.checkpoint.nearby import at_hand
from minimind.training.engine import construction
from minimind.training.engine.compilation import pays
from minimind.training.engine.engine import Engine
from minimind.training.health.ladder import Rollback, rate_factor
from minimind.training.process.disks import Disks
from minimind.training.record.recorder import Progress
from minimind.training.run.setup import Plan


@dataclass(frozen=True)
class Builder:
    """Builds the engine of a run, at its start and after each rollback. ``resolved``: the JSON, untreated."""

    config: RunConfig
    resolved: Resolved
    plan: Plan
    new_model: Callable[[Resolved], Transformer]
    settings: Callable[[Resolved], dict[str, Any]]  # what a checkpoint says of the run
    command: OwnCommand
    disks: Disks  # who sees the run directory

    def treated(self, rollbacks: Sequence[Rollback]) -> Resolved:
        """The configuration that these rollbacks leave."""
        rungs, resolved = {rollback.rung for rollback in rollbacks}, self.resolved
        if "fp32" in rungs:
            return resolved.in_fp32()
        if "fixed-scale" in rungs:
            return resolved.with_fixed_scale(self.config.recovery.loss_scale)
        return resolved

    def build(self, checkpoint: Checkpoint | None, rollbacks: Sequence[Rollback]) -> tuple[Engine, Progress]:
        """A fresh engine, at ``checkpoint`` or (None) at the beginning."""

        def factor(applied: int) -> float:
            return self.plan.schedule.factor(applied) * rate_factor(applied, rollbacks)

        resolved = self.treated(rollbacks)
        engine = build_engine(self.new_model(resolved), resolved, factor, self.config, self.plan.total_steps)
        if checkpoint is None:
            return engine, Progress()
        with at_hand(engine.control, checkpoint, self.config.output_dir, self.disks) as path:
            return engine, Progress.from_state(engine.load(path)["progress"])


def new_model(config: RunConfig, resolved: Resolved) -> Transformer:
    """A transformer initialised from the seed, for an engine of ``resolved``; all ranks call it."""
    return construction.new_model(config.model, config.seed, resolved)


def build_engine(
    model: Transformer, resolved: Resolved, factor: Callable[[int], float], config: RunConfig, total_steps: int
) -> Engine:
    """The DeepSpeed engine, compiled where that pays in ``total_steps`` steps. ``factor``: share of the peak rate by
    applied step. Raises UserError for an ``attention_backend`` that can't run here."""
    model.attention_backend = config.attention_backend
    model.gradient_checkpointing = config.gradient_checkpointing
    engine = Engine(model, resolved, factor)
    check_backend(config.attention_backend, engine.device, model.output_weight.dtype, config.model.head_dim)
    positions = total_steps * resolved.micro_batch_size * resolved.accumulation * config.max_seq_length
    flops = positions * model.flops_per_token(config.max_seq_length)
    possible = resolved.stage != 3  # DeepSpeed hands the compiler parameters of size 0; requirements.py refuses "on"
    automatic = possible and config.compile == "auto" and pays(detect(), resolved.precision, flops)
    if config.compile == "on" or automatic:
        engine.compile()
    return engine
