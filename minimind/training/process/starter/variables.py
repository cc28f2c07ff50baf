"""The variables of each starter that makes a world: torchrun, srun, mpirun of several kinds and its kin. No import of
weight.

Of a SLURM job each process has some, also those that are no rank: a batch script and the shell of ``salloc`` are given
SLURM_NTASKS, too, and SLURM_PROCID=0, but are one process. SLURM_STEP_ID tells: a step of srun's has a small number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from minimind.base.errors import UserError

_LAST_STEP = 0xFFFFFFF0  # above it SLURM numbers what is no step of srun's: batch script, interactive shell, extern
_INTERACTIVE = 0xFFFFFFFA  # slurm.h SLURM_INTERACTIVE_STEP: the shell of salloc on a host of the job
Environment = Mapping[str, str]


@dataclass(frozen=True)
class Starter:
    """The variables of one, by their meaning; of ``local_rank`` and ``local_size`` the first that is set."""

    name: str
    rank: str
    size: str
    local_rank: tuple[str, ...]
    local_size: tuple[str, ...] = ()
    with_master: str = ""  # how the person hands the variable on: words before the command
    program: str = "mpirun"


_WITH_GENV = "mpirun -genv MASTER_ADDR HOST_OF_RANK_0"
TORCH = Starter(
    "RANK",
    rank="RANK",
    size="WORLD_SIZE",
    local_rank=("LOCAL_RANK",),
    local_size=("LOCAL_WORLD_SIZE", "LOCAL_SIZE"),
)
OPEN_MPI = Starter(
    "Open MPI",
    rank="OMPI_COMM_WORLD_RANK",
    size="OMPI_COMM_WORLD_SIZE",
    local_rank=("OMPI_COMM_WORLD_LOCAL_RANK",),
    local_size=("OMPI_COMM_WORLD_LOCAL_SIZE",),
    with_master="mpirun -x MASTER_ADDR=HOST_OF_RANK_0",
)
MVAPICH = Starter(
    "MVAPICH2",
    rank="MV2_COMM_WORLD_RANK",
    size="MV2_COMM_WORLD_SIZE",
    local_rank=("MV2_COMM_WORLD_LOCAL_RANK",),
    local_size=("MV2_COMM_WORLD_LOCAL_SIZE",),
    with_master=_WITH_GENV,
)
SLURM = Starter("srun", rank="SLURM_PROCID", size="SLURM_NTASKS", local_rank=("SLURM_LOCALID",), program="srun")
PMI = Starter(
    "PMI",
    rank="PMI_RANK",
    size="PMI_SIZE",
    local_rank=("MPI_LOCALRANKID", "PMI_LOCAL_RANK", "PALS_LOCAL_RANKID"),
    local_size=("MPI_LOCALNRANKS", "PMI_LOCAL_SIZE", "PALS_LOCAL_SIZE"),
    with_master=_WITH_GENV,
)
LSF = Starter(
    "jsrun",
    rank="JSM_NAMESPACE_RANK",
    size="JSM_NAMESPACE_SIZE",
    local_rank=("JSM_NAMESPACE_LOCAL_RANK",),
    local_size=("JSM_NAMESPACE_LOCAL_SIZE",),
    with_master="jsrun -E MASTER_ADDR=HOST_OF_RANK_0",
    program="jsrun",
)
FLUX = Starter(
    "flux",
    rank="FLUX_TASK_RANK",
    size="FLUX_JOB_SIZE",
    local_rank=("FLUX_TASK_LOCAL_ID",),
    with_master="flux run --env=MASTER_ADDR=HOST_OF_RANK_0",
    program="flux run",
)
HOROVOD = Starter(
    "horovodrun",
    rank="HOROVOD_RANK",
    size="HOROVOD_SIZE",
    local_rank=("HOROVOD_LOCAL_RANK",),
    local_size=("HOROVOD_LOCAL_SIZE",),
    with_master="env MASTER_ADDR=HOST_OF_RANK_0 horovodrun",
    program="horovodrun",
)
MPI = (OPEN_MPI, MVAPICH, LSF, FLUX, HOROVOD)  # their variables are none that a job's script has, but a rank's alone


def number(environment: Environment, name: str, default: int | None = None) -> int:
    """A variable's value, at most nine digits; ``default`` where it is not set. Raises UserError."""
    text = environment.get(name)
    if text is None and default is not None:
        return default
    if text is None or not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise UserError(f"{name}={text!r}: no number of a rank, a size or a port")
    return int(text)


def step_of(environment: Environment) -> str:
    """The number of the SLURM step; empty outside."""
    return environment.get("SLURM_STEP_ID", environment.get("SLURM_STEPID", ""))


def in_step(environment: Environment) -> bool:
    """Whether this process is a task of srun's."""
    step = step_of(environment)
    return "SLURM_PROCID" in environment and step.isdecimal() and int(step) < _LAST_STEP


def in_shell(environment: Environment) -> bool:
    """Whether it is in a shell of salloc: one process, whatever the job has."""
    return "SLURM_PROCID" not in environment or step_of(environment) == str(_INTERACTIVE)


def task_count(environment: Environment) -> int | None:
    """Of the step, or in a batch script of the job; None where a step does not say it.

    A job that was given hosts alone has a task on each.
    """
    names = ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS") if in_step(environment) else ("SLURM_NTASKS",)
    name = next((name for name in names if name in environment), None)
    if name is None and not in_step(environment):
        hosts = number(environment, "SLURM_NNODES", number(environment, "SLURM_JOB_NUM_NODES", 1))
        return hosts * number(environment, "SLURM_NTASKS_PER_NODE", 1)
    return None if name is None else number(environment, name)
