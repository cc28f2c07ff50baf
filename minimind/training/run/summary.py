"""The header's content: what a run is about to do."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from minimind.base.command_lines import OwnCommand
from minimind.base.hardware import Hardware
from minimind.base.strict.json_text import is_number, read_json
from minimind.config.deepspeed import Resolved
from minimind.config.deepspeed.optimizer import RATES
from minimind.config.memory import estimate_memory
from minimind.config.model import PRESETS
from minimind.config.run import RunConfig
from minimind.corpus.corpus import FLOOR_FILE
from minimind.data.records.conversations import Kind
from minimind.data.store.batches import Batches
from minimind.data.store.prepare import not_read
from minimind.training.engine.measure import measure_tokens_per_second
from minimind.training.record.recorder import Progress
from minimind.training.run.cadence import evaluation_cost
from minimind.training.run.next_commands import resume_command, tune_command
from minimind.training.run.setup import Data, Plan
from minimind.training.values import RunSummary, evaluations

NAMED = 3  # files in the header
START_UP_SECONDS = 0.3  # the header's estimate may cost this; the console's own comes with the first steps


def summarize(
    kind: Kind,
    config: RunConfig,
    resolved: Resolved,
    data: Data,
    batches: Batches,
    plan: Plan,
    hardware: Hardware,
    progress: Progress,
    arguments: argparse.Namespace,
    command: OwnCommand,
) -> RunSummary:
    """Collect the numbers that `Metrics.header` prints and keeps."""
    memory = estimate_memory(config, resolved, hardware=hardware)
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
        deepspeed_config=resolved.source,
        optimizer=_optimizer_line(resolved),
        schedule=_schedule_line(plan, resolved),
        gradient_clipping=resolved.gradient_clipping,
        device=hardware.describe(),
        output_dir=str(config.output_dir),
        memory_bytes=memory.peak,
        expected_seconds=_expected_seconds(
            config, resolved, batches, plan=plan, hardware=hardware, progress=progress, data=data
        ),
        resumed_step=progress.step or None,
        store=str(data.train.path),
        seed=config.seed,
        sources=batches.mixture.records() if batches.mixture else None,
        eval_remark=plan.eval_remark,
        unread=not_read(data.train.manifest["sources"]) or None,
        data=_data_line(config, data),
        held_out=_held_out(config, data),
        resume_command=resume_command(command),
        tune_command=tune_command(command, config, resolved.precision, Path(resolved.source)),
        command_remark=command.remark,
        eval_steps=plan.eval_steps,
        evaluation_cost=_evaluation_cost(config, batches, data),
        samples=_samples(config, plan),
        nats_per_byte_floor=_floor(data),
    )


def _samples(config: RunConfig, plan: Plan) -> str | None:
    """What `samples:` will cost, in tokens at most; or that nothing will come of it."""
    asked = config.samples
    if not asked.prompts:
        return None
    if plan.eval_steps is None:
        return "none, for they are written at evaluations: give --eval-file"
    count = len(asked.prompts)
    number = "1 prompt" if count == 1 else f"{count} prompts"
    return f"{number}, {count * asked.max_new_tokens:,} tokens at most, generated on rank 0 after each evaluation"


def _data_line(config: RunConfig, data: Data) -> str:
    """What is trained on, and a tokenizer that came of it."""
    if not config.train_paths:
        return "the built-in corpus: no --train-file was given"
    made = f"; a tokenizer of {data.tokenizer.vocab_size:,} pieces trained on it" if data.trained_tokenizer else ""
    return f"{_files(config.train_paths)}{made}"


def _files(paths: Sequence[Path]) -> str:
    """The first files by name, and how many more there are; empty for none."""
    more = f" and {len(paths) - NAMED:,} more" if len(paths) > NAMED else ""
    return ", ".join(map(str, paths[:NAMED])) + more


def _held_out(config: RunConfig, data: Data) -> str | None:
    if data.held_out is None:
        return None
    return f"{_files(config.eval_file) or 'the built-in corpus'}, {len(data.held_out):,} documents"


def _floor(data: Data) -> float | None:
    """The entropy of the held-out texts, in nats a byte, where they are the built-in corpus's: its floor.json beside
    them says how much text it speaks of.
    """
    store = data.held_out
    if store is None or store.kind != "pretrain" or len(store.manifest["sources"]) != 1:
        return None
    try:
        floor = read_json(Path(store.manifest["sources"][0]["path"]).parent, FLOOR_FILE, limit=1 << 16)
    except (OSError, ValueError):
        return None
    known = isinstance(floor, dict) and floor.get("utf8_bytes") == store.num_bytes
    return floor["nats_per_byte"] if known and is_number(floor.get("nats_per_byte")) else None


def _evaluation_cost(config: RunConfig, batches: Batches, data: Data) -> float:
    """One evaluation in optimizer steps."""
    if data.held_out is None:
        return 0.0
    return evaluation_cost(batches.rows_per_step * config.max_seq_length, data.held_out.num_predictions)


def _expected_seconds(
    config: RunConfig,
    resolved: Resolved,
    batches: Batches,
    plan: Plan,
    hardware: Hardware,
    progress: Progress,
    data: Data,
) -> float | None:
    """Length of the run, its evaluations included, by this machine's speed on one micro-batch; None on several ranks,
    which share the machine.
    """
    if resolved.world_size > 1:
        return None
    steps = float(plan.total_steps - progress.step)
    if plan.eval_steps is not None:
        count = evaluations(progress.step, plan.total_steps, plan.total_steps, plan.eval_steps)
        steps += count * _evaluation_cost(config, batches, data)
    positions = steps * batches.rows_per_step * config.max_seq_length
    return positions / measure_tokens_per_second(config, resolved, hardware, budget=START_UP_SECONDS)


def _schedule_line(plan: Plan, resolved: Resolved) -> str:
    if resolved.scheduler is not None:
        return f"DeepSpeed's {resolved.scheduler['type']}"
    return f"{plan.schedule.kind} to {plan.schedule.min_lr_ratio:g}, warmup {plan.schedule.warmup_steps}"


def _optimizer_line(resolved: Resolved) -> str:
    """The optimizer with its peak rates and decay: what decides a run's loss more than anything else here."""
    params = resolved.optimizer.params
    rates = [f"{name.replace('_', ' ')} {params[name]:g}" for name in RATES if name in params]
    return f"{resolved.optimizer.type}, {', '.join(rates)}, weight decay {params.get('weight_decay', 0.0):g}"


def schedule_lines(plan: Plan, peak: float, columns: int = 60) -> list[str]:
    """The learning rate over the run as one line of blocks, and its exact start, peak and end."""
    steps = [round(i * (plan.total_steps - 1) / max(columns - 1, 1)) for i in range(columns)]
    factors = [plan.schedule.factor(step) for step in steps]
    blocks = "".join("▁▂▃▄▅▆▇█"[min(int(factor * 8), 7)] for factor in factors)
    first, last = plan.schedule.factor(0), plan.schedule.factor(plan.total_steps - 1)
    top = min(max(plan.schedule.warmup_steps, 1), plan.total_steps)
    highest = plan.schedule.factor(top - 1)
    return [
        f"learning rate  {blocks}",
        f"{'':15}step 1: {peak * first:.3g}, step {top}: {peak * highest:.3g}, "
        f"step {plan.total_steps}: {peak * last:.3g}",
    ]
