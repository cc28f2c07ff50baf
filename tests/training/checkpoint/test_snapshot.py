"""Host copies of a checkpoint's files: equal to what DeepSpeed writes, and unmoved by what happens afterwards."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from pathlib import Path
from typing import Any

import pytest
import torch

from minimind.config.memory import checkpoint_bytes
from minimind.training.checkpoint import snapshot
from minimind.training.checkpoint.snapshot import HostCopy, Snapshot
from tests.support import DS_CONFIGS, random_rows, split, tiny_config, tiny_model

STATES = ["fp32.json", "bf16.json", "fp16.json", "bf16_zero2_offload.json", "bf16_zero3_offload.json", "muon.json"]


class Scaler:
    """Like DeepSpeed's loss scaler: a pickled object that the next step changes."""

    def __init__(self) -> None:
        self.scale = 8.0


def test_a_copy_is_compact_keeps_aliases_and_is_not_moved_by_later_changes() -> None:
    whole = torch.arange(10_000.0)
    part, scaler = whole[10:20], Scaler()
    copy = HostCopy({"a": part, "b": part.detach(), "column": whole[::100], "scaler": scaler, "n": [1, (2,)]})
    assert copy.num_bytes < 4 * (10 + 100) + 1000
    whole.zero_()
    scaler.scale = 4.0
    value = copy.value()
    assert value["a"].tolist() == list(range(10, 20)) and value["column"].tolist() == list(range(0, 10_000, 100))
    assert value["a"].data_ptr() == value["b"].data_ptr()
    assert value["scaler"].scale == 8.0 and value["n"] == [1, (2,)]


def test_views_of_the_same_data_keep_their_own_shapes_and_flags() -> None:
    square = torch.arange(9.0).view(3, 3)
    weight = torch.nn.Parameter(square)
    value = HostCopy([square, square.t(), square[0], weight, square.view(torch.int32)]).value()
    for copied, original in zip(value, [square, square.t(), square[0], weight, square.view(torch.int32)], strict=True):
        assert torch.equal(copied, original) and copied.dtype == original.dtype
        assert copied.requires_grad == original.requires_grad


