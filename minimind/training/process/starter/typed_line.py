"""The line that a person has typed to start this rank: read from the processes above it, to be shown again.

The command line of a launcher ends with the launch script and its options, and so does that of whatever stands above it
(``minimind launch`` above ``deepspeed``, ``timeout`` above that): the outermost process with this ending was typed.
`minimind launch` hands its own words on, to other hosts too: they stay what they were when it starts a run again.
Below pdsh the chain of parents is broken by ssh; where the launch was typed on a host of the run, it goes on above the
pdsh that carries the same world and port. Daemons that stand for somebody elsewhere (srun's on every host, mpirun's on
all but its own) carry no such words: srun's line is made from the step's size, for mpirun's another rank is asked
(``shared``), and what nobody knows is said.

Known weakness: Linux only. Elsewhere, and where another program runs this code, nothing is known.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import shutil
import sys
from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import astuple, replace
from pathlib import Path

from minimind.base.command_lines import Started, plain
from minimind.base.secrets import MASK, mask_command
from minimind.base.shipped import from_here
from minimind.training.process.disks import Gathers
from minimind.training.process.orphans import parent_of, words_of
from minimind.training.process.starter.variables import MPI, PMI, Environment, in_step, task_count
from minimind.training.process.world import several_hosts

# The words of `minimind launch`, as JSON in base64: no shell on the way changes them. DeepSpeed's launcher hands on to
# other hosts what begins with PYTHON (launcher/runner.py ``EXPORT_ENVS``)
HANDED_ON = "PYTHON_MINIMIND_LAUNCH"
LAUNCH_PY = "deepspeed.launcher.launch"
MPI_PROGRAMS = ("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun", "jsrun", "flux", "horovodrun")
BY_HAND = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
EVERYWHERE = "on each host, with its own number"
HIDDEN = f"with what {MASK} stands for"
SRUN = "with srun's other options"
TOLD_ELSEWHERE = "with {}'s options, which this host was not told"
HOSTFILE = "with the HOSTFILE of the start, which this host was not told"
UNKNOWN = "by the launcher of the start, which this process was not told"


def hand_on(words: Sequence[str], environment: MutableMapping[str, str]) -> None:
    """Leave the typed line, ``minimind launch WORDS``, to the ranks that it will start."""
    whole = list(sys.orig_argv) if sys.orig_argv[-len(words) :] == list(words) else ["minimind", "launch", *words]
    environment[HANDED_ON] = base64.urlsafe_b64encode(json.dumps(as_typed(whole)).encode()).decode()


def find_started(script: str, options: Sequence[str], environment: Environment) -> Started | None:
    """How this process was started, which runs ``script`` with ``options``; None on one host where nothing says so."""
    above = list(_upwards(os.getpid()))
    if not above or not _carries(above[0], script, options):
        unknown = Started(
            ("deepspeed",), str(from_here(Path("launch") / "pretrain.py")), tuple(options), UNKNOWN, False
        )
        return unknown if several_hosts(environment) else None
    launch = _handed_on(environment)
    if _carries(launch, script, options) or (script in launch and "--restarted" in options):
        return _typed(launch, script, environment)
    line = next(line for line in reversed(above) if _carries(line, script, options))
    if LAUNCH_PY in line:
        return _above_pdsh(line, script, options, environment)
    started = _typed(line, script, environment)
    return _below_daemon(started, environment, programs={Path(line[0]).name for line in above}, alone=line is above[0])


def shared(ranks: Gathers, own: Started | None) -> Started | None:
    """What this rank says of it: its ``own`` line if that is whole, else the first whole one of another rank. All ranks
    call it."""
    everyones = map(Started.of, ranks.gather(None if own is None else astuple(own)))
    others = [other for other in everyones if other is not None and other.whole]
    return own if own is None or own.whole or not others else others[0]


def _carries(line: Sequence[str], script: str, options: Sequence[str]) -> bool:
    """Whether a command line ends with the script and its options; launchers add a local rank to them."""
    ending = [script, *_own(options)]
    return _own(line)[-len(ending) :] == ending


def _own(words: Sequence[str]) -> list[str]:
    return [plain(word) for word in words if not plain(word).startswith("--local-rank")]


def _typed(line: Sequence[str], script: str, environment: Environment) -> Started:
    """From a whole command line. The script's last place is the script: before it may be an option's value."""
    at = len(line) - 1 - line[::-1].index(script)
    head = as_typed(line[:at])
    shown = mask_command(head)  # the line is recorded, too
    several = "--no_ssh" in head or environment.get("GROUP_WORLD_SIZE", "1") != "1"
    remarks = [EVERYWHERE] * several + [HIDDEN] * (shown != head)
    options = [word for word in line[at + 1 :] if not plain(word).startswith("--local-rank")]
    return Started(tuple(shown), script, tuple(options), " and ".join(remarks))


def as_typed(head: Sequence[str]) -> list[str]:
    """The same words with a program's name where Python runs it for its first line, if that name finds it."""
    words = list(head)
    if len(words) > 1 and Path(words[0]).name.startswith("python") and Path(words[1]).is_file():
        words = words[1:]
        found = shutil.which(Path(words[0]).name)
        if found is not None and Path(found).resolve() == Path(words[0]).resolve():
            words[0] = Path(words[0]).name
    return words


