"""The variables of each starter that makes a world: torchrun, mpirun of three kinds, srun. No import of weight.

Of a SLURM job each process has some, also those that are no rank: a batch script and the shell of ``salloc`` are given
SLURM_NTASKS, too, and SLURM_PROCID=0, but are one process. SLURM_STEP_ID tells: a step of srun's has a small number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from minimind.base.errors import UserError

_LAST_STEP = 0xFFFFFFF0  # above it SLURM numbers what is no step of srun's: batch script, interactive shell, extern
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
SLURM = Starter("srun", rank="SLURM_PROCID", size="SLURM_NTASKS", local_rank=("SLURM_LOCALID",))
PMI = Starter(
    "PMI",
    rank="PMI_RANK",
    size="PMI_SIZE",
    local_rank=("MPI_LOCALRANKID", "PMI_LOCAL_RANK", "PALS_LOCAL_RANKID"),
    local_size=("MPI_LOCALNRANKS", "PMI_LOCAL_SIZE", "PALS_LOCAL_SIZE"),
    with_master=_WITH_GENV,
)
MPI = (OPEN_MPI, MVAPICH)


def number(environment: Environment, name: str, default: int | None = None) -> int:
    """A variable's value, at most nine digits; ``default`` where it is not set. Raises UserError."""
    text = environment.get(name)
    if text is None and default is not None:
        return default
    if text is None or not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise UserError(f"{name}={text!r}: no number of a rank, a size or a port")
    return int(text)


def in_step(environment: Environment) -> bool:
    """Whether this process is a task of srun's."""
    step = environment.get("SLURM_STEP_ID", environment.get("SLURM_STEPID", ""))
    return "SLURM_PROCID" in environment and step.isdecimal() and int(step) < _LAST_STEP


def task_count(environment: Environment) -> int | None:
    """Of the step, or in a batch script of the job."""
    names = ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS") if in_step(environment) else ("SLURM_NTASKS",)
    name = next((name for name in names if name in environment), None)
    return None if name is None else number(environment, name)