def leaves(value: Any, where: str = "") -> list[tuple[str, Any]]:
    """The tensors of nested containers with their places; of other leaves the type."""
    if isinstance(value, dict):
        return [leaf for key in value for leaf in leaves(value[key], f"{where}/{key}")]
    if isinstance(value, list | tuple):
        return [leaf for i, item in enumerate(value) for leaf in leaves(item, f"{where}/{i}")]
    return [(where, value if isinstance(value, torch.Tensor | int | float | str) else type(value))]


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("name", STATES)
def test_the_files_are_those_that_deepspeed_writes(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from minimind.training.engine.step import train_step

    engine = new_engine(name)
    train_step(engine, split(random_rows(4, seed=0), 2))
    theirs, ours, cwd = (tmp_path / part for part in ("theirs", "ours", "cwd"))
    cwd.mkdir()
    monkeypatch.chdir(cwd)
    taken = engine.snapshot({"step": 1})
    assert not any(cwd.iterdir())  # nothing touched the disk
    taken.write(ours)
    engine.ds.save_checkpoint(str(theirs), tag="engine", client_state={"trainer": {"step": 1}}, save_latest=False)
    names = [sorted(str(p.relative_to(d)) for p in d.rglob("*") if p.is_file()) for d in (theirs, ours)]
    assert names[0] == names[1]
    for file in names[0]:
        if not file.endswith(".pt"):
            assert (theirs / file).read_bytes() == (ours / file).read_bytes()
            assert (ours / file).stat().st_mode & 0o100
            continue
        expected, found = (leaves(torch.load(d / file, weights_only=False)) for d in (theirs, ours))
        assert [where for where, _ in expected] == [where for where, _ in found]
        for (where, value), (_, other) in zip(expected, found, strict=True):
            same = torch.equal(value, other) if isinstance(value, torch.Tensor) else value == other
            assert same, where
    sizes = [sum((d / file).stat().st_size for file in names[0]) for d in (theirs, ours)]
    assert sizes[1] < sizes[0] * 1.02  # no view drags its storage along
    assert sizes[1] < taken.num_bytes + 64 * 2**10
    found = [torch.load(ours / file, weights_only=False) for file in names[0] if file.endswith(".pt")]
    tensors = [value for _, value in leaves(found) if isinstance(value, torch.Tensor)]
    unique = {tensor.data_ptr(): tensor.nbytes for tensor in tensors}  # the tied weight counts once
    assert sum(unique.values()) == pytest.approx(checkpoint_bytes(tiny_config(), engine.resolved), rel=0.01)


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize(
    "name", ["fp32.json", "fp16.json", "bf16.json", "fp16_zero2_offload.json", "fp16_zero3_offload.json"]
)
def test_what_is_written_later_is_the_state_at_the_time_of_the_snapshot(name: str, tmp_path: Path) -> None:
    from minimind.training.engine.step import train_step
    from tests.training.engine.test_engine import masters

    engine = new_engine(name)
    for step in range(2):
        train_step(engine, split(random_rows(4, seed=step), 2))
    then, scale = masters(engine), engine.loss_scale
    taken = engine.snapshot({"step": 2})
    original = engine.backward
    engine.backward = lambda loss: original(loss * float("inf"))  # type: ignore[method-assign]
    for step in range(2):  # two overflows halve the scale
        train_step(engine, split(random_rows(4, seed=step), 2))
    engine.backward = original  # type: ignore[method-assign]
    for step in range(2):
        train_step(engine, split(random_rows(4, seed=step), 2))
    assert not torch.equal(masters(engine), then)
    assert scale is None or engine.loss_scale < scale
    taken.write(tmp_path)
    again = new_engine(name)
    assert again.load(tmp_path) == {"step": 2}
    assert torch.equal(masters(again), then) and again.loss_scale == scale


def new_engine(name: str) -> Any:
    from minimind.config.deepspeed import resolve
    from minimind.training.engine.engine import Engine
    from tests.support import CPU

    resolved = resolve(DS_CONFIGS / name, tiny_config(), 1, CPU, emulate_fp16=True)
    return Engine(tiny_model(), resolved, lambda step: 1.0)


def small() -> Snapshot:
    return Snapshot({"engine/a.pt": HostCopy({"w": torch.ones(100_000)}), "script.py": b"pass\n"})


@pytest.mark.parametrize("zipfile", [True, False])
def test_sizes_and_hashes_are_those_of_the_files(zipfile: bool, tmp_path: Path) -> None:
    facts = Snapshot(small().files, zipfile).write(tmp_path)
    assert set(facts) == {"engine/a.pt", "script.py"}
    for name, fact in facts.items():
        content = (tmp_path / name).read_bytes()
        assert (fact.bytes, fact.sha256) == (len(content), hashlib.sha256(content).hexdigest())
    assert torch.load(tmp_path / "engine/a.pt")["w"].sum() == 100_000


def test_a_full_disk_is_an_error_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full on this system")
    monkeypatch.setattr(snapshot, "open_file", lambda path: full.open("wb"))
    with pytest.raises(OSError, match="No space left on device") as caught:
        small().write(tmp_path)
    assert caught.value.errno == errno.ENOSPC


def test_a_file_over_the_size_limit_is_an_error_with_its_reason(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            small().write(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_an_error_that_only_fsync_sees_is_not_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fsync, synced = os.fsync, []

    def failing(descriptor: int) -> None:
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode):  # a directory's fsync knows nothing of what is in its files
            synced.append(status.st_ino)
            if len(synced) == fails_at:
                raise OSError(errno.EIO, "Input/output error")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", failing)
    for fails_at in (1, 2):
        synced.clear()
        with pytest.raises(OSError, match="Input/output error"):
            small().write(tmp_path / str(fails_at))
    fails_at = 0
    synced.clear()
    facts = small().write(tmp_path)
    assert sorted(synced) == sorted((tmp_path / name).stat().st_ino for name in facts)
