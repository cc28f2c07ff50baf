"""Whose uncommitted changes are recorded, where, and who can read them."""

from __future__ import annotations

import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from minimind.base.hardware import Hardware
from minimind.commands.page.html import page
from minimind.commands.page.records import load_records
from minimind.training.record import provenance
from minimind.training.record.provenance import DIFF, environment, repository, write_diff

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
ROOT = Path(__file__).parents[3]
MODULE = Path(provenance.__file__).relative_to(ROOT)
SECRET = "pass-in-the-diff-4711"


def git(root: Path, *words: str) -> None:
    identity = ["-c", "user.name=x", "-c", "user.email=x@localhost", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *identity, *words], cwd=root, check=True, capture_output=True)


def checkout(root: Path, package: str = ".") -> Path:
    """A repository with this module in it, and an uncommitted change; the module's path."""
    file = root / package / MODULE
    file.parent.mkdir(parents=True)
    file.write_text("pass\n")
    git(root, "init", "-q")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "x")
    file.write_text(f"{SECRET}\n")
    return file


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The package's own checkout."""
    root = tmp_path / "checkout"
    root.mkdir()
    file = checkout(root)
    monkeypatch.setattr(provenance, "repository", lambda: repository(file))
    return root


def test_the_packages_own_checkout_counts(own: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert provenance.repository() == own.resolve()
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    assert provenance.repository() == own.resolve()


def test_a_package_inside_another_project_has_no_repository(tmp_path: Path) -> None:
    """Installed in a virtual environment of a checkout, ignored or not, or even committed there."""
    checkout(tmp_path / "other" if (tmp_path / "other").mkdir() is None else tmp_path)
    untracked = tmp_path / "other" / ".venv" / MODULE
    untracked.parent.mkdir(parents=True)
    untracked.touch()
    assert repository(untracked) is None
    (tmp_path / "vendor").mkdir()
    assert repository(checkout(tmp_path / "vendor", "third_party")) is None
    (tmp_path / "fresh").mkdir()
    git(tmp_path / "fresh", "init", "-q")
    beside = tmp_path / "fresh" / MODULE
    beside.parent.mkdir(parents=True)
    beside.touch()
    assert repository(beside) is None


def test_the_diff_has_a_file_that_only_its_owner_reads(own: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("keep")
    run = tmp_path / "run"
    run.mkdir()
    (run / DIFF).symlink_to(victim)
    write_diff(run)
    assert SECRET in (run / DIFF).read_text() and victim.read_text() == "keep"
    assert stat.S_IMODE((run / DIFF).stat().st_mode) == 0o600
    git(own, "commit", "-qam", "x")
    write_diff(run)  # a later start without changes: the old ones are not its own
    assert (run / DIFF).read_text() == "" and [path.name for path in run.iterdir()] == [DIFF]
    (tmp_path / "clean").mkdir()
    write_diff(tmp_path / "clean")
    assert not any((tmp_path / "clean").iterdir())


def test_the_diff_is_capped(own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "MAX_DIFF", 100)
    (own / MODULE).write_text("line\n" * 200_000)
    write_diff(tmp_path)
    text = (tmp_path / DIFF).read_bytes()
    assert text.startswith(b"diff --git ") and text.endswith(b"\n... cut here\n") and len(text) < 120


def test_environment_json_holds_no_secret_and_no_diff(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["pretrain.py", "--set", "api_key=s3cret"])
    monkeypatch.setenv("HF_TOKEN", "s3cret")
    recorded = environment(Hardware("cpu", False, False, "cpu", 1))
    assert "s3cret" not in str(recorded) and SECRET not in str(recorded)
    assert len(recorded["git_revision"]) == 40 and recorded["command"][-1] == "api_key=***"


def test_a_report_shows_no_diff_and_no_secret(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"kind": "run"}\n')
    (tmp_path / "git.diff").write_text(SECRET)
    for text in (
        f'{{"git_diff": "{SECRET}", "command": ["--api-key", "{SECRET}"], "git_revision": "abc123"}}',
        f'{{"git_diff": "{SECRET}"',  # torn
    ):
        (tmp_path / "environment.json").write_text(text)
        (tmp_path / "ds_config.json").write_text(f'{{"comet": {{"api_key": "{SECRET}"}}, "zero": 1}}')
        html = page([load_records(tmp_path)])
        assert SECRET not in html and "zero" in html
