"""An sdist of the checkout, a wheel of the sdist, an environment with that wheel: the commands run from anywhere.

torch and the other dependencies are lent by the environment of the tests; minimind is the wheel's own.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from minimind import __version__
from minimind.base import shipped

ROOT = Path(__file__).parents[1]
BUILD = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
# In place of the launcher: the script with the same words, as a dry run in its own process
LAUNCHER = """
import runpy, sys
at = next(i for i, word in enumerate(sys.argv) if word.endswith(".py") and i)
sys.argv = [*sys.argv[at:], "--dry-run"]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@dataclass(frozen=True)
class Installed:
    """An environment outside the checkout with the wheel in it."""

    folder: Path
    wheel: Path
    sdist: Path

    @property
    def bin(self) -> Path:
        return self.folder / "env" / "bin"

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """The command of that environment, from a directory that is no checkout; it is no rank of this process's."""
        cache = {"MINIMIND_CACHE": str(self.folder / "cache"), "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
        ours = ("PYTHON", "COV", "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_")
        environment = {k: v for k, v in os.environ.items() if not k.startswith(ours)} | cache
        command = [str(self.bin / words[0]), *words[1:]]
        return subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True, check=False)


def _run(*words: object, cwd: Path = ROOT) -> None:
    subprocess.run([str(word) for word in words], cwd=cwd, check=True, capture_output=True)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("packaging")
    source = folder / "source"
    left_out = shutil.ignore_patterns(".git", ".venv", "runs", "build", "dist", "*.egg-info", "__pycache__", ".*_cache")
    shutil.copytree(ROOT, source, ignore=left_out)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "-q")
    _run(sys.executable, "-c", BUILD, folder, cwd=source)
    (sdist,) = folder.glob("*.tar.gz")
    _run(*pip, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", folder, sdist)
    (wheel,) = folder.glob("*.whl")
    environment = folder / "env"
    _run(sys.executable, "-m", "venv", "--without-pip", environment)
    _run(*pip, "--python", environment / "bin" / "python", "install", "--no-deps", "--no-index", wheel)
    (lib,) = (environment / "lib").glob("python*")
    (lib / "site-packages" / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    (environment / "bin" / "deepspeed").write_text(LAUNCHER, encoding="utf-8")
    return Installed(folder, wheel, sdist)


@pytest.mark.slow
def test_the_wheel_holds_every_module_and_everything_that_is_launched(installed: Installed) -> None:
    inside = set(zipfile.ZipFile(installed.wheel).namelist())
    wanted = {path.relative_to(ROOT).as_posix() for path in (ROOT / "minimind").rglob("*.py")}
    pages = [ROOT / "minimind" / name for name in ("inference/serving/page_files", "commands/page/assets")]
    data = [path for page in pages for path in page.iterdir()]
    data += [ROOT / "minimind" / name for name in ("py.typed", "inference/choices/subjects.json")]
    wanted |= {path.relative_to(ROOT).as_posix() for path in data}
    for folder, pattern in (("launch", "*.py"), ("ds_configs", "*.json"), ("configs", "*.yaml")):
        wanted |= {f"minimind/shipped/{folder}/{path.name}" for path in (ROOT / folder).glob(pattern)}
    assert {name for name in inside if ".dist-info/" not in name} == wanted


@pytest.mark.slow
def test_the_sdist_holds_what_is_needed_to_test_it(installed: Installed) -> None:
    with tarfile.open(installed.sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    for name in (
        "Makefile",
        "constraints.txt",
        "LICENSE",
        "tests/conftest.py",
        "docs/architecture.md",
        "tools/mutants.py",
    ):
        assert name in inside


@pytest.mark.slow
def test_the_command_and_the_demo_run_from_outside_the_checkout(installed: Installed) -> None:
    assert __version__ in installed.run("minimind", "--version").stdout
    demo = installed.run("minimind", "demo", "--directory", "demo")
    assert "MiniMind on DeepSpeed: pretrain" in demo.stdout, demo.stdout + demo.stderr  # the dry run's header
    assert "Traceback" not in demo.stderr
    assert demo.returncode == 1 and "stopped before it was finished" in demo.stdout  # a dry run leaves no model
    (line,) = (line for line in demo.stdout.splitlines() if line.startswith("$ deepspeed "))
    words = shlex.split(line)
    named = [Path(word) for word in words if word.endswith((".py", ".yaml")) or "/ds_configs/" in word]
    assert len(named) == 3 and all(path.is_file() and installed.folder in path.parents for path in named), line


def test_shipped_files_are_named_as_short_as_they_can_be_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert str(shipped.from_here("launch/sft.py")) == "launch/sft.py"
    monkeypatch.chdir(tmp_path)
    assert shipped.from_here("launch/sft.py") == ROOT / "launch" / "sft.py"
    (tmp_path / "launch").mkdir()
    (tmp_path / "launch" / "sft.py").touch()  # another project's
    assert shipped.from_here("launch/sft.py") == ROOT / "launch" / "sft.py"
    monkeypatch.setattr(shipped, "INSTALLED", tmp_path)
    assert str(shipped.from_here("launch/sft.py")) == "launch/sft.py"
