"""A side's process: build what the job says, then train when told (see workers.py)."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.workers import Commands, Job

MODULES = {
    "ours": "side_ours",
    "bare": "side_bare",
    "hf": "side_huggingface",
    "hf_deepspeed": "side_huggingface",
    "minimind": "side_minimind",
}


def main() -> None:
    job = Job(**json.loads(sys.argv[1]))
    commands = Commands()
    import torch

    torch.set_num_threads(job.threads)
    _serve(job.side)(job, commands)


def _serve(side: str) -> Callable[[Job, Commands], None]:
    """The side's own module only: the bare loop's process should not even hold DeepSpeed."""
    serve: Callable[[Job, Commands], None] = importlib.import_module(f"benchmarks.{MODULES[side]}").serve
    return serve


if __name__ == "__main__":
    main()
