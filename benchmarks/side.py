"""A side's process: build what the job says, then train when told (see workers.py)."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.workers import Commands, Job


def main() -> None:
    job = Job(**json.loads(sys.argv[1]))
    commands = Commands()
    import torch

    torch.set_num_threads(job.threads)
    _sides()[job.side](job, commands)


def _sides() -> dict[str, Callable[[Job, Commands], None]]:
    from benchmarks import side_bare, side_huggingface, side_minimind, side_ours

    return {
        "ours": side_ours.serve,
        "bare": side_bare.serve,
        "hf": side_huggingface.serve,
        "hf_deepspeed": side_huggingface.serve,
        "minimind": side_minimind.serve,
    }


if __name__ == "__main__":
    main()
