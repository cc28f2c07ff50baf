"""The guard: which DeepSpeed is accepted, and what is said of another."""

from __future__ import annotations

import configparser
import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from minimind.base.errors import UserError
from minimind.commands import doctor
from minimind.config.deepspeed import resolve
from minimind.training.engine import deepspeed_fixes
from minimind.training.engine.deepspeed_fixes import (
    INSTALL,
    PRIVATE,
    VERSION,
    check_private_names,
    check_wrapper,
    version_problem,
)
from tests.support import CPU, DS_CONFIGS, random_rows, split, tiny_config, tiny_model

ROOT = Path(__file__).parents[3]


def test_one_version_everywhere() -> None:
    """setup.cfg, constraints.txt, doctor and the guard name the same."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    wanted = f"deepspeed=={VERSION}"
    assert wanted in setup["options"]["install_requires"].split()
    assert wanted in (ROOT / "constraints.txt").read_text(encoding="utf-8").split()
    assert wanted in INSTALL
    assert not version_problem(VERSION)


@pytest.mark.parametrize("version", ["0.19.7", "0.19.9", "0.20.0", "0.19.80", "0.19.8.post1", "0.19.8rc1"])
def test_another_version_is_refused_with_what_to_install(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = version_problem(version)
    assert found is not None and version in found and found.endswith(INSTALL)
    known = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda name: version if name == "deepspeed" else known(name))
    check = next(check for check in doctor.check_packages() if check.name == "deepspeed")
    assert (check.status, check.advice) == ("bad", found)


def test_a_build_from_source_is_the_same_version() -> None:
    assert version_problem(f"{VERSION}+cu126") is None
    assert version_problem(f"{VERSION}+unknown") is None


def run_launch_script(*lines: str) -> subprocess.CompletedProcess[str]:
    """launch/pretrain.py after ``lines``, in a process of its own."""
    code = "\n".join(
        [
            "import sys",
            *lines,
            "from minimind.training.process.start import start",
            "sys.argv = ['pretrain.py', '--deepspeed_config', 'ds_configs/fp32.json', '--max-steps', '1']",
            "start('minimind.training.run.main', 'pretrain')",
        ]
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)


def test_a_run_with_another_version_ends_in_one_line() -> None:
    done = run_launch_script(
        "from importlib import metadata",
        "known = metadata.version",
        "metadata.version = lambda name: '0.20.1' if name == 'deepspeed' else known(name)",
    )
    assert done.returncode == 2
    assert done.stderr.strip() == f"error: {version_problem('0.20.1')}"


def test_a_run_without_a_private_name_ends_in_one_line() -> None:
    done = run_launch_script(
        "from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer",
        "del DeepSpeedZeroOptimizer._update_scale",
    )
    assert done.returncode == 2
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("error: ") and "_update_scale is gone or changed" in last and INSTALL in last
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", sorted(PRIVATE))
def test_each_private_name_is_checked(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gone, or with another parameter: both are said, by name."""
    check_private_names()
    parameters = PRIVATE[name]
    if parameters is not None:
        monkeypatch.setitem(PRIVATE, name, (*parameters, "added"))
        with pytest.raises(UserError, match=re.escape(name)):
            check_private_names()
    monkeypatch.setitem(PRIVATE, name, parameters)
    monkeypatch.setitem(PRIVATE, f"{name}_gone", parameters)
    with pytest.raises(UserError, match=re.escape(f"{name}_gone")):
        check_private_names()


@pytest.mark.parametrize("kind", sorted(deepspeed_fixes.ATTRIBUTES))
def test_each_attribute_of_a_wrapper_is_checked(kind: str) -> None:
    names = deepspeed_fixes.ATTRIBUTES[kind]
    for lacking in names:
        wrapper = type(kind, (SimpleNamespace,), {})(**dict.fromkeys(set(names) - {lacking}))
        with pytest.raises(UserError, match=f"{kind}.{lacking}"):
            check_wrapper(wrapper)
    check_wrapper(type(kind, (SimpleNamespace,), {})(**dict.fromkeys(names)))


SETTERS = re.compile(
    r"(?:self\.ds|self\.optimizer|bf16_optimizer|compiler|get_accelerator\(\))\.(\w+)(?:, \w+\.\w+)? = "
)


def test_what_the_engine_replaces_is_listed() -> None:
    """Every assignment to a part of DeepSpeed in engine.py and beside the list, every replacement in snapshot.py."""
    engine = (ROOT / "minimind/training/engine/engine.py").read_text(encoding="utf-8")
    engine += Path(deepspeed_fixes.__file__).read_text(encoding="utf-8")
    snapshot = (ROOT / "minimind/training/checkpoint/snapshot.py").read_text(encoding="utf-8")
    replaced = set(SETTERS.findall(engine)) | set(re.findall(r"[(, ](\w+)=(?:keep|lambda)", snapshot))
    assert {"_update_scale", "buffered_allreduce_fallback", "see_memory_usage", "compile"} <= replaced
    assert {"save", "makedirs", "_copy_recovery_script"} <= replaced
    listed = {re.split(r"[.:]", name)[-1] for name in PRIVATE}
    listed |= {name for names in deepspeed_fixes.ATTRIBUTES.values() for name in names}
    assert replaced <= listed, replaced - listed


@pytest.mark.usefixtures("one_rank")
def test_gradients_that_are_released_are_the_same_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four steps of two micro-batches, the second skipped for a NaN: the fp32 masters with and without, to the bit."""
    from minimind.training.engine.engine import Engine
    from minimind.training.engine.step import train_step

    found: list[list[torch.Tensor]] = []
    for release in (deepspeed_fixes.release_gradients, lambda optimizer: None):
        monkeypatch.setattr(deepspeed_fixes, "release_gradients", release)
        resolved = resolve(json.loads((DS_CONFIGS / "bf16.json").read_text()), tiny_config(), 1, CPU)
        engine = Engine(tiny_model(), resolved, lambda step: 1.0)
        for step in range(4):
            weight = next(engine.module.parameters())
            hook = weight.register_hook(lambda grad: grad * float("nan")) if step == 1 else None
            result = train_step(engine, split(random_rows(4, seed=step), 2))
            assert result.update.applied == (step != 1)
            if hook is not None:
                hook.remove()
            held = sum(flat.untyped_storage().nbytes() for flat in engine.optimizer.fp32_groups_gradients_flat)
            assert (held == 0) == (not found)
        found.append([part.detach().clone() for part in engine.optimizer.fp32_groups_flat_partition])
        engine.close()
    for released, kept in zip(*found, strict=True):
        assert torch.equal(released, kept)
