"""The header's content: what a run is about to do."""

from __future__ import annotations

import argparse

from minimind.config import RunConfig
from minimind.data.batches import Batches
from minimind.hardware import Hardware
from minimind.model_config import PRESETS
from minimind.training.deepspeed_config import Resolved
from minimind.training.metrics import RunSummary
from minimind.training.recorder import Progress
from minimind.training.setup import Data, Plan


def summarize(
    kind: str,
    config: RunConfig,
    resolved: Resolved,
    data: Data,
    batches: Batches,
    plan: Plan,
    hardware: Hardware,
    progress: Progress,
    arguments: argparse.Namespace,
) -> RunSummary:
    """Collect the numbers that `Metrics.header` prints and keeps."""
    schedule = plan.schedule
    return RunSummary(
        kind=kind,
        model=next((name for name, preset in PRESETS.items() if preset == config.model), "custom"),
        parameters=config.model.num_parameters(),
        vocab_size=config.model.vocab_size,
        rows=batches.num_rows,
        row_length=config.max_seq_length,
        fill=batches.fill,
        epoch_tokens=batches.epoch_tokens,
        micro_batch_size=resolved.micro_batch_size,
        accumulation=resolved.accumulation,
        world_size=resolved.world_size,
        total_steps=plan.total_steps,
        epochs=plan.total_steps / batches.steps_per_epoch,
        precision=resolved.precision,
        zero_stage=resolved.stage,
        offload=resolved.offload,
        deepspeed_config=str(arguments.deepspeed_config),
        optimizer=f"{resolved.optimizer.type} lr {resolved.optimizer.params['lr']:g}",
        schedule=f"{schedule.kind} to {schedule.min_lr_ratio:g}, warmup {schedule.warmup_steps}",
        gradient_clipping=resolved.gradient_clipping,
        device=hardware.describe(),
        output_dir=str(config.output_dir),
        resumed_step=progress.step or None,
    )
