"""What a training command is told: its options, the YAML and the JSON, checked against each other and this machine.

Nothing is written here; a UserError comes before there is anything to clean up.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from minimind.base.command_lines import OwnCommand, Started
from minimind.base.errors import UserError
from minimind.base.findings import Finding
from minimind.base.hardware import Hardware, detect
from minimind.config.deepspeed import Resolved, resolve
from minimind.config.deepspeed.source import chosen_source
from minimind.config.heartbeat import HeartbeatConfig
from minimind.config.run import RunConfig, load_run_config
from minimind.data.records.conversations import Kind
from minimind.model.transformer import Transformer
from minimind.training.engine.engine import start_processes
from minimind.training.process.heart.heartbeat import Agreement
from minimind.training.process.meeting import PeerLost, meet
from minimind.training.process.ranks import Control, with_host
from minimind.training.process.starter.typed_line import find_started, shared
from minimind.training.process.world import several_hosts
from minimind.training.run.arguments import config_options, own_command
from minimind.training.run.builder import new_model
from minimind.training.run.requirements import require, without_missing_monitor


@dataclass(frozen=True)
class Task:
    """What is to be trained, and how. ``resolved``: the JSON, not knowing the number of steps yet."""

    kind: Kind
    arguments: argparse.Namespace
    config: RunConfig
    new_model: Callable[[Resolved], Transformer]  # the one to start from
    hardware: Hardware
    resolved: Resolved
    remarks: list[Finding]  # what is unwise on this machine
    started: Started | None = None  # how, where a process says so

    @property
    def command(self) -> OwnCommand:
        """How this process was started, for lines that a person may type."""
        own = own_command(self.kind, self.arguments, self.resolved.world_size, self.hardware)
        return replace(own, started=self.started)


Watch = Callable[[Agreement, Task], list[Finding]]


def join(kind: Kind, arguments: argparse.Namespace, watch: Watch) -> tuple[Task, Control, list[Finding]]:
    """The task, and the ranks that share it; from their meeting on ``watch`` has them watched, and says what is wrong
    with that. What is wrong on one of several hosts ends the others, too, and is said there: they would wait for a rank
    that is gone."""
    failure = None
    try:
        task = make_task(kind, arguments)
    except UserError as error:
        if not several_hosts():
            raise
        failure = error
    limit = (HeartbeatConfig() if failure is not None else task.config.heartbeat).start_limit
    try:
        meeting = meet(limit)
    except (UserError, PeerLost) as error:  # another rank is not there: what is wrong here comes first
        raise failure or error from None
    if meeting is not None:
        meeting.all_raise(None if failure is None else str(with_host(failure, meeting.rank)))
        task, notes = _begun(task, meeting, watch)
    start_processes(task.config.emulate_fp16)
    control = Control()
    if meeting is None:
        task, notes = _begun(task, control, watch)
    return task, control, notes


def _begun(task: Task, ranks: Agreement, watch: Watch) -> tuple[Task, list[Finding]]:
    """The task with the line that has started it, and watched over."""
    own = find_started(sys.argv[0], getattr(task.arguments, "words", ()), os.environ)
    task = replace(task, started=shared(ranks, own))
    return task, watch(ranks, task)


def make_task(kind: Kind, arguments: argparse.Namespace) -> Task:
    """Read and check all that the command is told. Raises UserError."""
    config, first_model = configure(kind, arguments)
    hardware = detect()
    _require_devices(hardware)
    resolved = without_missing_monitor(resolve_json(kind, arguments, config, hardware))
    remarks = require(resolved, config, hardware)
    return Task(kind, arguments, config, first_model, hardware=hardware, resolved=resolved, remarks=remarks)


def _require_devices(hardware: Hardware) -> None:
    """Each rank of this host needs a GPU of its own; some schedulers show each process one, whatever its number."""
    ranks = max(int(os.environ.get(name) or 0) for name in ("LOCAL_WORLD_SIZE", "LOCAL_SIZE"))
    ranks = max(ranks, int(os.environ.get("LOCAL_RANK", "0")) + 1)
    if hardware.device_type == "cuda" and ranks > hardware.count:
        seen = f"{ranks} ranks on {socket.gethostname()}, and a process sees {hardware.count} GPU"
        advice = f"start fewer; under SLURM give --gpus-per-node {ranks}, not --gpus-per-task, which hides the others'"
        raise UserError(f"{seen}{'s' if hardware.count > 1 else ''}: {advice}")


def configure(kind: Kind, arguments: argparse.Namespace) -> tuple[RunConfig, Callable[[Resolved], Transformer]]:
    """The run's configuration, and what makes the model to start from: the given one, or a new one."""
    config = load_run_config(arguments.config, arguments.set, config_options(arguments))
    start = first_weights(kind, arguments.model, config)
    if start is None:
        return config, lambda resolved: new_model(config, resolved)
    from minimind.inference.generation import load_model

    if start.resolve() == config.output_dir.resolve():
        raise UserError(f"{config.output_dir}: is the model to start from; give another --output-dir")
    model, tokenizer = load_model(start, "cpu", tokenizer=config.tokenizer)
    if "model" in config.explicit and config.model != model.config:
        raise UserError(f"the model settings differ from those of {start}; leave `model` out with --model")
    config = config.model_copy(update={"model": model.config, "tokenizer": tokenizer.path})
    return config, lambda _: load_model(start, "cpu", tokenizer=tokenizer.path)[0]


def first_weights(kind: Kind, option: Path | None, config: RunConfig) -> Path | None:
    """What a run starts from: ``--model``, else the YAML's ``model_name_or_path``, a local directory; for pretraining
    also None, a new model."""
    if option is not None:
        return option
    path = config.model_name_or_path
    if path is None:
        if kind == "pretrain":
            return None
        raise UserError("no model to start from: pass --model, or set model_name_or_path in the YAML")
    if not path.exists():
        place = config.place("model_name_or_path")
        raise UserError(f"{place}: model_name_or_path {path}: no such directory; download the model, and name its path")
    return path


def resolve_json(kind: Kind, arguments: argparse.Namespace, config: RunConfig, hardware: Hardware) -> Resolved:
    """The DeepSpeed JSON, checked and filled for this run; the launcher says how many ranks there are."""
    return resolve(
        chosen_source(arguments.deepspeed_config, config),
        config,
        int(os.environ.get("WORLD_SIZE", "1")),
        hardware,
        emulate_fp16=config.emulate_fp16,
        num_parameters=config.model.num_parameters(),
        kind=kind,
        strict=arguments.strict,
    )
