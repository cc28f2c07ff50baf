"""Two hosts that share the code and nothing else: a disk of each under the same path, for the run and for the cache."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from minimind.training.checkpoint.directory import all_checkpoints, problem
from tests.hosts.bed import ROOT, Bed, Host, outcome
from tests.test_launch import arguments
from tests.waiting import wait_for

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


Starter = Callable[[Host, int], tuple[list[str], dict[str, str]]]


def started(bed: Bed, disk: Path, starter: Starter, words: list[str]) -> dict[str, subprocess.Popen[str]]:
    """The same command on both hosts; no interface is named."""
    processes = {}
    for rank, host in enumerate(bed.hosts):
        command, variables = starter(host, rank)
        variables |= {"MINIMIND_CACHE": str(disk / "cache")}
        processes[host.name] = host.start([*command, ROOT / "launch" / "pretrain.py", *words], **variables)
    return processes


def train(bed: Bed, disk: Path, starter: Starter, words: list[str]) -> dict[str, tuple[int, str]]:
    """Exit code and output by host."""
    return outcome(started(bed, disk, starter, words))


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "final" / "model.safetensors")


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


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
    assert equal(weights(tmp_path / "node1" / "run"), weights(tmp_path / "node1" / "again"))
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


@pytest.mark.soak
@pytest.mark.parametrize("json", ["fp32.json", "bf16_zero2.json", "bf16_zero3.json"])
def test_killed_in_the_middle_of_a_save_it_goes_on_bit_for_bit(
    json: str, bed: Bed, disk: Path, files: dict[str, Path], tmp_path: Path
) -> None:
    """Whichever rank is killed while a checkpoint is on its way, the one before it is complete on the first host."""
    first, draw = tmp_path / "node1", random.Random(json)
    often = ("--max-steps", "12", "--set", "save_steps=1", "--set", "save_total_limit=3")
    ended = train(bed, disk, srun, arguments(json, files, disk / "whole", *often))
    assert [code for code, _ in ended.values()] == [0, 0], ended
    for kill in range(4):
        begun = (first / "run" / "checkpoints").is_dir()
        more = ("--resume",) if begun else ()
        processes = started(bed, disk, srun, arguments(json, files, disk / "run", *often, *more))
        known = newest(first / "run")
        wait_for(lambda known=known: newest(first / "run") > known, processes["node1"])  # type: ignore[misc]
        wait_for(lambda: list((first / "run" / "checkpoints").glob(".incomplete*")), processes["node1"])
        victim = draw.choice(bed.hosts)
        for pid in victim.processes("launch/pretrain.py"):
            os.kill(pid, signal.SIGKILL)
        for host in bed.hosts:
            for pid in host.processes("launch/pretrain.py"):  # what the heartbeat is for
                os.kill(pid, signal.SIGKILL)
        outcome(processes)
        assert newest(first / "run") > 0, f"after kill {kill}"
    ended = train(bed, disk, srun, arguments(json, files, disk / "run", *often, "--resume"))
    assert [code for code, _ in ended.values()] == [0, 0], ended
    assert equal(weights(first / "run"), weights(first / "whole"))
    assert not list((tmp_path / "node2" / "run").rglob("*.pt"))


def newest(run: Path) -> int:
    """The step of the newest complete checkpoint; 0 without one."""
    return max((c.step for c in all_checkpoints(run) if problem(c.path) is None), default=0)
