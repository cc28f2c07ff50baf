"""A training command from its options to its exit code, one phase a function.

Exit codes: 0 finished or stopped as asked, 1 the run failed (post-mortem written), 2 used wrongly.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from minimind.config import RunConfig, load_run_config
from minimind.data.conversations import Kind
from minimind.errors import UserError
from minimind.findings import Finding
from minimind.hardware import Hardware, detect
from minimind.model import Transformer
from minimind.training import setup
from minimind.training.arguments import config_options, parse
from minimind.training.checkpoints import Checkpoint, read_about, resolve_resume, restore_best
from minimind.training.deepspeed_config import Resolved, resolve
from minimind.training.engine import Control, Engine, start_processes
from minimind.training.health import before_run
from minimind.training.loop import Run, train
from minimind.training.metrics import Metrics
from minimind.training.recorder import Progress
from minimind.training.run_directory import write_run_files
from minimind.training.signals import StoppedEarly, StopRequest, say_stopped
from minimind.training.summary import schedule_lines, summarize

SFT_DEFAULTS = {"learning_rate": 1e-4}  # what "auto" means for fine-tuning: a tenth of pretraining's


def main(kind: Kind, argv: list[str] | None = None, stop: StopRequest | None = None) -> None:
    """Run ``launch/pretrain.py`` (kind "pretrain") or ``launch/sft.py`` ("sft") and exit."""
    arguments = parse(kind, argv)
    stop = stop or StopRequest().install()
    exit_with(lambda: run(kind, arguments, stop), arguments.debug, stop)


def exit_with(work: Callable[[], int], debug: bool, stop: StopRequest) -> NoReturn:
    """Exit with ``work``'s code; a UserError is one line from rank 0 (``debug``: a traceback) and code 2.

    Asked to stop before the first step is code 0, also where a rank learns of it by losing another one.
    """
    try:
        code = work()
    except UserError as error:
        if debug:
            traceback.print_exc()
        elif os.environ.get("RANK", "0") == "0":
            print(f"error: {error}", file=sys.stderr)
        code = 2
    except StoppedEarly as stopped:
        say_stopped(str(stopped))
        code = 0
    except Exception as error:
        if not stop.ended_early(error):
            raise
        say_stopped(stop.name)
        code = 0
    sys.stdout.flush()
    sys.exit(code)


def run(kind: Kind, arguments: argparse.Namespace, stop: StopRequest | None = None) -> int:
    """Configure, prepare, build, train, export."""
    stop = stop or StopRequest().install()
    config, model = configure(kind, arguments)
    hardware = detect()
    resolved = resolve_json(kind, arguments, config, hardware)

    start_processes(config.emulate_fp16)
    control = Control()
    data = setup.prepare_data(control, kind, config)
    batches = setup.make_batches(data, config, resolved)
    plan = setup.plan_steps(config, batches.steps_per_epoch, data.held_out is not None)
    resolved = resolved.with_total_steps(plan.total_steps, config)

    about = describe(config, resolved, data)
    # Rank 0 verifies for all: the hashes of a checkpoint are worth reading once, and the ranks must agree on it.
    checkpoint, damaged = control.first_does(
        lambda: find_checkpoint(arguments.resume, config.output_dir, about)
    )
    engine = setup.build_engine(model or setup.new_model(config), resolved, plan.schedule.factor, config)
    progress = Progress.from_state(engine.load(checkpoint.path)["progress"]) if checkpoint else Progress()

    if not arguments.dry_run:
        control.first_does(
            lambda: write_run_files(config.output_dir, config, resolved.config, hardware, data.tokenizer)
        )
        if checkpoint:
            control.first_does(lambda: restore_best(config.output_dir, progress.best_step))
    metrics = open_metrics(arguments, config, engine.rank, plan.total_steps, progress, checkpoint is not None)
    metrics.header(summarize(kind, config, resolved, data, batches, plan, hardware, progress, arguments))
    for finding in [*resolved.findings, *damaged, *usual_rates(kind, config, resolved)]:
        metrics.finding(finding)
    if arguments.dry_run:
        return end_dry_run(metrics, engine, resolved, plan, progress)

    stop.begin(engine.barrier)
    protected = {checkpoint.path} if checkpoint else set()
    reason = train(
        Run(config, data, batches, plan, engine, metrics, progress, stop, config.output_dir, about, protected,
            arguments.overfit_one_batch)
    )  # fmt: skip
    final = export(engine, config, data) if reason in ("finished", "early-stop") else None
    metrics.close(final, reason=reason)
    engine.close()
    return 1 if reason == "failed" else 0


def resolve_json(
    kind: Kind, arguments: argparse.Namespace, config: RunConfig, hardware: Hardware
) -> Resolved:
    """The DeepSpeed JSON, checked and filled for this run; the launcher says how many ranks there are."""
    return resolve(
        arguments.deepspeed_config,
        config,
        int(os.environ.get("WORLD_SIZE", "1")),
        hardware,
        emulate_fp16=config.emulate_fp16,
        num_parameters=config.model.num_parameters(),
        defaults=SFT_DEFAULTS if kind == "sft" else None,
    )


def open_metrics(
    arguments: argparse.Namespace,
    config: RunConfig,
    rank: int,
    total_steps: int,
    progress: Progress,
    resumed: bool,
) -> Metrics:
    """The run's metrics, cut back to the resumed step; an old run's are kept under another name."""
    return Metrics(
        config.output_dir,
        rank,
        config,
        total_steps,
        resumed_step=progress.step if resumed else None,
        wandb_id=progress.wandb_id,
        dry_run=arguments.dry_run,
    )


def usual_rates(kind: Kind, config: RunConfig, resolved: Resolved) -> list[Finding]:
    """Whether the learning rate is out of the band that is usual for the model's size."""
    rates = resolved.optimizer.params
    rate = rates.get("muon_lr", rates["lr"])
    return before_run(kind, resolved.optimizer.type, rate, config.model.num_parameters(), config.health)