def _above_pdsh(line: Sequence[str], script: str, options: Sequence[str], environment: Environment) -> Started:
    """``line`` is launch.py's, which nobody types: of several hosts what is above the pdsh that has sent it."""
    marks = {word for word in line if word.startswith(("--world_info=", "--master_port="))}
    for pid in map(int, (path.name for path in Path("/proc").glob("[0-9]*"))):
        words = words_of(pid)
        if words and Path(words[0]).name == "pdsh" and marks <= set(words):
            found = [above for above in _upwards(parent_of(pid)) if _carries(above, script, options)]
            if found:
                return _typed(found[-1], script, environment)
    head = ("deepspeed", "--hostfile", "HOSTFILE")
    return replace(_typed(line, script, environment), head=head, remark=HOSTFILE, whole=False)


def _below_daemon(started: Started, environment: Environment, programs: set[str], alone: bool) -> Started:
    """What srun, mpirun on another host, or a person has put before it in an environment that no process above has.

    ``programs``: above. ``alone``: none of them carries the script.
    """
    head = started.head
    starter = next((each for each in (*MPI, PMI) if each.rank in environment), None)
    if starter is not None and not (starter is PMI and in_step(environment)):
        if programs & set(MPI_PROGRAMS):
            return started
        remark = TOLD_ELSEWHERE.format(starter.program)
        return replace(started, head=(*starter.program.split(), *head), remark=remark, whole=False)
    count = task_count(environment) if in_step(environment) else None
    if count is not None and count > 1:
        nodes = environment.get("SLURM_STEP_NUM_NODES", environment.get("SLURM_NNODES", "1"))
        return replace(started, head=("srun", "--nodes", nodes, "--ntasks", str(count), *head), remark=SRUN)
    if alone and environment.get("WORLD_SIZE", "1") != "1":
        own = [f"{name}={environment[name]}" for name in BY_HAND if name in environment]
        return replace(started, head=("env", *own, *head), remark="for this rank")
    return started


def _handed_on(environment: Environment) -> list[str]:
    """The words of the `minimind launch` above; empty without one."""
    try:
        words = json.loads(base64.urlsafe_b64decode(environment.get(HANDED_ON, "") or b"W10="))
    except (binascii.Error, ValueError):
        return []
    return words if isinstance(words, list) and all(isinstance(word, str) for word in words) else []


def _upwards(pid: int) -> Iterator[list[str]]:
    """The command lines of a process and of those above it, the innermost first."""
    while pid > 1 and (words := words_of(pid)):
        yield words
        pid = parent_of(pid)
