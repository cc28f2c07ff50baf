"""What it takes to run a run again: versions, command line, git revision, hardware, and the uncommitted changes.

Contract. Secrets of the command line are masked; environment variables are not recorded. The changes may hold secrets
that nobody can recognise, so they have a file of their own, ``git.diff``, that only its owner can read and no report
shows. Both revision and changes are of the repository of this package, and absent where the package lies in another's
checkout, such as in a virtual environment inside of it.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import threading
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from minimind.base.files import write_bytes_durably
from minimind.base.hardware import Hardware
from minimind.base.secrets import mask_command
from minimind.config.run import TRACKERS

PACKAGES = ("torch", "deepspeed", "sentencepiece", "numpy", "pydantic", "safetensors", "bitsandbytes", *TRACKERS)
DIFF = "git.diff"
MAX_DIFF = 1_000_000  # bytes of `git diff` kept; beyond that the revision alone must do
SECONDS = 20  # git may take


def environment(hardware: Hardware) -> dict[str, Any]:
    """The content of environment.json."""
    return {
        "command": mask_command(sys.argv),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in PACKAGES},
        "git_revision": _revision(),
        "hardware": hardware.describe(),
    }


def write_diff(run_dir: Path) -> None:
    """Write the uncommitted changes, mode 0600, over those of an earlier start. Without any no file is made."""
    diff = _changes()
    target = run_dir / DIFF
    if diff or os.path.lexists(target):
        write_bytes_durably(target, diff, mode=0o600)


def repository(file: Path = Path(__file__)) -> Path | None:
    """The root of the checkout that ``file`` of this package is tracked in; None for an installed package.

    A checkout that holds the package anywhere but at its root is another project's.
    """
    file = file.resolve()
    root = file.parents[__name__.count(".")]
    top = _git(root, "rev-parse", "--show-toplevel")
    if top is None or Path(os.fsdecode(top.strip())).resolve() != root:
        return None
    return root if _git(root, "ls-files", "--error-unmatch", "--", str(file)) else None


def _revision() -> str | None:
    root = repository()
    output = None if root is None else _git(root, "rev-parse", "HEAD")
    return None if output is None else output.decode("ascii", "replace").strip()


def _changes() -> bytes:
    root = repository()
    diff = None if root is None else _git(root, "diff", "--no-ext-diff", "--no-color", "HEAD")
    if diff is None or len(diff) <= MAX_DIFF:
        return diff or b""
    return diff[:MAX_DIFF] + b"\n... cut here\n"


def _git(root: Path, *arguments: str) -> bytes | None:
    """What git says in ``root``, a little more than `MAX_DIFF` at most; None where it fails, or is not there.

    GIT_DIR and its like, which a hook or an alias sets, would point it to another repository.
    """
    variables = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "-C", str(root), *arguments]
    try:
        process = subprocess.Popen(
            command, env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
    except OSError:
        return None
    limit = threading.Timer(SECONDS, process.kill)
    limit.start()
    with process:
        assert process.stdout is not None
        output = process.stdout.read(MAX_DIFF + 1)
        process.stdout.close()  # git ends by SIGPIPE if it has more to say
        code = process.wait()
    limit.cancel()
    return output if code == 0 or len(output) > MAX_DIFF else None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
