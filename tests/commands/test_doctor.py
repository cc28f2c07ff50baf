"""The doctor: each check on a made-up machine, and the whole on this one."""

from __future__ import annotations

import json
import os
import shlex
import socket
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.file_baton import FileBaton

from minimind.base.errors import UserError
from minimind.base.hardware import Hardware
from minimind.commands import doctor
from minimind.commands.launcher import words as launch_words
from minimind.config.deepspeed import resolve
from minimind.config.run import RunConfig
from minimind.training.engine.deepspeed_fixes import VERSION
from minimind.training.run.arguments import parse
from minimind.training.run.requirements import lacks

CONFIGS = Path(__file__).parents[2] / "ds_configs"
CPU = Hardware("cpu", False, False, "Xeon", 2**34)
GPU = Hardware("cuda", True, True, "GPU", 2**34)


def write(path: Path, value: object) -> Path:
    path.write_text(json.dumps(value))
    return path


def test_this_environment_is_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    lines: list[str] = []
    assert doctor.run_doctor(CONFIGS / "fp32.json", output_dir=tmp_path, show=lines.append) == 0
    text = "\n".join(lines)
    assert lines[-2] == "ready" and lines[-1].startswith("next: minimind launch ")
    assert "deepspeed" in text
    assert "effective batch: 8 micro x 1 accumulation x 1 rank" in text


@pytest.mark.parametrize(
    ("hardware", "given", "words"),
    [
        (CPU, {}, ["fp32.json", "--set model=tiny", "--output-dir runs/first"]),
        (GPU, {}, ["bf16.json", "launch/pretrain.py", "--output-dir runs/first"]),
        (
            CPU,
            {"deepspeed_config": CONFIGS / "sft_fp32.json"},
            ["launch/sft.py", "sft_fp32.json", "--model runs/first"],
        ),
        (CPU, {"config": Path("my run.yaml")}, ["launch/pretrain.py --config 'my run.yaml' --output-dir"]),
    ],
)
def test_the_next_line_is_whole(hardware: Hardware, given: dict[str, Path], words: list[str]) -> None:
    line = doctor.next_line(hardware, **given)
    assert all(word in line for word in words)
    assert ("model=tiny" in line) == ("--set model=tiny" in words)
    script, *options = shlex.split(line)[2:]
    parsed = parse("sft" if "sft" in script else "pretrain", options)
    assert parsed.deepspeed_config is None or parsed.deepspeed_config.is_file()
    hosts = doctor.next_line(hardware, **given, hostfile=Path("my hosts"))
    assert hosts == line.replace("minimind launch ", "minimind launch --hostfile 'my hosts' ")


