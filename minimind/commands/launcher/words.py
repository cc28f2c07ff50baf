"""The words of the `deepspeed` command, looked at before it starts: what its launcher would end with a traceback for.

``read_words`` parses them as launcher/runner.py does, ``check`` says what can't work here (runner.py and launch.py,
0.19.8, each ``raise``, ``assert`` and start of a program, and what it would silently take for something else),
``prepared`` adds a free port where the launcher would take 29500, and for other hosts what these need (remote.py).
What is left for the runner to raise is put into one line by runner.py.

Every host that pdsh is to enter is asked by ssh, where the launcher asks the first one alone and the others' ranks are
missed later. Weakness: of other hosts nothing else is looked at (`minimind doctor --hostfile` does).
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from minimind.base.errors import UserError
from minimind.base.launcher import free_port, port_problem
from minimind.base.problems import nearest
from minimind.commands.launcher.devices import ACCELERATORS, count_devices, physical_cores
from minimind.commands.launcher.hostfile import chosen_slots, is_here, read_hostfile, silent
from minimind.commands.launcher.remote import for_other_hosts

DEFAULT_HOSTFILE = Path("/job/hostfile")
DEFAULT_PORT = 29500  # the launcher's
# What each launcher of several hosts is found by (launcher/multinode_runner.py ``backend_exists``)
LAUNCHERS = {
    "pdsh": "pdsh",
    "openmpi": "ompi_info",
    "mpich": "mpirun",
    "impi": "mpirun",
    "mvapich": "mpiname",
    "slurm": "sinfo",
}
LEVELS = ["debug", "info", "warning", "error", "critical"]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"minimind launch: {message}; `deepspeed --help` lists what stands before the script")


def parser() -> argparse.ArgumentParser:
    """The options of launcher/runner.py ``parse_args``."""
    new = _Parser(prog="minimind launch", add_help=False)
    new.add_argument("-H", "--hostfile")
    new.add_argument("-i", "--include", default="")
    new.add_argument("-e", "--exclude", default="")
    new.add_argument("--num_gpus", "--num_accelerators", type=int, default=-1)
    for name in ("--num_nodes", "--node_rank"):
        new.add_argument(name, type=int, default=-1)
    for name in ("--master_port", "--ssh_port"):
        new.add_argument(name, type=int)
    for name in ("--master_addr", "--launcher_args", "--bind_core_list", "--venv_script"):
        new.add_argument(name)
    new.add_argument("--launcher", default="pdsh")
    new.add_argument("--enable_each_rank_log", default="None")
    new.add_argument("--autotuning", default="", choices=["tune", "run"])
    new.add_argument("--log_level", default="info", choices=LEVELS)
    for name in (
        "module",
        "no_python",
        "no_local_rank",
        "no_ssh",
        "no_ssh_check",
        "force_multi",
        "save_pid",
        "bind_cores_to_rank",
    ):
        new.add_argument(f"--{name}", action="store_true")
    new.add_argument("-q", "--quiet", action="store_true")
    new.add_argument("user_script")
    new.add_argument("user_args", nargs=argparse.REMAINDER)
    return new


def read_words(words: Sequence[str]) -> argparse.Namespace:
    """The launcher's options. Raises UserError for words that it would refuse."""
    options, unknown = parser().parse_known_args(list(words))
    if unknown:
        known = [name for action in parser()._actions for name in action.option_strings]
        raise UserError(
            f"minimind launch: the launcher has no option {unknown[0]}{nearest(unknown[0], known)}; "
            "the script's own options stand after the script"
        )
    return options


def prepared(words: Sequence[str]) -> list[str]:
    """``words`` as the launcher gets them, with a port. Raises UserError for the first thing that can't work here."""
    options = read_words(words)
    active = check(options)
    if over_network(options, active):
        words = for_other_hosts(words, options, first=next(iter(active)))
    return [*_port(options, active), *words]


def check(options: argparse.Namespace) -> dict[str, list[int]]:
    """The slots that will run, by host. Raises UserError for the first thing that can't work here."""
    for problem in (*_accelerator(), *_script(options), *_logs(options)):
        raise UserError(problem)
    active = resources(options)
    for problem in (*_hosts(options, active), *_binding(options, active), *_given_port(options, active)):
        raise UserError(problem)
    return active


