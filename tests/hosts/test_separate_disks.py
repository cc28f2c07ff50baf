"""Two hosts that share the code and nothing else: a disk of each under the same path, for the run and for the cache."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from minimind.training.checkpoint.directory import all_checkpoints, problem
from tests.hosts.bed import ROOT, Bed, Host, outcome
from tests.test_launch import arguments

SHORT = ("--max-steps", "4", "--set", "save_steps=2", "--set", "save_total_limit=9")


@pytest.fixture
def disk(bed: Bed, tmp_path: Path) -> Path:
    """A path under which each host has a disk of its own, seen from here as ``NAME/disk``."""
    shared = tmp_path / "disk"
    shared.mkdir()
    for host in bed.hosts:
        own = tmp_path / host.name
        own.mkdir()
        host.run(["mount", "--bind", str(own), str(shared)])
    return shared


def torchrun(host: Host, rank: int) -> tuple[list[str], dict[str, str]]:
    words = ["-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", f"--node-rank={rank}"]
    return [sys.executable, *words, "--master-addr=node1", "--master-port=29600"], {}


def srun(host: Host, rank: int) -> tuple[list[str], dict[str, str]]:
    """What a task of `srun -N 2 -n 2` is given; the master is in it as a list of hosts only."""
    job = {"SLURM_JOB_ID": "17", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "2", "SLURM_STEP_NODELIST": "node[1-2]"}
    task = {"SLURM_PROCID": str(rank), "SLURM_LOCALID": "0", "SLURM_STEP_NUM_NODES": "2", "SLURM_GTIDS": str(rank)}
    return [sys.executable], {**job, **task}


def train(bed: Bed, disk: Path, starter: object, words: list[str]) -> dict[str, tuple[int, str]]:
    """The same command on both hosts; no interface is named. Exit code and output by host."""
    processes = {}
    for rank, host in enumerate(bed.hosts):
        command, variables = starter(host, rank)  # type: ignore[operator]
        variables |= {"MINIMIND_CACHE": str(disk / "cache")}
        processes[host.name] = host.start([*command, ROOT / "launch" / "pretrain.py", *words], **variables)
    return outcome(processes)


def test_a_run_is_complete_on_the_first_host_and_goes_on_from_there(
    bed: Bed, disk: Path, files: dict[str, Path], tmp_path: Path
) -> None:
    ended = train(bed, disk, torchrun, arguments("bf16_zero2.json", files, disk / "run", *SHORT))
    assert [code for code, _ in ended.values()] == [0, 0], ended
    assert "disks-separate" in ended["node1"][1]
    run = tmp_path / "node1" / "run"
    assert [c.step for c in all_checkpoints(run)] == [4, 2]
    assert [problem(c.path) for c in all_checkpoints(run)] == [None, None]
    assert not list((tmp_path / "node2").rglob("*.pt")) and not list((tmp_path / "node2").rglob(".incomplete*"))
    assert list((tmp_path / "node2" / "cache" / "stores").glob("*/manifest.json")), "prepared there, too"

    middle = disk / "run" / "checkpoints" / "step-00000002"
    again = arguments("bf16_zero2.json", files, disk / "again", *SHORT, "--resume", str(middle))
    ended = train(bed, disk, srun, again)
    assert [code for code, _ in ended.values()] == [0, 0], ended
    final = [load_file(tmp_path / "node1" / name / "final" / "model.safetensors") for name in ("run", "again")]
    assert final[0].keys() == final[1].keys() and all(torch.equal(final[0][name], final[1][name]) for name in final[0])
    assert not list((tmp_path / "node2").rglob("*.pt"))


def test_what_is_wrong_on_the_second_host_is_said_with_its_name_and_ends_both(
    bed: Bed, disk: Path, files: dict[str, Path], tmp_path: Path
) -> None:
    """Its training file is another one; the first host has no fault."""
    for host, text in zip(bed.hosts, ("river stone\n", "little house\n"), strict=True):
        (tmp_path / host.name / "text.txt").write_text(text * 50)
    words = arguments("fp32.json", {**files, "pretrain": disk / "text.txt"}, disk / "run", *SHORT)
    ended = train(bed, disk, srun, words)
    assert [code for code, _ in ended.values()] == [2, 2], ended
    for _, output in ended.values():
        (line,) = [line for line in output.splitlines() if line.startswith("error: ")]
        assert line.startswith("error: node2 (rank 1): not the first rank's data (")
        assert line.endswith("give all hosts the same files")
