"""Before a run: memory by rank, steps and time (``minimind plan``).

Memory is counted (``memory.py``), optimizer states are measured on one layer, speed is measured on this
machine. What is neither counted nor measured is "n/a": steps without a prepared store, time on other hardware
or on several ranks.
Weakness: one GiB is set aside, by guess, for the CUDA context, the libraries and fragmentation.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from minimind.base.command_lines import typed
from minimind.base.defaults import USUAL_MFU
from minimind.base.display import say
from minimind.base.errors import UserError
from minimind.base.hardware import Hardware, detect
from minimind.commands.cards import (
    PRECISIONS,
    Measured,
    Question,
    card_table,
    fitting_rows,
    shipped_form,
    update_line,
)
from minimind.config.deepspeed import Resolved, resolve
from minimind.config.deepspeed.source import chosen_source
from minimind.config.memory import RESERVE, Memory, estimate_memory, largest_micro_batch
from minimind.config.run import RunConfig, load_run_config

TABLE_SECONDS = 5.0  # for measuring this machine, of about ten with what is around it
_UNITS = {"": 1, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


@dataclass(frozen=True)
class Table:
    """What is asked of the table of cards. ``tokens`` to train on (None: the run's own, if its steps are known);
    ``mfu``: share of a card's peak that is assumed; ``measure``: this machine, for some ten seconds."""

    tokens: float | None = None
    mfu: float = USUAL_MFU
    measure: bool = False


def parse_tokens(text: str) -> float:
    """``330M``, ``1.5B``, ``2e9`` -> tokens. UserError for anything else."""
    match = re.fullmatch(r"\s*([\d.]+(?:e\d+)?)\s*([kmbgt]?)\s*", text.lower())
    try:
        count = float(match[1]) * {**_UNITS, "b": 1e9}[match[2]] if match else 0.0
    except ValueError:
        count = 0.0
    if not 0 < count < 1e18:
        raise UserError(f'--tokens "{text}": expected a number like 330M or 1.5B')
    return count


def steps_per_epoch(run: RunConfig, resolved: Resolved) -> int | None:
    """Exact if the one training file is a prepared store, else None: raw files must be tokenised to know."""
    from minimind.data.store.batches import Batches
    from minimind.data.store.files import MANIFEST
    from minimind.data.store.store import TokenStore

    files = run.train_paths
    if len(files) != 1 or run.train_weights or not (files[0] / MANIFEST).is_file():
        return None
    store = TokenStore.open(files[0])
    batches = Batches(
        store,
        row_length=run.max_seq_length,
        micro_batch_size=resolved.micro_batch_size,
        accumulation=resolved.accumulation,
        world_size=resolved.world_size,
        seed=run.seed,
    )
    return batches.steps_per_epoch


def parse_bytes(text: str) -> int:
    """``24GiB``, ``24G``, ``24576MiB`` -> bytes; raises UserError for anything else."""
    match = re.fullmatch(r"\s*([\d.]+)\s*([kmgt]?i?)b?\s*", text.lower())
    try:
        return int(float(match[1]) * _UNITS[match[2]]) if match else int(text)
    except (ValueError, KeyError):
        raise UserError(f'--device-memory "{text}": expected a size like 24GiB') from None


def _size(count: float) -> str:
    return f"{count / 2**30:.2f} GiB" if count >= 2**28 else f"{count / 2**20:.1f} MiB"


def _memory_lines(memory: Memory, resolved: Resolved, state_bytes: float, count: int) -> list[tuple[str, str]]:
    place = " (in CPU memory)" if resolved.offload else ""
    total = f"{_size(memory.weights)} weights"
    if resolved.offload_param:
        half = 4 if resolved.precision == "fp32" else 2
        total = f"{_size(half * count / resolved.world_size)} weights (in CPU memory)"
    if memory.masters or resolved.offload:
        total += f" + {_size(4 * count / resolved.world_size)} fp32 masters{place}"
    optimizer = memory.optimizer or state_bytes * count / resolved.world_size
    return [
        ("model states", f"{total} + {_size(optimizer)} {resolved.optimizer.type} states{place}"),
        ("optimizer state", f"{state_bytes:.2f} bytes a parameter (measured on one layer)"),
        ("gradients", f"{_size(memory.gradients)}, buckets {_size(memory.buckets)}"),
        *([("gathered", f"{_size(memory.gathered)} weights at once (estimated)")] if resolved.stage == 3 else []),
        ("activations", f"{_size(memory.activations)} + {_size(memory.logits)} loss chunk (estimated)"),
        (
            "peak by rank",
            f"{_size(memory.peak)} on the device" + (f", {_size(memory.host)} CPU" if memory.host else ""),
        ),
    ]


def offload_line(run: RunConfig, resolved: Resolved, state_bytes: float, on_cpu: bool) -> str:
    """What optimizer offload saves and what it costs, whether it is on or not."""
    count = run.model.num_parameters()
    saved = (8 + state_bytes) * count / resolved.world_size
    if on_cpu:
        return "saves nothing on a CPU: device memory and CPU memory are the same"
    moved = 4 * count / resolved.world_size  # half gradients down, half weights up
    word = "saves" if resolved.offload else "would save"
    return (
        f"{word} up to {_size(saved)} of device memory; costs {_size(moved)} over PCIe each step (at least "
        f"{moved / 25e9 * 1e3:.1f} ms at 25 GB/s) and an update on the CPU's cores"
    )


def _prepare_command(run: RunConfig) -> str:
    """The command that prepares the run's files; how to, if it names none."""
    if not run.train_file or run.tokenizer is None:
        return "minimind prepare --help"
    store = run.output_dir.with_name(f"{run.output_dir.name}-store")
    return typed("minimind", "prepare", *run.train_paths, "--tokenizer", run.tokenizer, "--output", store)


def _time_lines(run: RunConfig, resolved: Resolved, speed: float | None) -> list[tuple[str, str]]:
    epoch, tokens = steps_per_epoch(run, resolved), _tokens(run, resolved)
    total = round(tokens / (resolved.train_batch_size * run.max_seq_length)) if tokens else None
    rate = (
        f"{speed:,.0f} tokens/s (forward and backward, measured here)"
        if speed
        else "n/a (measured on one local device)"
    )
    seconds = f"{tokens / speed / 60:,.1f} minutes" if speed and tokens else "n/a"
    reason = "" if epoch else f" (prepare the data first: {_prepare_command(run)})"
    return [
        ("steps an epoch", f"{epoch:,}" if epoch else f"n/a{reason}"),
        ("steps", f"{total:,}" if total else "n/a"),
        ("speed", rate),
        ("time", seconds),
    ]


def run_plan(
    deepspeed_config: Path | None,
    config: Path | None = None,
    overrides: Sequence[str] = (),
    device_memory: str | None = None,
    num_gpus: int = 1,
    strict: bool = False,
    wanted: Table = Table(),
) -> int:
    """Print the plan of a run, and the table of cards. Returns 0 if it fits, 1 if not. UserError for a wrong config."""
    from minimind.training.engine.measure import measure_state_bytes, measure_update_seconds

    run = load_run_config(config, overrides)
    here = detect()
    # A size given by hand means another machine: a GPU that has every precision
    hardware = here if device_memory is None else Hardware("cuda", True, True, "device", parse_bytes(device_memory))
    source = chosen_source(deepspeed_config, run)
    resolved = resolve(source, run, num_gpus, hardware, run.emulate_fp16, strict=strict)
    state_bytes = measure_state_bytes(resolved.optimizer, run.model)
    memory = estimate_memory(run, resolved, state_bytes=state_bytes, hardware=hardware)
    question = _question(run, resolved, wanted)
    measured = {} if device_memory else _measure(question, resolved, here, every=wanted.measure)
    own = measured.get(resolved.precision) if num_gpus == 1 else None
    count = run.model.num_parameters()
    lines = [
        ("model", f"{count:,} parameters"),
        ("config", f"{resolved.source}: {resolved.precision}, ZeRO stage {resolved.stage}, {num_gpus} rank(s)"),
        ("batch", resolved.explain_batch(run.max_seq_length)),
        *_memory_lines(memory, resolved, state_bytes, count),
        ("offload", offload_line(run, resolved, state_bytes, hardware.device_type == "cpu")),
        *_time_lines(run, resolved, own and own.tokens_per_second),
    ]
    for finding in resolved.findings:
        lines.append((finding.code, f"{finding.message}: {finding.advice}"))
    fits, verdict = _verdict(run, resolved, memory, hardware, state_bytes)
    for label, text in [*lines, ("verdict", verdict)]:
        say(f"{label:<18}{text}")
    for line in card_table(question, None if device_memory else here, measured):
        say(line)
    if wanted.measure:
        say(update_line(question, measure_update_seconds(run.model)))
    return 0 if fits else 1


def _question(run: RunConfig, resolved: Resolved, wanted: Table) -> Question:
    """What the table of cards is asked."""
    import torch

    from minimind.model.transformer import Transformer
    from minimind.training.engine.measure import count_launches

    tokens = wanted.tokens or _tokens(run, resolved)
    with torch.device("meta"):
        flops = Transformer(run.model, seed=None).flops_per_token(run.max_seq_length)
    return Question(run, resolved.world_size, tokens, flops, count_launches(run.model), mfu=wanted.mfu)


def _tokens(run: RunConfig, resolved: Resolved) -> float | None:
    """Positions that the run trains on, where its steps are known."""
    epoch = steps_per_epoch(run, resolved)
    total = run.max_steps or (math.ceil(run.num_train_epochs * epoch) if epoch else None)
    return total * resolved.train_batch_size * run.max_seq_length if total else None


def _measure(question: Question, resolved: Resolved, here: Hardware, every: bool) -> dict[str, Measured]:
    """This machine's speed: in the run's precision, or in ``every`` one that it has, with the rows that suit it."""
    from minimind.training.engine.measure import best_rows, measure_tokens_per_second

    precisions = [name for name in PRECISIONS if name == "fp32" or here.bf16] if every else []
    found = {}
    for name in precisions:
        form, most = shipped_form(question, name, here), fitting_rows(question, name, here)
        if form is not None and most:
            rows, speed = best_rows(question.run, form, here, budget=TABLE_SECONDS / len(precisions), most=most)
            found[name] = Measured(speed, rows)
    if resolved.precision not in found and question.ranks == 1:
        found[resolved.precision] = Measured(measure_tokens_per_second(question.run, resolved, here))
    return found


def _verdict(
    run: RunConfig, resolved: Resolved, memory: Memory, hardware: Hardware, state_bytes: float
) -> tuple[bool, str]:
    if hardware.memory is None:
        return True, "n/a: the device's memory is unknown; give --device-memory"
    rows = largest_micro_batch(run, resolved, hardware.memory, state_bytes, hardware)
    need = memory.peak + RESERVE + (memory.host if hardware.device_type == "cpu" else 0)
    room = f"{_size(need)} of {_size(hardware.memory)} (with 1 GiB set aside)"
    if need <= hardware.memory:
        return True, f"fits: {room}; the largest micro-batch is about {rows}"
    hint = f"use a micro-batch of {rows} or less" if rows else "use a smaller model or a larger device"
    return False, f"does not fit: {room}; {hint}, or gradient_checkpointing: true"