def resources(options: argparse.Namespace) -> dict[str, list[int]]:
    """Slots by host after hostfile, filters, CUDA_VISIBLE_DEVICES and numbers. Raises UserError."""
    slots = _slots(options)
    include, exclude = options.include, options.exclude
    if include and exclude:
        raise UserError("--include and --exclude exclude each other: give one of them")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "") if slots is None else ""
    by_variable = visible and not (include or exclude or options.num_nodes > 1 or options.num_gpus > 0)
    if (options.num_nodes >= 0 or options.num_gpus >= 0) and (include or exclude or by_variable):
        other = "CUDA_VISIBLE_DEVICES" if by_variable else "--include" if include else "--exclude"
        raise UserError(f"--num_gpus and --num_nodes can't stand beside {other}: give one of them")
    if slots is None and options.num_nodes > 1:
        raise UserError(f"--num_nodes {options.num_nodes} needs a hostfile that names the others: give --hostfile")
    if by_variable:
        return _visible(visible)
    for name, value in (("--num_nodes", options.num_nodes), ("--num_gpus", options.num_gpus)):
        if value < 1 and value != -1:  # the launcher would take all
            raise UserError(f"{name} {value}: expected a number above 0")
    active = _filtered(slots, include, exclude)
    if slots is not None and options.num_nodes > len(slots):  # the launcher would take what there is
        raise UserError(f"--num_nodes {options.num_nodes}: the hostfile names {len(slots)}")
    return _numbered(active, options.num_nodes, options.num_gpus, slots is None)


def _slots(options: argparse.Namespace) -> dict[str, int] | None:
    """The hostfile's; None without one."""
    path = Path(options.hostfile) if options.hostfile else DEFAULT_HOSTFILE
    if not path.is_file():
        if options.hostfile:  # the launcher would go on with this machine alone
            raise UserError(f"{path}: there is no such hostfile; on one machine leave --hostfile out")
        return None
    return read_hostfile(path)


def _visible(value: str) -> dict[str, list[int]]:
    """CUDA_VISIBLE_DEVICES, which the launcher takes for a list of slots."""
    if not all(re.fullmatch(r"\s*-?\d+\s*", word) for word in value.split(",")):
        advice = "unset CUDA_VISIBLE_DEVICES and choose by number, --include localhost:0"
        raise UserError(f'CUDA_VISIBLE_DEVICES="{value}": the deepspeed launcher takes numbers only; {advice}')
    try:
        return _filtered(None, f"localhost:{value}", "")
    except UserError as error:
        raise UserError(f'CUDA_VISIBLE_DEVICES="{value}": {error}; unset CUDA_VISIBLE_DEVICES') from error


def _filtered(slots: dict[str, int] | None, include: str, exclude: str) -> dict[str, list[int]]:
    if slots is None:
        counted = count_devices() if include or exclude or os.environ.get("DS_ACCELERATOR") == "cuda" else None
        if counted == ("cuda", 0):
            raise UserError("DS_ACCELERATOR=cuda, and there is no GPU here: unset it, or set it to cpu")
        if counted is None:  # the launcher's own affair: at least one
            return {"localhost": [0]}
        slots = {"localhost": counted[1]}
    active = chosen_slots(slots, include, exclude)
    if not any(active.values()):
        raise UserError(f"--exclude {exclude} leaves no slot to run on")
    return active


def _numbered(active: dict[str, list[int]], nodes: int, gpus: int, here: bool) -> dict[str, list[int]]:
    """The first ``nodes`` hosts with ``gpus`` slots each, where these are given."""
    if nodes > 0:
        active = dict(list(active.items())[:nodes])
    if gpus <= 0:
        return active
    counted = count_devices() if here else None
    if counted and counted[0] == "cuda" and gpus > counted[1]:  # a CPU takes any number of processes
        raise UserError(f"--num_gpus {gpus}: this machine has {counted[1]}; each rank needs a GPU of its own")
    return {host: list(range(gpus)) for host in active}


def _accelerator() -> Iterator[str]:
    asked = os.environ.get("DS_ACCELERATOR")
    if asked is not None and asked not in ACCELERATORS:
        yield f'DS_ACCELERATOR="{asked}" is none of {", ".join(ACCELERATORS)}: unset it'


def _script(options: argparse.Namespace) -> Iterator[str]:
    script = options.user_script
    if options.module and options.no_python:
        yield "--module and --no_python exclude each other: give one of them"
    elif options.no_python and shutil.which(script) is None:
        yield f"{script}: no such program, or it may not be executed (--no_python starts it as it is)"
    elif not options.module and not options.no_python and not Path(script).exists():
        yield f"{script}: there is no such script (looked for from {Path.cwd()})"


