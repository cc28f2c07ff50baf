"""Every starter's variables make the world that they say, or the process ends with the line to use."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from minimind.base.errors import UserError
from minimind.training.process.world import PORTS, World, enter, read_world

ROOT = Path(__file__).parents[3]
TORCHRUN = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "GROUP_WORLD_SIZE": "2"}
DEEPSPEED = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_SIZE": "2", "CROSS_SIZE": "2", "CROSS_RANK": "1"}
MASTER = {"MASTER_ADDR": "10.77.0.1", "MASTER_PORT": "29600"}
# What a job has, in its batch script too, and what srun adds to it (slurm 17 to 25; the values of two hosts of two)
JOB = {"SLURM_JOB_ID": "901593", "SLURM_NTASKS": "4", "SLURM_NNODES": "2", "SLURM_JOB_NODELIST": "node[01-02]"}
BATCH = {**JOB, "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0", "SLURM_TASK_PID": "17"}
HOSTS_ONLY = {name: value for name, value in BATCH.items() if name != "SLURM_NTASKS"}
STEP = {
    **JOB,
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NODELIST": "node[01-02]",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_GTIDS": "2,3",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_RANK": "3",
    "PMIX_NAMESPACE": "prterun-node01-17@1",
}
KIN = [
    {
        "JSM_NAMESPACE_RANK": "3",
        "JSM_NAMESPACE_SIZE": "4",
        "JSM_NAMESPACE_LOCAL_RANK": "1",
        "JSM_NAMESPACE_LOCAL_SIZE": "2",
    },
    {"HOROVOD_RANK": "3", "HOROVOD_SIZE": "4", "HOROVOD_LOCAL_RANK": "1", "HOROVOD_LOCAL_SIZE": "2"},
]
FLUX = {"FLUX_TASK_RANK": "3", "FLUX_JOB_SIZE": "4", "FLUX_TASK_LOCAL_ID": "1", "PMI_RANK": "3", "PMI_SIZE": "4"}
MPICH = {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
MVAPICH = {f"MV2_COMM_WORLD_{name}": OPEN_MPI[f"OMPI_COMM_WORLD_{name}"] for name in ("RANK", "SIZE")}
MVAPICH |= {"MV2_COMM_WORLD_LOCAL_RANK": "1", "MV2_COMM_WORLD_LOCAL_SIZE": "2"}
ALONE = World(0, 1, 0, 1)
FOUR = World(3, 4, 1, 2, ("10.77.0.1", 29600))


@pytest.mark.parametrize("variables", [TORCHRUN, DEEPSPEED, STEP, OPEN_MPI, MPICH, MVAPICH, *KIN])
def test_each_starter_means_the_same_world(variables: dict[str, str]) -> None:
    assert read_world({**variables, **MASTER}) == FOUR
    environment = {**variables, **MASTER}
    enter(environment)
    taken = {name: environment[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")}
    assert taken == {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    assert environment["MASTER_ADDR"] == "10.77.0.1" and environment["MASTER_PORT"] == "29600"


def test_srun_needs_no_more_than_its_own_variables() -> None:
    ranks = [
        read_world({**STEP, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank % 2), "SLURM_GTIDS": gtids})
        for rank, gtids in enumerate(["0,1", "0,1", "2,3", "2,3"])
    ]
    assert [world.rank for world in ranks] == [0, 1, 2, 3] and {world.size for world in ranks} == {4}
    (master,) = {world.master for world in ranks}
    assert master is not None and master[0] == "node01" and master[1] in PORTS
    assert all(world.several_hosts for world in ranks)
    ports = {read_world({**STEP, "SLURM_JOB_ID": str(job)}).master for job in range(50)}
    assert len(ports) > 40, "two jobs on one host would meet"
    assert read_world({**STEP, "SLURM_STEP_ID": "1"}).master != master, "so would two steps of a job"
    assert read_world({**STEP, "SLURM_STEP_NODELIST": "node02"}).master[0] == "node02"  # type: ignore[index]


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"WORLD_SIZE": "1"},
        {"MASTER_ADDR": "left.over"},
        JOB,  # a shell of salloc on the login node, or ssh into a host of a job
        {**BATCH, "SLURM_NTASKS": "1"},
        {**BATCH, "SLURM_STEP_ID": "4294967290"},  # salloc with use_interactive_step: one shell, whatever the job has
        {**STEP, "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_STEP_NUM_TASKS": "1"},  # srun --pty bash, srun -n 1
        {"PMI_RANK": "0", "PMI_SIZE": "1"},
        {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"},
        {"PMIX_RANK": "0"},
    ],
)
def test_one_process_is_one_rank_and_leaves_the_environment_alone(variables: dict[str, str]) -> None:
    environment = dict(variables)
    assert enter(environment) == ALONE
    assert environment == variables


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({**BATCH}, "this job has 4 tasks and srun has not started this one: srun python"),
        ({**BATCH, "SLURM_STEP_ID": "4294967291"}, "this job has 4 tasks"),  # a batch script's own number of a step
        ({**HOSTS_ONLY, "SLURM_NTASKS_PER_NODE": "3"}, "this job has 6 tasks"),
        (HOSTS_ONLY, "this job has 2 tasks and srun has not started this one: srun python"),  # sbatch -N 2
        ({**BATCH, "SLURM_PROCID": "1"}, "srun python"),  # some of srun's variables, by a wrapper
        ({**BATCH, "SLURM_PROCID": "1", "SLURM_NTASKS": "1"}, "srun python"),
        ({"PMIX_RANK": "1"}, "no variable says of how many"),
        ({"RANK": "0"}, "RANK=0 without WORLD_SIZE and LOCAL_RANK: let torchrun, deepspeed, srun or mpirun start it"),
        ({"RANK": "1", "WORLD_SIZE": "2", **MASTER}, "without LOCAL_RANK"),  # Kubeflow's PyTorchJob
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE=2 without RANK"),
        ({"RANK": "2", "WORLD_SIZE": "2", "LOCAL_RANK": "0", **MASTER}, "no such place in a world"),
        ({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}, "rank 1 of 2 has no MASTER_ADDR and no MASTER_PORT"),
        ({"RANK": "-1", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}, "RANK='-1': no number"),
        ({**OPEN_MPI}, "none knows where rank 0 is: mpirun -x MASTER_ADDR=HOST_OF_RANK_0 ... python"),
        ({**MPICH}, "mpirun -genv MASTER_ADDR HOST_OF_RANK_0 ... python"),
        ({"PMI_RANK": "1", "PMI_SIZE": "2", **MASTER}, "without this host's own number of it"),
        ({**STEP, "SLURM_STEP_NODELIST": "node[1-"}, "SLURM_STEP_NODELIST='node[1-': no list of hosts"),
        ({**STEP, "SLURM_HET_SIZE": "2"}, "MASTER_ADDR=HOST_OF_TASK_0 srun python"),
        ({**STEP, "SLURM_PROCID": "4"}, "no such place in a world"),
        ({**STEP, "MASTER_PORT": "99999"}, "ports go from 1 to 65535"),
        # variables of two starters
        (
            {**STEP, "RANK": "0", "WORLD_SIZE": "4", "LOCAL_RANK": "0", **MASTER},
            "RANK=0 and SLURM_PROCID=3 are two places",
        ),
        ({**OPEN_MPI, **MASTER, "WORLD_SIZE": "8"}, "WORLD_SIZE=8, and Open MPI has started 4 ranks: unset WORLD_SIZE"),
        ({**STEP, "WORLD_SIZE": "2"}, "WORLD_SIZE=2, and srun has started 4 ranks"),
        (
            {**FLUX},
            "by flux, and none knows where rank 0 is: flux run --env=MASTER_ADDR=HOST_OF_RANK_0",
        ),
        # a launcher in each task, which knows of this host only
        ({**STEP, **DEEPSPEED, "CROSS_SIZE": "1", **MASTER}, "4 tasks were started, and each has started a launcher"),
        ({**OPEN_MPI, **TORCHRUN, "GROUP_WORLD_SIZE": "1", **MASTER}, "start the script itself, srun python"),
        ({**STEP, "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", **MASTER}, "each has started a launcher"),
    ],
)
def test_a_process_that_can_not_know_its_place_is_refused_with_the_line(variables: dict[str, str], says: str) -> None:
    before = dict(variables)
    with pytest.raises(UserError) as refused:
        enter(before)
    assert says in str(refused.value) and "\n" not in str(refused.value)
    assert before == variables


def test_the_inner_starter_knows_the_ranks() -> None:
    """mpirun below SLURM has a daemon a host started by srun, torchrun and deepspeed are started by either."""
    daemon = {**STEP, "SLURM_PROCID": "1", "SLURM_LOCALID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "2"}
    assert read_world({**daemon, **OPEN_MPI, **MASTER}) == FOUR
    assert read_world({**daemon, **TORCHRUN, **MASTER}) == FOUR
    assert read_world({**daemon, **DEEPSPEED, **MASTER}) == FOUR
    assert read_world({**BATCH, **DEEPSPEED, "CROSS_SIZE": "1", **MASTER}) == FOUR  # a batch script that runs deepspeed
    assert read_world({**JOB, **DEEPSPEED, **MASTER}) == FOUR
    assert read_world({**STEP, "PMI_RANK": "3", "PMI_SIZE": "4", **MASTER}) == FOUR  # srun --mpi=pmi2: no local rank


def test_what_a_job_script_exports_beside_its_starter_does_no_harm() -> None:
    """As PyTorch's tutorials have it: WORLD_SIZE and the master from the batch script, RANK by srun."""
    assert read_world({**STEP, **MASTER, "WORLD_SIZE": "4"}) == FOUR
    assert read_world({**OPEN_MPI, **MASTER, "WORLD_SIZE": "4", "LOCAL_RANK": "0"}) == FOUR
    assert read_world({**STEP, **MASTER, "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}).rank == 3
    assert read_world({**FLUX, **MASTER}).local_size is None
    old = {name: value for name, value in STEP.items() if name != "SLURM_STEP_ID"}  # as SLURM before 2.0 has it
    assert read_world({**old, "SLURM_STEPID": "0"}) == read_world(STEP)


def test_mpirun_on_one_host_needs_no_master() -> None:
    one_host = {**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_RANK": "3", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}
    world = read_world(one_host)
    assert world.several_hosts is False and world.master is not None
    assert world.master[0] == "127.0.0.1" and world.master[1] in PORTS
    assert read_world({**one_host, "PMIX_NAMESPACE": "another"}).master != world.master
    mpich = read_world({**MPICH, "MPI_LOCALRANKID": "3", "MPI_LOCALNRANKS": "4"})
    assert mpich.master == ("127.0.0.1", 29500)


def test_whether_there_are_other_hosts_is_known_or_not() -> None:
    by_hand = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", **MASTER}
    assert read_world(by_hand).several_hosts is None
    assert read_world({**by_hand, "LOCAL_RANK": "0"}).several_hosts is True
    assert read_world({**by_hand, "LOCAL_WORLD_SIZE": "2"}).several_hosts is False


@pytest.mark.parametrize("script", ["pretrain", "sft", "lr_sweep"])
def test_a_launch_script_ends_before_it_reads_anything(script: str, tmp_path: Path) -> None:
    """Rank 1's host, too, says why, and nothing heavy is imported for it."""
    ours = ("SLURM", "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_", "OMPI")  # of a rank that the worker has become
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    command = [sys.executable, "-X", "importtime", str(ROOT / "launch" / f"{script}.py"), "--output-dir", "run"]
    ended = subprocess.run(
        command,
        cwd=tmp_path,
        env={**environment, "PYTHONPATH": str(ROOT), **OPEN_MPI},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line for line in ended.stderr.splitlines() if not line.startswith("import time:")]
    (line,) = lines
    assert ended.returncode == 2 and ended.stdout == ""
    assert line.startswith("error: rank 3 of 4 by Open MPI on several hosts")
    assert f"{script}.py --output-dir run" in line
    assert "torch" not in {entry.rpartition("|")[2].strip() for entry in ended.stderr.splitlines()}
    assert list(tmp_path.iterdir()) == []
