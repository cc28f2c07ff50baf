"""The output directory of a run, and its config.yaml, ds_config.json, environment.json and tokenizer.model."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from minimind.config import RunConfig
from minimind.durable import write_durably
from minimind.errors import UserError
from minimind.findings import Finding
from minimind.hardware import Hardware
from minimind.memory import checkpoint_bytes
from minimind.tokenizer import FILE_NAME, Tokenizer
from minimind.training import space
from minimind.training.deepspeed_config import Resolved
from minimind.training.recovery import FILE_NAME as RECOVERY
from minimind.training.recovery import write_rollbacks
from minimind.training.resume import Start

PACKAGES = (
    "torch",
    "deepspeed",
    "sentencepiece",
    "numpy",
    "pydantic",
    "safetensors",
    "wandb",
    "bitsandbytes",
)
PRODUCTS = ("latest", "best", "checkpoints", "final", "recovery.json", "post_mortem.json")  # what a run makes
MAX_DIFF = 1_000_000  # characters of `git diff` kept; beyond that the revision alone must do


def open_directory(
    config: RunConfig, resolved: Resolved, hardware: Hardware, tokenizer: Tokenizer, start: Start
) -> list[Finding]:
    """Make the output directory ready for a run that begins at ``start``; findings about it. Rank 0 only.

    Raises UserError when the directory can't be written, or has no room for a checkpoint.
    """
    run_dir = config.output_dir
    with _writing(run_dir):
        findings = _set_aside(run_dir) if start.checkpoint is None else []
        if start.rollbacks or (run_dir / RECOVERY).exists():
            run_dir.mkdir(parents=True, exist_ok=True)
            write_rollbacks(run_dir, start.rollbacks)
    write_run_files(run_dir, config, resolved.config, hardware, tokenizer)
    return findings + space.before_run(run_dir / "checkpoints", checkpoint_bytes(config, resolved))


def write_run_files(
    run_dir: Path, config: RunConfig, ds_config: dict[str, Any], hardware: Hardware, tokenizer: Tokenizer
) -> None:
    """Write the resolved configuration, the environment and the tokenizer; rank 0 only.

    The tokenizer is copied so that a checkpoint can be used after its original has moved.

    Raises UserError when the directory can't be written.
    """
    copy = run_dir / FILE_NAME
    with _writing(run_dir):
        run_dir.mkdir(parents=True, exist_ok=True)
        write_durably(run_dir / "config.yaml", config.dump_yaml())
        write_durably(run_dir / "ds_config.json", json.dumps(ds_config, indent=2) + "\n")
        if not copy.exists() or copy.read_bytes() != tokenizer.model_bytes:
            copy.write_bytes(tokenizer.model_bytes)
        write_durably(run_dir / "environment.json", json.dumps(environment(hardware), indent=2) + "\n")


@contextmanager
def _writing(run_dir: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{run_dir}: can't write there: {error.strerror}; give another --output-dir"
        ) from None


def _set_aside(run_dir: Path) -> list[Finding]:
    """Move what an earlier run left in ``run_dir`` to ``earlier-1`` (2, 3, ...) in it.

    Otherwise its checkpoints, which may be at later steps, would be taken for the new run's. metrics.jsonl is renamed
    by metrics_file.py.
    """
    there = [run_dir / name for name in PRODUCTS if (run_dir / name).exists()]
    if not there:
        return []
    target = next(p for n in range(1, 10_000) if not (p := run_dir / f"earlier-{n}").exists())
    target.mkdir()
    for path in there:
        path.rename(target / path.name)
    message = f"{run_dir} holds an earlier run: its checkpoints and model are now in {target}"
    return [
        Finding("earlier-run", message, "delete them if they are not needed; --resume goes on with a run")
    ]


def environment(hardware: Hardware) -> dict[str, Any]:
    """Versions, command line, git revision and uncommitted diff, hardware: what it takes to run this again."""
    return {
        "command": sys.argv,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in PACKAGES},
        "git_revision": _git("rev-parse", "HEAD"),
        "git_diff": (_git("diff", "HEAD") or "")[:MAX_DIFF],
        "hardware": hardware.describe(),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git(*arguments: str) -> str | None:
    """Output of git in this checkout; None outside a checkout or without git."""
    root = Path(__file__).resolve().parents[2]
    try:
        result = subprocess.run(
            ["git", *arguments],
            cwd=root,
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
            errors="replace",
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip()
