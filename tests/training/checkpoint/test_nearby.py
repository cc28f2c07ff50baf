"""Hosts that share no disk, as gloo ranks with a directory each: saved in one place, and read on all.

Ranks 0 and 1 have a disk each, rank 2 has rank 1's: their working directories, in which all call theirs "run".
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any, BinaryIO

import torch

from minimind.base.errors import UserError
from minimind.training.checkpoint import transfer, writer
from minimind.training.checkpoint.directory import MANIFEST, all_checkpoints, directories, problem
from minimind.training.checkpoint.nearby import at_hand, elsewhere
from minimind.training.checkpoint.snapshot import HostCopy, Snapshot
from minimind.training.checkpoint.writer import Saver
from minimind.training.process.disks import Disks, find_disks, separate
from minimind.training.process.ranks import Control
from tests.support import run_ranks, save_steps


class RankEngine:
    """A rank with a file of its own, as ZeRO has it; ``broken``: its state can't be written."""

    def __init__(self, rank: int, broken: bool = False) -> None:
        self.rank, self.broken = rank, broken

    def snapshot(self, state: dict[str, Any]) -> Snapshot:
        name = f"engine/zero_pp_rank_{self.rank}_mp_rank_00_optim_states.pt"
        files: dict[str, HostCopy | bytes] = {name: HostCopy({"state": state, "m": torch.full((9000,), self.rank)})}
        if self.rank == 0:
            files |= {"zero_to_fp32.py": b"# a script\n", "engine/mp_rank_00_model_states.pt": HostCopy({"w": 1})}
        return BrokenSnapshot(files) if self.broken else Snapshot(files)


class BrokenSnapshot(Snapshot):
    def send(self, box: transfer.Outbox, beat: Any = None) -> None:
        box.begin(next(iter(self.files)))
        raise OSError(errno.EIO, "Input/output error", "a shard")


def saved(run_dir: Path, control: Control, apart: list[int], broken: bool = False) -> tuple[bool, list[str]]:
    saver = Saver(RankEngine(control.rank, broken), control, run_dir, 2, set(), apart=apart)
    saver.save(10, {"step": 10}, {"about": 1})
    return saver.finish(), [finding.message for finding in saver.poll()]


def hosts(root: Path) -> dict[str, Any]:
    """What a rank sees of all that is below; the asserts are the parent's."""
    writer.PAUSES = (0.0, 0.0)
    control, saving = Control(), Control("saving")
    rank, disk, own = control.rank, root / f"disk{min(control.rank, 1)}", Path("run")
    disk.mkdir(exist_ok=True)
    os.chdir(disk)
    seen: dict[str, Any] = {"together": find_disks(control, root / "shared"), "made": (root / "shared").exists()}
    if rank == 0:
        own.mkdir()
    disks = seen["disks"] = find_disks(control, own)
    seen["finding"] = separate(disks, own)
    control.barrier()  # each rank takes its own file away
    seen["left"] = sorted(path.name for path in own.iterdir()) if own.exists() else None
    (root / "shared").mkdir(exist_ok=True)
    seen["shared save"] = saved(root / "shared", saving, [])
    seen["save"] = saved(own, saving, disks.apart)
    seen["checkpoints"] = len(all_checkpoints(own))
    checkpoint = control.first_does(lambda: all_checkpoints(own)[0])

    with at_hand(control, checkpoint, own, disks) as path:
        seen["path"], seen["files"] = path, {p.name: p.read_bytes() for p in path.rglob("*.pt")}
        control.barrier()
    control.barrier()
    seen["kept"] = path.exists()
    with at_hand(control, control.first_does(lambda: all_checkpoints(root / "shared")[0]), own, disks) as path:
        seen["shared path"] = path

    seen["full"] = full_once(saved, Path("full"), saving, disks.apart)
    seen["broken"] = saved(Path("broken"), saving, disks.apart, broken=rank == 2)
    seen["lost"] = refused(control, checkpoint, own, disks) if damage(checkpoint.path, control) else None
    if rank == 1:
        save_steps(Path("swapped"), 7)
    seen["elsewhere"] = elsewhere(control, Path("swapped"), disks), elsewhere(control, own, disks)
    seen["unshared"] = refused(control, checkpoint, own, Disks.one(3))
    return seen


def full_once(work: Any, *arguments: Any) -> Any:
    """``work`` with the first file that arrives from another rank meeting a full disk."""
    create, left = transfer.create, iter([True])

    def full(path: Path) -> BinaryIO:
        if next(left, None):
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return create(path)

    transfer.create = full  # type: ignore[assignment]
    try:
        return work(*arguments)
    finally:
        transfer.create = create


def damage(checkpoint: Path, control: Control) -> bool:
    """Change a file after the first rank has verified it."""
    control.barrier()
    if control.rank == 0:
        (checkpoint / "engine/mp_rank_00_model_states.pt").write_bytes(b"something else")
    control.barrier()
    return True


def refused(control: Control, *arguments: Any) -> str:
    try:
        with at_hand(control, *arguments):
            return "read"
    except UserError as error:
        return str(error)


def test_hosts_without_a_shared_disk_have_one_complete_checkpoint(tmp_path: Path) -> None:
    first, second, third = ranks = run_ranks(3, hosts, tmp_path)
    assert all(r["together"].keepers == (0, 0, 0) and separate(r["together"], tmp_path) == [] for r in ranks)
    assert all(r["disks"].keepers == (0, 1, 1) and r["disks"].apart == [1, 2] for r in ranks)
    (finding,) = first["finding"]
    assert finding.code == "disks-separate" and "the files of 2 ranks are sent to" in finding.message
    assert first["left"] == [] and second["left"] is None, "the look leaves nothing behind"

    assert [r["shared save"] for r in ranks] == [r["save"] for r in ranks] == [(True, [])] * 3
    assert [r["checkpoints"] for r in ranks] == [1, 0, 0]
    one, other = (directories(run, 10)[1] for run in (tmp_path / "shared", tmp_path / "disk0" / "run"))
    assert (one / MANIFEST).read_bytes() == (other / MANIFEST).read_bytes(), "the same files, by their sums"
    assert problem(one) is None

    copy, final = directories(Path("run"), 10)
    assert [r["path"] for r in ranks] == [final, copy, copy]
    assert first["files"] == second["files"] == third["files"] and len(first["files"]) == 4
    assert [r["kept"] for r in ranks] == [True, False, False]
    assert all(r["shared path"] == one for r in ranks), "nothing is sent to who sees it"

    (done, said) = first["full"]
    assert done and "saved after 1 failed attempts: No space left on device" in said[0]
    assert problem(directories(tmp_path / "disk0" / "full", 10)[1]) is None
    assert not first["broken"][0] and "Input/output error: a shard" in first["broken"][1][0]
    assert not list((tmp_path / "disk0" / "broken" / "checkpoints").iterdir())
    assert len({r["lost"] for r in ranks}) == 1 and "could not be brought here" in first["lost"]
    assert "(rank 1): " in first["lost"], "it says where"
    assert all("does not see it; copy it to a directory that all hosts share" in r["unshared"] for r in ranks)
    assert not list((tmp_path / "disk1" / "run").rglob("*.pt")), "no host keeps a part of a checkpoint"
    (found, none) = first["elsewhere"]
    assert found.endswith(" has step-00000007: make it the first host, or copy swapped from there") and none == ""
