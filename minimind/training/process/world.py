"""Which rank this process is, and of how many: taken from the starter's variables before anything else is read.

Contract. ``enter`` comes first in a launch script. It leaves RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT
in the environment if there are several ranks, and LOCAL_WORLD_SIZE where the starter says it. A process that was
started as one of several and can't know its place ends, with the line to use: it never trains alone beside the others.

Read, in this order (a starter runs below another one, and the inner one knows the ranks):
  RANK ...               torchrun, the ``deepspeed`` launcher, or by hand
  OMPI_COMM_WORLD_*      Open MPI's mpirun, MV2_COMM_WORLD_*: MVAPICH2's, and jsrun's, flux's and horovodrun's. Before
                         SLURM: below it mpirun starts a daemon a host through srun, and the ranks inherit that one's
                         SLURM_PROCID
  SLURM_PROCID ...       srun, where SLURM_STEP_ID is a step's: a batch script and the shell of ``salloc`` are given
                         SLURM_NTASKS too, and SLURM_PROCID=0, but are one process
  PMI_RANK, PMI_SIZE     MPICH's and Intel's mpirun

Under SLURM the master is the first host of the step's list, where srun places task 0 (but for ``--distribution
arbitrary``: give MASTER_ADDR), and the port follows from the numbers of job and step. MPI tells the ranks no host of
rank 0: on several, MASTER_ADDR must be given. Weakness: an ``srun --pty bash`` of several tasks is several shells, of
which a person types in one; what is started there waits for the others. No import of weight.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import MutableMapping
from dataclasses import dataclass

from minimind.base.command_lines import typed
from minimind.base.errors import UserError
from minimind.training.process.interfaces import choose_interfaces
from minimind.training.process.nodelist import expand
from minimind.training.process.starter.variables import (
    MPI,
    PMI,
    SLURM,
    TORCH,
    Environment,
    Starter,
    in_shell,
    in_step,
    number,
    step_of,
    task_count,
)

LOCAL = "127.0.0.1"
PORTS = range(20000, 32000)  # as base/launcher.py ``free_port``: below those of outgoing connections


@dataclass(frozen=True)
class World:
    """Rank ``rank`` of ``size``; ``local_rank`` of ``local_size`` on this host (None: the starter does not say).

    ``master``: where rank 0 listens, host and port.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int | None
    master: tuple[str, int] | None = None

    @property
    def several_hosts(self) -> bool | None:
        """Whether others are elsewhere; None: not known. On one host a rank's number there is its rank."""
        if self.local_size is not None:
            return self.local_size < self.size
        return True if self.rank != self.local_rank else None


# Equal on all ranks of one mpirun, and another's are others: what a port can follow from
_MPI_JOB = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid")
_DEFAULT_PORT = 29500  # torch's and DeepSpeed's


def enter(environment: MutableMapping[str, str] = os.environ) -> World:
    """Take this process's place from the starter's variables, and the interface towards the master (interfaces.py).

    Raises UserError where the variables make no world.
    """
    world = read_world(environment)
    if world.master is not None:
        host, port = world.master
        environment.update(RANK=str(world.rank), WORLD_SIZE=str(world.size), LOCAL_RANK=str(world.local_rank))
        environment.update(MASTER_ADDR=host, MASTER_PORT=str(port))
        if world.local_size is not None:
            environment["LOCAL_WORLD_SIZE"] = str(world.local_size)
        choose_interfaces(environment, host, world.several_hosts, first=world.rank == world.local_rank)
    return world


def several_hosts(environment: Environment = os.environ) -> bool:
    """Whether ranks may be on other hosts: they are not where the starter counts all of them on this one."""
    here = environment.get("LOCAL_WORLD_SIZE") or environment.get("LOCAL_SIZE")
    return environment.get("WORLD_SIZE", "1") not in ("1", here)


def speaks(environment: Environment = os.environ) -> bool:
    """Whether this rank says what all have met: the first one does, and on several hosts each host's first."""
    first_here = several_hosts(environment) and environment.get("LOCAL_RANK") == "0"
    return first_here or environment.get("RANK", "0") == "0"


