"""DeepSpeedCPUAdam is compiled at its first use: say so, and end clearly where it can't be.

The compiled extension is cached below ``$TORCH_EXTENSIONS_DIR`` (default ``~/.cache/torch_extensions``). A build that
was killed leaves a ``lock`` file behind there, on which every later build waits for ever (torch's file_baton.py).
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from minimind.errors import UserError

NAME = "cpu_adam"
STALE_SECONDS = 15 * 60  # a build takes one to three minutes


def extension_directories() -> list[Path]:
    """Where torch keeps (or will keep) the compiled extension, one directory a Python and device version."""
    root = Path(os.environ.get("TORCH_EXTENSIONS_DIR", Path.home() / ".cache" / "torch_extensions"))
    return [path for path in (root / NAME, *sorted(root.glob(f"*/{NAME}"))) if path.is_dir()]


def _is_lock(path: Path) -> bool:
    """Whether torch made that file: empty, and no link."""
    return path.is_file() and not path.is_symlink() and path.stat().st_size == 0


def announce_build(say: Callable[[str], None]) -> None:
    """Before the optimizer is made: announce a compilation, remove a dead lock.

    Raises UserError without a C++ compiler.
    """
    directories = extension_directories()
    for lock in [path / "lock" for path in directories if _is_lock(path / "lock")]:
        age = time.time() - lock.stat().st_mtime
        if age > STALE_SECONDS:
            say(f"removing {lock}: left by a build that died {age / 60:.0f} minutes ago")
            lock.unlink(missing_ok=True)
        else:
            say(f"another process is compiling {NAME} (delete {lock} if there is none)")
    if any(list(path.glob("*.so")) for path in directories):
        return
    if shutil.which(os.environ.get("CXX", "c++")) is None:
        raise UserError(
            "CPU offload compiles DeepSpeedCPUAdam and there is no C++ compiler (c++): install g++, "
            "or use a JSON without offload_optimizer"
        )
    say("compiling DeepSpeedCPUAdam for CPU offload: about 75 seconds, once; cached for later runs")