def _logs(options: argparse.Namespace) -> Iterator[str]:
    directory = Path(options.enable_each_rank_log)
    if str(directory) == "None":
        return
    existing = next(path for path in (directory.absolute(), *directory.absolute().parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        yield f"--enable_each_rank_log {directory}: {existing} is no directory that can be written"


def _hosts(options: argparse.Namespace, active: dict[str, list[int]]) -> Iterator[str]:
    """What several hosts need. One host of a hostfile is asked by ssh, too, even if it is this one."""
    slots = _slots(options)
    if options.no_ssh and not 0 <= options.node_rank < len(active):
        yield f"--no_ssh needs --node_rank from 0 to {len(active) - 1}, this machine's place in the hostfile"
    if slots is None:
        return
    name = options.launcher.lower()
    if over_network(options, active):
        if name not in LAUNCHERS:
            yield f"--launcher {options.launcher}: none of {', '.join(LAUNCHERS)}"
        elif shutil.which(LAUNCHERS[name]) is None:
            yield f"--launcher {name} needs {LAUNCHERS[name]}, which is not installed here; or start each with --no_ssh"
    first, path = next(iter(active)), options.hostfile or DEFAULT_HOSTFILE
    asks = not options.master_addr or not (options.no_ssh or options.no_ssh_check)
    all_by_ssh = over_network(options, active) and name == "pdsh" and not options.no_ssh_check
    problems = silent(active if all_by_ssh else [first], options.ssh_port) if asks else {}
    if why := problems.pop(first, None):
        alone = len(slots) == 1 and is_here(first)
        advice = "set up ssh without a password, or start each with --no_ssh, --node_rank and --master_addr"
        if alone:
            advice = f"on one machine no hostfile is needed: leave it out and give --num_gpus {slots[first]}"
        yield f"{path}: names {first}, and {why}; {advice}"
    for host, why in problems.items():
        yield f"{path}: names {host}, and {why}; see to that host, or leave it out: --exclude {host}"


def _binding(options: argparse.Namespace, active: dict[str, list[int]]) -> Iterator[str]:
    """``--bind_cores_to_rank`` (launch.py by utils/numa.py ``get_numactl_cmd``)."""
    if not options.bind_cores_to_rank:
        return
    if "KMP_AFFINITY" in os.environ:
        yield "--bind_cores_to_rank and the variable KMP_AFFINITY exclude each other: unset KMP_AFFINITY"
    if shutil.which("numactl") is None:
        yield "--bind_cores_to_rank needs numactl, which is not installed: apt install numactl"
    cores: Sequence[int] = range(physical_cores())
    if options.bind_core_list is not None:
        cores, last = core_list(options.bind_core_list), (os.cpu_count() or 1) - 1
        if cores[-1] > last:
            yield f"--bind_core_list {options.bind_core_list}: this machine's cores are 0 to {last}"
    ranks = max(map(len, active.values()))
    if len(cores) < ranks:
        yield f"--bind_cores_to_rank: {len(cores)} cores for {ranks} ranks, and each needs one: give --num_gpus"


def core_list(text: str) -> list[int]:
    """``0,2-4`` as numbers. Raises UserError unless they ascend."""
    cores: list[int] = []
    for word in text.split(","):
        found = re.fullmatch(r"(\d+)(?:-(\d+))?", word)
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, -1)
        if last < first or (cores and first <= cores[-1]):
            raise UserError(f"--bind_core_list {text}: expected ascending numbers and ranges, such as 0,2-4")
        cores += range(first, last + 1)
    return cores


def over_network(options: argparse.Namespace, active: dict[str, list[int]]) -> bool:
    """Whether the launcher starts processes on other hosts by itself."""
    return (len(active) > 1 or options.force_multi) and not options.no_ssh


def _alone(options: argparse.Namespace, active: dict[str, list[int]]) -> bool:
    """Whether all ranks are on this machine, so that nobody else must know the port."""
    return len(active) == 1 and not options.no_ssh and not options.force_multi


def _given_port(options: argparse.Namespace, active: dict[str, list[int]]) -> Iterator[str]:
    port, listens = (options.master_port, _alone(options, active) or (options.no_ssh and options.node_rank == 0))
    if port is not None and listens and (problem := port_problem(port)):
        yield f"--master_port: {problem}"


def _port(options: argparse.Namespace, active: dict[str, list[int]]) -> list[str]:
    """The launcher's own choice is always 29500, and two runs on one machine meet there."""
    if options.master_port is not None or not _alone(options, active):
        return []
    return ["--master_port", str(free_port())]