def read_world(environment: Environment) -> World:
    """The world that the variables describe; without any, one rank alone. Raises UserError."""
    if "RANK" in environment:
        return _of_ranks(environment)
    starter = _starter(environment)
    if starter is None:
        if number(environment, "WORLD_SIZE", 1) > 1:
            raise UserError(f"WORLD_SIZE={environment['WORLD_SIZE']} without RANK: {_by_hand()}")
        _refuse_lost(environment)
        return World(0, 1, 0, 1)
    world = _of_step(environment) if starter is SLURM else _of_mpi(environment, starter)
    if number(environment, "WORLD_SIZE", world.size) != world.size:
        what = f"WORLD_SIZE={environment['WORLD_SIZE']}, and {starter.name} has started {world.size} ranks"
        raise UserError(f"{what}: unset WORLD_SIZE")
    return world


def _starter(environment: Environment) -> Starter | None:
    """Who has started this process as one of its ranks, other than by RANK."""
    for starter in MPI:
        if starter.rank in environment:
            return starter
    if in_step(environment):
        return SLURM
    return PMI if PMI.rank in environment else None


def _of_ranks(environment: Environment) -> World:
    """RANK and its kin: from torchrun, the ``deepspeed`` launcher, or by hand."""
    missing = [name for name in ("WORLD_SIZE", "LOCAL_RANK") if name not in environment]
    if missing and number(environment, "WORLD_SIZE", 0) != 1:
        raise UserError(f"RANK={environment['RANK']} without {' and '.join(missing)}: {_by_hand()}")
    world = _world(environment, TORCH)
    _refuse_separate_launchers(environment, world)
    _refuse_two_places(environment, world)
    if world.size == 1 and "MASTER_ADDR" not in environment:
        return World(0, 1, world.local_rank, 1, (LOCAL, _port(environment, "")))
    lacking = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not environment.get(name)]
    if lacking:
        raise UserError(f"rank {world.rank} of {world.size} has no {' and no '.join(lacking)}: {_by_hand()}")
    return _with_master(world, environment["MASTER_ADDR"], _port(environment, ""))


def _of_mpi(environment: Environment, starter: Starter) -> World:
    """The ranks of mpirun. Only those of one host can know where rank 0 is."""
    world = _world(environment, starter)
    if world.size == 1:
        return World(0, 1, 0, 1)
    host = environment.get("MASTER_ADDR") or (LOCAL if world.local_size == world.size else "")
    if not host:
        where = " on several hosts" if world.local_size is not None else ""
        what = f"rank {world.rank} of {world.size} by {starter.name}{where}, and none knows where rank 0 is"
        raise UserError(f"{what}: {starter.with_master} ... {typed(*_script())}")
    job = next((environment[name] for name in _MPI_JOB if environment.get(name)), "")
    return _with_master(world, host, _port(environment, job))


def _of_step(environment: Environment) -> World:
    """One task of a step that srun has started."""
    size = task_count(environment)
    if size is None or "SLURM_LOCALID" not in environment:
        raise UserError(f"SLURM_PROCID={environment['SLURM_PROCID']} without the step's other variables: {_srun()}")
    one_host = number(environment, "SLURM_STEP_NUM_NODES", number(environment, "SLURM_NNODES", 0)) == 1
    world = _world({**environment, "SLURM_NTASKS": str(size)}, SLURM)
    world = World(world.rank, size, world.local_rank, size if one_host else _local_size(environment))
    if size == 1:
        return World(0, 1, 0, 1)
    job = f"{environment.get('SLURM_JOB_ID', '')}.{step_of(environment)}"
    return _with_master(world, environment.get("MASTER_ADDR") or _first_host(environment), _port(environment, job))


