"""Each line of the table in docs/multi-node.md, on two hosts: one world, whoever starts it. torchrun and srun's
variables train in test_separate_disks.py.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from minimind.training.process.orphans import started_with
from tests.commands.test_launch import line_to_go_on
from tests.hosts.bed import ROOT, Bed, Host, outcome
from tests.test_launch import arguments, steps
from tests.waiting import wait_for

pytestmark = pytest.mark.soak
SCRIPT = ROOT / "launch" / "pretrain.py"
DEEPSPEED = str(Path(sys.executable).parent / "deepspeed")
LAUNCH = [sys.executable, "-m", "minimind.cli", "launch"]


def words(files: dict[str, Path], tmp_path: Path) -> list[str]:
    return [str(SCRIPT), *arguments("fp32.json", files, tmp_path / "run", "--max-steps", "2")]


def assert_one_world(ended: dict[str, tuple[int, str]], tmp_path: Path) -> None:
    assert {code for code, _ in ended.values()} == {0}, ended
    output = "".join(text for _, text in ended.values())
    assert output.count("x 2 ranks") == 1, "one header, of two ranks"
    assert (tmp_path / "run" / "final" / "model.safetensors").is_file()


@pytest.mark.parametrize("launcher", [[DEEPSPEED], LAUNCH], ids=["deepspeed", "minimind launch"])
def test_no_ssh_on_each_host(launcher: list[str], bed: Bed, files: dict[str, Path], tmp_path: Path) -> None:
    hostfile = ["--hostfile", str(bed.hostfile()), "--no_ssh", "--master_addr", "node1", "--master_port", "29600"]
    processes = {
        host.name: host.start([*launcher, *hostfile, "--node_rank", str(rank), *words(files, tmp_path)])
        for rank, host in enumerate(bed.hosts)
    }
    assert_one_world(outcome(processes), tmp_path)


@pytest.mark.parametrize("launcher", [[DEEPSPEED], LAUNCH], ids=["deepspeed", "minimind launch"])
def test_a_hostfile_over_ssh(launcher: list[str], ssh_bed: Bed, files: dict[str, Path], tmp_path: Path) -> None:
    if shutil.which("pdsh") is None:
        pytest.skip("no pdsh here: apt-get install pdsh")
    first, _ = ssh_bed.hosts
    hostfile = ["--hostfile", str(ssh_bed.hostfile()), "--master_addr", "node1"]
    process = first.start([*launcher, *hostfile, *words(files, tmp_path)])
    assert_one_world(outcome({"node1": process}), tmp_path)


def test_mpirun(ssh_bed: Bed, files: dict[str, Path], tmp_path: Path) -> None:
    if shutil.which("mpirun") is None:
        pytest.skip("no mpirun here: apt-get install openmpi-bin")
    first, _ = ssh_bed.hosts
    mpirun = ["mpirun", "--allow-run-as-root", "-H", "node1,node2", "-x", "PYTHONPATH", "-x", "OMP_NUM_THREADS"]
    forgotten = first.start([*mpirun, sys.executable, *words(files, tmp_path)])
    ((code, output),) = outcome({"node1": forgotten}).values()
    assert code == 2 and output.count("mpirun -x MASTER_ADDR=HOST_OF_RANK_0 ... python") == 2, output
    named = first.start([*mpirun, "-x", "MASTER_ADDR=node1", sys.executable, *words(files, tmp_path)])
    assert_one_world(outcome({"node1": named}), tmp_path)


HOSTFILE = ["--hostfile", "HOSTFILE", "--master_addr", "node1"]
EACH = [*HOSTFILE, "--no_ssh", "--master_port", "29600", "--node_rank"]
TORCHRUN = ["torchrun", "--nnodes", "2", "--nproc-per-node", "1", "--master-addr", "node1", "--master-port", "29601"]
MPIRUN = [
    "mpirun",
    "--allow-run-as-root",
    "-H",
    "node1,node2",
    "-x",
    "PYTHONPATH",
    "-x",
    "MASTER_ADDR=node1",
    sys.executable,
]
# By name: what is typed on each host, or on the first one
LINES = {
    "minimind launch": [["minimind", "launch", *HOSTFILE]],
    "minimind launch --no_ssh": [["minimind", "launch", *EACH, "0"], ["minimind", "launch", *EACH, "1"]],
    "deepspeed": [["deepspeed", *HOSTFILE]],
    "torchrun": [[*TORCHRUN, "--node-rank", "0"], [*TORCHRUN, "--node-rank", "1"]],
    "mpirun": [MPIRUN],
}


@pytest.mark.parametrize("starter", LINES)
def test_the_line_at_the_end_goes_on_when_it_is_typed(
    starter: str, ssh_bed: Bed, files: dict[str, Path], tmp_path: Path
) -> None:
    """Stopped by SIGTERM to a rank of the second host, typed again as it stands, and stopped again: the same line."""
    hostfile = ssh_bed.hostfile()
    run = tmp_path / "my run"
    more = ["--set", "save_steps=50000", "--max-steps", "100000"]
    script = ["launch/pretrain.py", *arguments("fp32.json", files, run, *more)]
    heads = [[str(hostfile) if word == "HOSTFILE" else word for word in head] for head in LINES[starter]]
    if any(shutil.which(word) is None for word in {heads[0][0], "pdsh"}):
        pytest.skip(f"no {heads[0][0]} or no pdsh here")
    lines, before = [shlex.join([*head, *script]) for head in heads], 0
    for _ in range(2):
        running = [typed_on(host, line) for host, line in zip(ssh_bed.hosts, lines, strict=False)]
        wait_for(lambda: stepped(run) > before + 1, running[0])  # noqa: B023
        (rank,) = [pid for pid in ssh_bed.hosts[1].processes("launch/pretrain.py") if is_rank(pid)]
        os.kill(rank, signal.SIGTERM)
        ended = outcome({str(number): process for number, process in enumerate(running)})
        assert ended["0"][0] == 0 or starter == "deepspeed", ended
        shown = line_to_go_on("".join(text.replace("node1: ", "") for _, text in ended.values()))
        # Over ssh a rank's PATH may lack this Python's programs: then they are named whole
        assert shown.removeprefix(f"{Path(sys.executable).parent}/") == shlex.join([*heads[0], *script, "--resume"])
        lines, before = [shlex.join([*head, *script, "--resume"]) for head in heads], stepped(run)
    assert steps(run) == list(range(1, before + 1))


def typed_on(host: Host, line: str) -> subprocess.Popen[str]:
    return host.start(["bash", "-c", f"exec {line}"], PDSH_RCMD_TYPE="ssh")


def is_rank(pid: int) -> bool:
    return any(word.startswith((b"RANK=", b"OMPI_COMM_WORLD_RANK=")) for word in started_with(pid))


def stepped(run: Path) -> int:
    return len(steps(run)) if (run / "metrics.jsonl").exists() else 0
