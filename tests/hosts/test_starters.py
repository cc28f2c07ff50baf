"""Each line of the table in docs/multi-node.md, on two hosts: one world, whoever starts it. torchrun and srun's
variables train in test_separate_disks.py.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tests.hosts.bed import ROOT, Bed, outcome
from tests.test_launch import arguments

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