def _first_host(environment: Environment) -> str:
    """Where task 0 runs. Of a job of several components each has a list of its own."""
    name = next((n for n in ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST") if n in environment), None)
    if name is None or number(environment, "SLURM_HET_SIZE", 1) > 1:
        raise UserError(f"SLURM names no one list of hosts: MASTER_ADDR=HOST_OF_TASK_0 {_srun()}")
    try:
        return expand(environment[name])[0]
    except UserError as error:
        raise UserError(f"{name}={error}; MASTER_ADDR=HOST_OF_TASK_0 {_srun()}") from None


def _local_size(environment: Environment) -> int | None:
    """Tasks on this host, by their numbers; None where SLURM does not list them."""
    listed = environment.get("SLURM_GTIDS", "")
    return len(listed.split(",")) if listed else None


def _refuse_lost(environment: Environment) -> None:
    """One process that no starter has given a place, where several may have been meant."""
    if "PMIX_RANK" in environment and environment["PMIX_RANK"] != "0":
        raise UserError(f"PMIX_RANK={environment['PMIX_RANK']} and no variable says of how many: {_by_hand()}")
    if in_shell(environment):
        return
    tasks = task_count(environment) or 1
    if environment["SLURM_PROCID"] != "0" or tasks > 1:
        alone = typed("env", "-u", "SLURM_PROCID", *_script())
        what = f"this job has {tasks} tasks and srun has not started this one"
        raise UserError(f"{what}: {_srun()}; for one rank: {alone}")


def _refuse_separate_launchers(environment: Environment, world: World) -> None:
    """A launcher in each of several tasks, and none knows of the others: as many runs, in one directory."""
    launchers = next((number(environment, n) for n in ("CROSS_SIZE", "GROUP_WORLD_SIZE") if n in environment), None)
    counts = [number(environment, starter.size) for starter in (*MPI, PMI) if starter.size in environment]
    tasks = max([*counts, (task_count(environment) or 1) if in_step(environment) else 1])
    if (world.size if launchers is None else launchers) < tasks:
        what = f"{tasks} tasks were started, and each has started a launcher of its own"
        raise UserError(f"{what}: start the script itself, {_srun()}")


def _refuse_two_places(environment: Environment, world: World) -> None:
    """RANK by hand, and a starter that counts otherwise: as a rule ``export RANK=$SLURM_PROCID`` in a batch script,
    which is 0 for all. Launchers below a starter count their own."""
    if world.size == 1 or any(name in environment for name in ("CROSS_SIZE", "GROUP_WORLD_SIZE")):
        return
    starter = _starter(environment)
    if starter is not None and number(environment, starter.rank) != world.rank:
        what = f"RANK={world.rank} and {starter.rank}={environment[starter.rank]} are two places for one process"
        raise UserError(f"{what}: unset RANK, WORLD_SIZE and LOCAL_RANK, and {starter.program} says them")


def _world(environment: Environment, starter: Starter) -> World:
    rank, size = number(environment, starter.rank), number(environment, starter.size, 1)
    local = next((number(environment, name) for name in starter.local_rank if name in environment), None)
    here = next((number(environment, name) for name in starter.local_size if name in environment), None)
    if local is None and size > 1:
        raise UserError(f"{starter.rank}={rank} without this host's own number of it: {_by_hand()}")
    local = local or 0
    if size < 1 or rank >= size or local > rank or (here is not None and not local < here <= size):
        said = f"{starter.rank}={rank}, {starter.size}={size}, local rank {local}"
        raise UserError(f"{said}{'' if here is None else f' of {here}'}: no such place in a world; {_by_hand()}")
    return World(rank, size, local, here)


def _with_master(world: World, host: str, port: int) -> World:
    return World(world.rank, world.size, world.local_rank, world.local_size, (host, port))


def _port(environment: Environment, job: str) -> int:
    """MASTER_PORT, or one that follows from the job's name, so that two jobs on one host mostly have two."""
    if environment.get("MASTER_PORT"):
        port = number(environment, "MASTER_PORT")
        if not 0 < port < 1 << 16:
            raise UserError(f"MASTER_PORT={port}: ports go from 1 to 65535")
        return port
    if not job:
        return _DEFAULT_PORT
    return PORTS[int.from_bytes(hashlib.sha256(job.encode(errors="replace")).digest()[:8], "big") % len(PORTS)]


def _script() -> list[str]:
    return ["python", *sys.argv]


def _srun() -> str:
    return typed("srun", *_script())


def _by_hand() -> str:
    names = "RANK=R WORLD_SIZE=N LOCAL_RANK=L MASTER_ADDR=HOST_OF_RANK_0 MASTER_PORT=29500"
    return f"let torchrun, deepspeed, srun or mpirun start it, or give each rank {names}"
