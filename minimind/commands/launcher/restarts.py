"""`minimind launch --restarts N`: after a lost host or rank the run is started again from its last checkpoint.

On the hosts of the hostfile that answer to ssh; with fewer ranks each step keeps its rows by more accumulation, or the
launch ends with the reason why it can't. The script goes on with ``--resume auto``, and is told why (``--restarted``),
which it writes into metrics.jsonl. Weakness: this process must live; run it on a host of the run, best the first one.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from minimind.base.command_lines import RESTARTABLE
from minimind.base.defaults import POST_MORTEM, RUN_JSON, Kind
from minimind.base.errors import UserError
from minimind.base.strict.json_text import read_json, reason_of
from minimind.commands.launcher.hostfile import silent
from minimind.commands.launcher.words import read_words, resources

OPTION = "--restarts"
SCRIPTS = tuple(f"{name}.py" for name in RESTARTABLE)  # that know --resume auto
ENDS = (0, 2, 130)  # exit codes after which there is nothing to start again
PAUSE = 5.0  # seconds for the other hosts to notice and end


@dataclass(frozen=True)
class Batch:
    """How a run's step is made up, as its first rank wrote it down."""

    rows: int  # of a step
    micro: int  # of a rank's micro-batch

    def accumulation(self, ranks: int) -> int:
        """Micro-batches a rank and step, so that a step keeps its rows. Raises UserError where that can't be."""
        accumulation, rest = divmod(self.rows, self.micro * ranks)
        if rest:
            raise UserError(
                f"a step of {self.rows} rows can't be made of micro-batches of {self.micro} on {ranks} ranks; "
                "start it by hand with another per_device_train_batch_size, or wait for the lost host"
            )
        return accumulation


@dataclass(frozen=True)
class Launch:
    """The words of `minimind launch`, without ``--restarts``."""

    words: tuple[str, ...]

    @property
    def options(self) -> argparse.Namespace:
        """Of the launcher, and the script with its words."""
        return read_words(self.words)

    @property
    def head(self) -> list[str]:
        """What stands before the script."""
        return list(self.words[: len(self.words) - len(self.options.user_args) - 1])

    @property
    def run_dir(self) -> Path:
        """The script's run directory. Raises UserError for another script than this project's training."""
        options = self.options
        if Path(options.user_script).name not in SCRIPTS or options.no_ssh:
            what = "with --no_ssh, where each host has a launcher of its own," if options.no_ssh else "this script"
            raise UserError(f"{OPTION}: {what} can't be started again; it is for {' and '.join(SCRIPTS)}")
        if unnamed := [host for host in resources(options) if set(host) & set("@:")]:
            advice = "give it a name in ~/.ssh/config or /etc/hosts"
            raise UserError(f"{OPTION} leaves a lost host out by --include, which can't name {unnamed[0]}: {advice}")
        from minimind.config.run import load_run_config
        from minimind.training.run.arguments import config_options, parse

        kind: Kind = "pretrain" if Path(options.user_script).name == "pretrain.py" else "sft"
        arguments = parse(kind, options.user_args)
        return load_run_config(arguments.config, arguments.set, config_options(arguments)).output_dir

    def again(self, run_dir: Path, reason: str) -> Launch:
        """The words of the next start, on the hosts that answer. Raises UserError where a step can't keep its rows."""
        options = self.options
        active = resources(options)
        left = answering(active, options.ssh_port) if options.hostfile else active
        before, ranks = (sum(map(len, hosts.values())) for hosts in (active, left))
        head, script, told = self.head, _without(options.user_args, "--resume", "--restarted"), []
        if set(left) != set(active):
            lost = ", ".join(host for host in active if host not in left)
            reason = f"{reason}; {lost} {'does' if len(active) - len(left) == 1 else 'do'} not answer"
        if ranks != before:
            accumulation = read_batch(run_dir).accumulation(ranks)
            told = ["--set", f"gradient_accumulation_steps={accumulation}"]
            reason += f": {ranks} ranks instead of {before}, {accumulation} micro-batches a step"
            head = [*_without(head, "-i", "--include", "-e", "--exclude"), "--include", _include(left)]
        words = [*head, options.user_script, *script, *told, "--resume", "auto", "--restarted", reason]
        return Launch(tuple(words))


def taken_from(words: Sequence[str]) -> tuple[int, Launch]:
    """The number of ``--restarts`` (0 without), and the rest. UserError if it is none."""
    script = next((i for i, word in enumerate(words) if word.endswith(".py")), len(words))
    head = list(words[:script])
    places = [i for i, word in enumerate(head) if word.partition("=")[0] == OPTION]
    if not places:
        return 0, Launch(tuple(words))
    (at, *_) = places
    value = head[at].partition("=")[2] or (head[at + 1] if at + 1 < len(head) else "")
    if not value.isdecimal() or len(places) > 1:
        raise UserError(f"{OPTION} {value}: expected one number, how often a lost run may be started again")
    del head[at : at + (1 if "=" in words[at] else 2)]
    return int(value), Launch((*head, *words[script:]))


def may_restart(code: int, run_dir: Path, began: float) -> bool:
    """Whether a run that ended with ``code``, begun at the time ``began``, has lost something that a start can mend."""
    if code in ENDS:
        return False
    report = run_dir / POST_MORTEM  # the recovery ladder has given up: it would again
    return not (report.is_file() and report.stat().st_mtime >= began)


def answering(active: dict[str, list[int]], port: int | None) -> dict[str, list[int]]:
    """The hosts that can be entered by ssh now. Raises UserError if there is none."""
    time.sleep(PAUSE)
    problems = silent(active, port)
    left = {host: slots for host, slots in active.items() if host not in problems}
    if not left:
        raise UserError(f"no host answers: {'; '.join(f'{host}: {why}' for host, why in problems.items())}")
    return left


def read_batch(run_dir: Path) -> Batch:
    """From the JSON that the run has written down, resolved. Raises UserError."""
    path = run_dir / RUN_JSON
    try:
        config = read_json(run_dir, RUN_JSON)
        return Batch(int(config["train_batch_size"]), int(config["train_micro_batch_size_per_gpu"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        why = reason_of(error) if isinstance(error, (OSError, ValueError)) else "it has no batch sizes"
        raise UserError(f"{path}: how many rows a step has can't be read ({why}): start it again by hand") from None


def _include(hosts: dict[str, list[int]]) -> str:
    return "@".join(f"{host}:{','.join(map(str, slots))}" for host, slots in hosts.items())


def _without(words: Sequence[str], *options: str) -> list[str]:
    """The words less these options, each with the value that follows it, if one does."""
    kept: list[str] = []
    dropping = False
    for word in words:
        if word.startswith("-"):
            dropping = word.partition("=")[0] in options
        if not dropping:
            kept.append(word)
        elif not word.startswith("-"):
            dropping = False
    return kept