@pytest.mark.parametrize(("cuda", "said"), [(None, "a build for CPUs"), ("12.8", "can't use it (NVRM 525)")])
def test_a_gpu_that_torch_cannot_use_is_named(
    cuda: str | None, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DS_ACCELERATOR", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    driver = tmp_path / "version"
    assert not doctor.check_idle_gpu(driver)
    driver.write_text("NVRM 525\nGCC 12\n")
    (check,) = doctor.check_idle_gpu(driver)
    assert check.status == "note" and said in check.seen
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert not doctor.check_idle_gpu(driver)


def test_a_bad_config_ends_with_1_and_lists_every_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    path = write(
        tmp_path / "c.json",
        {"gradient_acumulation_steps": 8, "amp": {"enabled": True}, "zero_optimization": {"stage": 4}},
    )
    lines: list[str] = []
    assert doctor.run_doctor(path, output_dir=tmp_path, show=lines.append) == 1
    bad = [line for line in lines if line.startswith("bad")]
    assert len(bad) == 3
    assert all("c.json:1: " in line for line in bad)
    assert lines[-1] == "3 problems"


def test_a_missing_config_is_a_wrong_use(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none.json: no such DeepSpeed config"):
        doctor.run_doctor(tmp_path / "none.json", output_dir=tmp_path, show=lambda line: None)


def test_build_locks_are_judged_by_who_holds_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    assert [check.seen for check in doctor.check_build_locks()] == ["none"]
    held, dead = tmp_path / "cpu_adam" / "lock", tmp_path / "fused_adam" / "lock"
    for lock in (held, dead):
        lock.parent.mkdir()
    baton = FileBaton(str(held))
    baton.try_acquire()
    dead.touch()
    living, stale = doctor.check_build_locks()
    assert living.status == "ok" and f"process {os.getpid()} (" in living.seen
    assert stale.status == "note" and "no process holds it" in stale.seen and f"rm {dead}" in stale.advice
    assert held.exists() and dead.exists()  # nothing is changed
    monkeypatch.setattr(doctor.build_lock, "file_system", lambda path: "nfs4")
    assert "nfs4" in doctor.check_build_locks()[1].seen


@pytest.mark.parametrize(("value", "status"), [("0,1", "bad"), ("", "ok"), ("0", "ok")])
def test_visible_devices(monkeypatch: pytest.MonkeyPatch, value: str, status: str) -> None:
    monkeypatch.setattr(launch_words, "count_devices", lambda: ("cpu", 1))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    first, *_ = doctor.check_launch([])
    assert first.status == status
    assert ("no slot 1" in first.seen) == (status == "bad")


def test_the_launchers_words_are_checked_by_the_launchs_own_code(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        (check,) = doctor.check_launch(["--master_port", str(other.getsockname()[1])])
    assert check.status == "bad" and "is in use" in check.seen
    lines: list[str] = []
    words = ["--hostfile", str(tmp_path / "none")]
    assert doctor.run_doctor(output_dir=tmp_path, words=words, show=lines.append) == 1
    assert [line for line in lines if line.startswith("bad")] == [
        f"bad  launch            {tmp_path / 'none'}: there is no such hostfile; on one machine leave --hostfile out"
    ]


def test_a_taken_default_port_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        monkeypatch.setattr(launch_words, "DEFAULT_PORT", other.getsockname()[1])
        _, port = doctor.check_launch([])
    assert port.status == "note" and "minimind launch" in port.advice


def test_disk(tmp_path: Path) -> None:
    assert doctor.check_disk(tmp_path / "not" / "yet", need=1).status == "ok"
    assert doctor.check_disk(tmp_path, need=2**60).status == "bad"


def test_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.check_packages()[0].status == "ok"
    known = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda name: None if name in ("torch", "wandb") else known(name))
    checks = {check.name: check for check in doctor.check_packages()}
    assert checks["packages"].status == "bad"
    assert "torch" in checks["packages"].seen
    assert checks["wandb"].status == "note"
    monkeypatch.setattr(doctor, "_version", lambda name: "0.18.0" if name == "deepspeed" else known(name))
    checks = {check.name: check for check in doctor.check_packages()}
    assert checks["deepspeed"].status == "bad"
    assert VERSION in checks["deepspeed"].advice


def test_launcher(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = Path(sys.executable).parent
    monkeypatch.setenv("PATH", str(folder))
    assert doctor.check_launcher().status == "ok"
    other = tmp_path / "deepspeed"
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{folder}")
    assert str(other) in doctor.check_launcher().seen
    monkeypatch.setenv("PATH", "")
    assert "not on PATH" in doctor.check_launcher().seen


def test_what_a_config_needs_is_what_the_run_asks_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    run, path = RunConfig(), CONFIGS / "bf16_zero2_offload.json"
    resolved = resolve(path, run, 1, CPU)
    bad = [check for check in doctor.check_resolved(resolved, run, CPU) if check.status == "bad"]
    assert [f"{check.name}: {check.seen}; {check.advice}" for check in bad] == [
        str(lack) for lack in lacks(resolved, run, CPU)
    ]
    assert [check.name for check in bad] == ["offload"]
