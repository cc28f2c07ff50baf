"""What a config needs and this machine lacks: one line, before anything is prepared."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from minimind.base.errors import UserError
from minimind.base.hardware import Hardware
from minimind.config.deepspeed import resolve
from minimind.config.run import RunConfig, load_run_config
from minimind.training.run import requirements, setup
from minimind.training.run.arguments import parse
from minimind.training.run.main import run
from minimind.training.run.requirements import lacks, remarks, require
from minimind.training.sweep import sweep as lr_sweep
from tests.support import CPU, DS_CONFIGS

GPU = Hardware("cuda", fp16=True, bf16=True, name="GPU", memory=2**34)
OFFLOAD = DS_CONFIGS / "bf16_zero2_offload.json"


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "extensions"))


def lines(source: Path | dict[str, Any], *settings: str) -> list[str]:
    config = load_run_config(None, settings) if settings else RunConfig()
    return [str(lack) for lack in lacks(resolve(source, config, 1, CPU), config, CPU)]


def absent(monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    """As if the packages were not installed."""
    for name in [name for name in sys.modules if name.partition(".")[0] in packages]:
        monkeypatch.delitem(sys.modules, name)
    for name in packages:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)


def monitored(**sections: dict[str, Any]) -> dict[str, Any]:
    return {"gradient_clipping": 1.0, **{name: {"enabled": True, **rest} for name, rest in sections.items()}}


def test_a_missing_tensorboard_and_a_missing_bitsandbytes_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    absent(monkeypatch, "tensorboard", "bitsandbytes")
    (line,) = lines(monitored(tensorboard={}))
    assert line == "tensorboard: tensorboard is not installed; pip install tensorboard, or switch it off in the JSON"
    (line,) = lines(DS_CONFIGS / "adamw8bit.json")
    assert line == "AdamW8bit: bitsandbytes is not installed; pip install 'minimind[bnb]'"
    assert lines({**monitored(tensorboard={}), "tensorboard": {"enabled": False}}) == []


def test_a_directory_of_that_name_is_no_package_and_a_broken_one_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent(monkeypatch, "bitsandbytes")
    monkeypatch.delitem(sys.modules, "bitsandbytes")
    monkeypatch.syspath_prepend(tmp_path)
    package = tmp_path / "bitsandbytes"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('no libcudart\\nand more')")
    (line,) = lines(DS_CONFIGS / "adamw8bit.json")
    assert "bitsandbytes can't be imported (no libcudart)" in line
    (package / "__init__.py").write_text("import a_package_that_is_not_there")
    (line,) = lines(DS_CONFIGS / "adamw8bit.json")
    assert "a_package_that_is_not_there, which bitsandbytes uses, is not installed" in line


def test_the_monitors_that_the_linter_switches_off_need_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    absent(monkeypatch, "wandb", "comet_ml")
    assert lines(monitored(wandb={}, comet={})) == []


def test_a_monitor_that_can_not_write_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (line,) = lines(monitored(csv_monitor={"output_path": str(tmp_path / "file"), "job_name": "j"}))
    assert "csv_monitor" in line and f"{tmp_path / 'file'} is a file" in line
    assert lines(monitored(csv_monitor={"output_path": str(tmp_path / "new"), "job_name": "j"})) == []


def test_offload_needs_a_compiler_and_ninja_unless_it_was_built_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert lines(OFFLOAD) == []
    monkeypatch.setenv("CXX", "no-such-compiler")
    (line,) = lines(OFFLOAD)
    assert "DeepSpeedCPUAdam must be compiled, and there is no C++ compiler (no-such-compiler)" in line
    assert lines(DS_CONFIGS / "bf16_zero2.json") == []
    built = tmp_path / "extensions" / "cpu_adam" / "cpu_adam.so"
    built.parent.mkdir(parents=True)
    built.touch()
    assert lines(OFFLOAD) == []
    monkeypatch.setattr(requirements.builds, "find_ninja", lambda: None)  # torch asks for it even then
    assert len(lines(OFFLOAD)) == 1
    monkeypatch.delenv("CXX")
    assert "no ninja; pip install ninja" in lines(OFFLOAD)[0]


def test_forms_that_do_not_run_here_are_said_before_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    (line,) = lines(DS_CONFIGS / "fp32.json", "attention_backend=flex")
    assert line.startswith("attention_backend: flex needs a GPU") and "leave it at auto" in line
    monkeypatch.setenv("CXX", "no-such-compiler")
    (line,) = lines(DS_CONFIGS / "fp32.json", "compile=on")
    assert line.startswith("compile: on needs a C++ compiler")
    monkeypatch.delenv("CXX")
    (line,) = lines(DS_CONFIGS / "bf16_zero3.json", "compile=on")
    assert line.startswith("compile: on fails at ZeRO stage 3") and "stage 2" in line


def test_pinned_memory_and_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    pinned = {"device": "cpu", "pin_memory": True}
    weights_only = {"gradient_clipping": 1.0, "zero_optimization": {"stage": 3, "offload_param": pinned}}
    for hardware, limit, codes in ((GPU, 2**20, ["memlock"]), (GPU, resource.RLIM_INFINITY, []), (CPU, 2**20, [])):
        monkeypatch.setattr(resource, "getrlimit", lambda which, limit=limit: (limit, limit))
        for path in (OFFLOAD, weights_only):
            resolved = resolve(path, RunConfig(), 1, hardware)
            assert [finding.code for finding in remarks(resolved, hardware)] == codes


def test_all_that_is_missing_comes_in_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    absent(monkeypatch, "tensorboard")
    config = load_run_config(None, ["attention_backend=flex"])
    resolved = resolve(monitored(tensorboard={}), config, 1, CPU)
    with pytest.raises(UserError, match=r"2 problems[\s\S]*tensorboard[\s\S]*attention_backend"):
        require(resolved, config, CPU)


@pytest.mark.parametrize("command", ["pretrain", "sweep"])
def test_a_run_asks_before_it_starts_processes_or_touches_data(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent(monkeypatch, "tensorboard")
    path = tmp_path / "c.json"
    path.write_text(json.dumps(monitored(tensorboard={})))
    started = "minimind.training.run.task.start_processes"
    monkeypatch.setattr(started, lambda emulate: pytest.fail("processes were started"))
    monkeypatch.setattr(setup, "prepare_data", lambda *_: pytest.fail("data were prepared"))
    words = ["--deepspeed_config", str(path), "--output-dir", str(tmp_path / "run")]
    work = {
        "pretrain": lambda: run("pretrain", parse("pretrain", words)),
        "sweep": lambda: lr_sweep.run(lr_sweep.parse([*words, "--learning-rates", "1e-3,2e-3"])),
    }
    with pytest.raises(UserError, match="tensorboard is not installed"):
        work[command]()
    assert not (tmp_path / "run").exists()
