"""`minimind launch` runs the `deepspeed` script through this module, by ``python -m``: SCRIPT and its words follow.

What the script raises before it has started anything, beyond what commands/launcher/words.py has looked at, becomes one
line and exit code 2; its own exit codes stay. Standard error itself is left alone: it is the ranks', who draw a
progress line.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from minimind.base.display import complain


def main(words: list[str]) -> int:
    """Run the script ``words[0]`` with the rest as its arguments; the exit code."""
    sys.argv = words
    sys.path[0] = str(Path(words[0]).parent)  # as if Python had been given the script: nothing from here shadows it
    try:
        runpy.run_path(words[0], run_name="__main__")
    except SystemExit as ended:
        if isinstance(ended.code, str):
            complain(f"error: {ended.code}")
            return 1
        return ended.code or 0
    except Exception as error:
        said = " ".join(str(error).split()) or "no reason given"
        complain(f"error: the deepspeed launcher: {type(error).__name__}: {said}")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