def end_dry_run(
    metrics: Metrics, engine: Engine, resolved: Resolved, plan: setup.Plan, progress: Progress
) -> int:
    """Show the learning rate over the run, and train nothing."""
    if engine.rank == 0 and resolved.scheduler is None:
        print(*schedule_lines(plan, engine.lr / plan.schedule.factor(progress.step)), sep="\n")
    metrics.close(None, reason="dry run")
    return 0


def configure(kind: Kind, arguments: argparse.Namespace) -> tuple[RunConfig, Transformer | None]:
    """The run's configuration and, for fine-tuning, the model to start from (its shape and tokenizer count)."""
    config = load_run_config(arguments.config, arguments.set, config_options(arguments))
    if kind == "pretrain":
        return config, None
    from minimind.inference.generation import load_model

    model, tokenizer = load_model(arguments.model, "cpu")
    if "model" in config.explicit and config.model != model.config:
        raise UserError(
            f"the model settings differ from those of {arguments.model}; leave `model` out for SFT"
        )
    path = config.tokenizer or tokenizer.path
    return config.model_copy(update={"model": model.config, "tokenizer": path}), model


def describe(config: RunConfig, resolved: Resolved, data: setup.Data) -> dict[str, Any]:
    """What a checkpoint must agree with before it may be loaded."""
    return {
        "model": config.model.model_dump(),
        "tokenizer": data.tokenizer.fingerprint,
        "data": data.train.manifest["key"],
        "sources": data.parts and [[part.weight, part.files] for part in data.parts],
        "row_length": config.max_seq_length,
        "rows_per_step": resolved.micro_batch_size * resolved.accumulation * resolved.world_size,
        "seed": config.seed,
        "world_size": resolved.world_size,
        "zero_stage": resolved.stage,
        "offload": resolved.offload,
        "precision": resolved.precision,
        "optimizer": resolved.optimizer.type.lower(),
    }


def find_checkpoint(
    resume: str | None, run_dir: Path, about: dict[str, Any]
) -> tuple[Checkpoint | None, list[Any]]:
    """The checkpoint to go on from (None: a new run) and findings about those that could not be used.

    Raises UserError if there is none, or if it belongs to another run, with the list of differences.
    """
    if resume is None:
        return None, []
    checkpoint, findings = resolve_resume(Path(resume) if resume else run_dir)
    theirs = read_about(checkpoint.path)
    different = [f"{name} (checkpoint {theirs.get(name)}, now {now})" for name, now in about.items()
                 if theirs.get(name) != now]  # fmt: skip
    if different:
        raise UserError(
            f"{checkpoint.path}: can't resume, these differ: {'; '.join(different)}; "
            "give the settings of that run, or start a new one without --resume"
        )
    return checkpoint, findings


def export(engine: Engine, config: RunConfig, data: setup.Data) -> Path:
    """Write ``final/`` in Hugging Face layout; all ranks call it."""
    from minimind.interop.huggingface import save_pretrained

    final = config.output_dir / "final"
    if engine.rank == 0:
        save_pretrained(engine.weights(), config.model, data.tokenizer, final)
    engine.barrier()
    return final
