"""A process that has imported the trainer and forks a rank for each attempt: 0.5 s a start instead of 8 s.

Forking is safe here because the server itself has one thread and never touches a process group, a tensor operation
or a thread pool: only its children do.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from minimind.base.launcher import free_port
from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[2]
LATE = ("torch._dynamo", "deepspeed.runtime.zero.muon.muon_optimizer", "deepspeed.ops.adam")


class ForkServer:
    """The parent's side; a context manager."""

    def __enter__(self) -> ForkServer:
        environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "LOCAL_RANK", "WORLD_SIZE")}
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from tests.faults.fork_server import serve; serve()"],
            cwd=ROOT,
            env={**environment, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(self, *exception: object) -> None:
        assert self._process.stdin
        self._process.stdin.close()  # serve() ends at the end of its input
        self._process.wait(timeout=PATIENCE)

    def run(
        self, words: Sequence[str], out: Path, fault: dict[str, Any] | None, ranks: int = 1
    ) -> tuple[list[int], str]:
        """One attempt at ``launch/pretrain.py WORDS``: exit codes by rank (negative: a signal) and the output.

        ``fault``: ``point`` and ``count`` of an `injection.Fuse` and the ``rank`` that it goes to. What the steps
        trained on is added to OUT.samples.jsonl.
        """
        assert self._process.stdin and self._process.stdout
        log, samples = (out.with_name(f"{out.name}.{end}") for end in ("log", "samples.jsonl"))
        log.unlink(missing_ok=True)
        order = {"words": list(words), "log": str(log), "samples": str(samples), "fault": fault}
        order |= {"ranks": ranks, "port": free_port()}
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        codes: list[int] = json.loads(self._process.stdout.readline())
        return codes, log.read_text(errors="replace")


def serve() -> None:
    """The server's side: one order a line on stdin, one list of exit codes a line on stdout."""
    # All that a run imports, and what DeepSpeed and torch.optim import when the first engine is built.
    for name in ("minimind.training.run.main", "minimind.interop.huggingface", *LATE):
        importlib.import_module(name)

    for line in sys.stdin:
        order = json.loads(line)
        children = [_fork(rank, order) for rank in range(order["ranks"])]
        statuses = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
        print(json.dumps(statuses), flush=True)


def _fork(rank: int, order: dict[str, Any]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        code = _run(rank, order)
    except BaseException:  # the child must not go on in the server's loop
        traceback.print_exc()
    finally:
        os._exit(code)


def _run(rank: int, order: dict[str, Any]) -> int:
    """As ``launch/pretrain.py`` would, with output to the log and a fault on the way."""
    from minimind.training.run.main import main
    from tests.faults.injection import Fuse, install, record_samples

    file = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    faulthandler.dump_traceback_later(PATIENCE, exit=True)  # a hang: code 1 and its place
    if order["ranks"] > 1:
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(order["ranks"]))
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(order["port"]))
    if rank == 0:
        record_samples(Path(order["samples"]))
    fault = order["fault"]
    if fault is not None and fault["rank"] == rank:
        install(Fuse(fault["point"], fault["count"]))
    try:
        main("pretrain", order["words"])
    except SystemExit as ended:
        return int(ended.code or 0)
    except Exception:
        traceback.print_exc()
        return 1
