"""Counting devices as DeepSpeed's launcher does."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from minimind.commands.launcher import devices
from minimind.commands.launcher.devices import ACCELERATORS, count_devices


@pytest.fixture(autouse=True)
def _nothing_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("DS_ACCELERATOR", "LOCAL_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(devices, "DRIVERS", (str(tmp_path / "driver"),))


def test_a_cpu_is_one_device_or_its_numa_nodes_or_what_local_size_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert count_devices() == ("cpu", 1)
    lines = "available: 3 nodes (0-2)\nnode 0 cpus: 0 1\nnode 0 size: 9 MB\nnode 1 cpus: 2 3\nnode 2 cpus:\n"
    (tmp_path / "numactl").write_text(f"#!/bin/sh\nprintf '{lines}'\n")
    (tmp_path / "numactl").chmod(0o755)
    assert count_devices() == ("cpu", 2)  # the third node has memory only
    monkeypatch.setenv("LOCAL_SIZE", "4")
    assert count_devices() == ("cpu", 4)


def test_gpus_are_counted_only_where_there_may_be_some(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(devices, "_count_gpus", lambda: 2)
    assert count_devices()[0] == "cpu"  # type: ignore[index]
    (tmp_path / "driver").touch()
    assert count_devices() == ("cuda", 2)
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    assert count_devices()[0] == "cpu"  # type: ignore[index]
    monkeypatch.setenv("DS_ACCELERATOR", "xpu")
    assert count_devices() is None


def test_a_driver_without_gpus_leaves_the_cpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "driver").touch()
    monkeypatch.setattr(devices, "_count_gpus", lambda: 0)
    assert count_devices()[0] == "cpu"  # type: ignore[index]
    monkeypatch.setenv("DS_ACCELERATOR", "cuda")
    assert count_devices() == ("cuda", 0)


def test_torch_is_asked_without_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    monkeypatch.setattr(devices, "COUNT", "import os; print(3 if 'CUDA_VISIBLE_DEVICES' not in os.environ else 0)")
    assert devices._count_gpus() == 3
    monkeypatch.setattr(devices, "COUNT", "raise ImportError")
    assert devices._count_gpus() is None


def test_the_accelerators_are_deepspeeds() -> None:
    from deepspeed.accelerator.real_accelerator import SUPPORTED_ACCELERATOR_LIST

    assert list(ACCELERATORS) == SUPPORTED_ACCELERATOR_LIST


def test_cores_are_psutils() -> None:
    assert devices.physical_cores() == (psutil.cpu_count(logical=False) or psutil.cpu_count())
