"""What a person may type after, or instead of, a run: whole commands made of its own options."""

from __future__ import annotations

from pathlib import Path

from minimind.base.command_lines import NextLines, OwnCommand, typed
from minimind.base.hardware import advised_config, purpose_of
from minimind.base.shipped import from_here
from minimind.config.run import RunConfig

PRETRAIN_ONLY = ("--max-steps", "--overfit-one-batch", "--eval-file")  # what a sweep has no use for
# Settings that a machine or a model needs, and that fine-tuning takes over
_TAKEN_OVER = (
    "max_seq_length",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "gradient_checkpointing",
    "attention_backend",
    "compile",
)


def resume_command(command: OwnCommand) -> str:
    """Go on with the run."""
    return command.line("--resume")


def next_lines(command: OwnCommand, resume: str | None) -> NextLines:
    """For what watches over a run; ``resume``: the value of that option, None without it."""
    again = [] if resume is None else ["--resume", *([resume] if resume else [])]
    return NextLines(in_words(command, resume_command(command)), in_words(command, command.line(*again)))


def in_words(command: OwnCommand, line: str) -> str:
    """How ``line``, which is made of ``command``, is to be typed: the end of a sentence, after "go on"."""
    return f"{f'({command.remark}) ' if command.remark else ''}with: {line}"


def sweep_command(command: OwnCommand, config: RunConfig, low: float, high: float) -> str:
    """Compare rates from ``low`` to ``high`` on the run's data, beside its directory."""
    output = config.output_dir.with_name(f"{config.output_dir.name}-sweep")
    return command.line(
        "--from",
        f"{low:.2g}",
        "--to",
        f"{high:.2g}",
        "--output-dir",
        output,
        without=(*PRETRAIN_ONLY, "--output-dir"),
        script="lr_sweep",
    )


def tune_command(command: OwnCommand, config: RunConfig, precision: str, deepspeed_config: Path) -> str | None:
    """Fine-tune the model on the built-in conversations; None if it was trained on other files.

    Then the conversations are for the user to name.
    """
    if config.train_file:
        return None
    demo = purpose_of(str(deepspeed_config)) == "demo_"
    json_file = advised_config(str(deepspeed_config), "sft", precision)
    run = config.output_dir
    words: list[object] = ["--deepspeed_config", json_file, "--model", run]
    words += ["--config", from_here(Path("configs") / "demo_sft.yaml")] if demo else []
    words += ["--output-dir", run.with_name(f"{run.name}-sft")]
    words += ["--emulate-fp16"] if config.emulate_fp16 else []
    values = config.model_dump(mode="json")
    for name in _TAKEN_OVER if not demo else ():
        if name in config.explicit:
            words += ["--set", f"{name}={str(values[name]).lower()}"]
    return typed(*command.before("sft"), *words)
