"""What a run writes about itself: config.yaml, ds_config.json, environment.json, tokenizer.model."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from minimind.config import RunConfig
from minimind.durable import write_durably
from minimind.errors import UserError
from minimind.hardware import Hardware
from minimind.tokenizer import FILE_NAME, Tokenizer

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


def write_run_files(
    run_dir: Path, config: RunConfig, ds_config: dict[str, Any], hardware: Hardware, tokenizer: Tokenizer
) -> None:
    """Write the resolved configuration, the environment and the tokenizer; rank 0 only.

    The tokenizer is copied so that a checkpoint can be used after its original has moved.

    Raises UserError when the directory can't be written.
    """
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        _write(run_dir, config, ds_config, hardware, tokenizer)
    except OSError as error:
        raise UserError(
            f"{run_dir}: can't write there: {error.strerror}; give another --output-dir"
        ) from None


def _write(
    run_dir: Path, config: RunConfig, ds_config: dict[str, Any], hardware: Hardware, tokenizer: Tokenizer
) -> None:
    write_durably(run_dir / "config.yaml", config.dump_yaml())
    write_durably(run_dir / "ds_config.json", json.dumps(ds_config, indent=2) + "\n")
    if not (run_dir / FILE_NAME).exists() or (run_dir / FILE_NAME).read_bytes() != tokenizer.model_bytes:
        (run_dir / FILE_NAME).write_bytes(tokenizer.model_bytes)
    write_durably(run_dir / "environment.json", json.dumps(environment(hardware), indent=2) + "\n")


def set_aside(run_dir: Path) -> Path | None:
    """Move what an earlier run left in ``run_dir`` to ``earlier-1`` (2, 3, ...) in it; None if there is nothing.

    Otherwise its checkpoints, which may be at later steps, would be taken for the new run's. metrics.jsonl is renamed
    by metrics_file.py.
    """
    there = [run_dir / name for name in PRODUCTS if (run_dir / name).exists()]
    if not there:
        return None
    target = next(p for n in range(1, 10_000) if not (p := run_dir / f"earlier-{n}").exists())
    target.mkdir()
    for path in there:
        path.rename(target / path.name)
    return target


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
