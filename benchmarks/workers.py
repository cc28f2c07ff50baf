"""One process a side, alive for the whole benchmark, told by the parent when to train.

The parent sends a line (``steps 4``, ``evaluate`` or ``quit``) and waits for a line of JSON, so exactly one side
works at a time and no side's threads, caches or allocator meet another's. Rounds alternate: A B C A B C. What a side
prints goes to a log file; if it dies, the end of that log is in the error.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FIRST_SEED = 42


@dataclass(frozen=True)
class Job:
    """What one side does. ``settings``: RunConfig values for our trainer, as YAML text by name."""

    side: str
    preset: str
    tokenizer: str
    train: str
    held_out: str
    deepspeed_config: str = "ds_configs/bf16.json"
    precision: str = "bf16"
    micro_batch: int = 8  # packed rows; the others take documents of as many trained tokens
    row_length: int = 512
    total_steps: int = 1000
    threads: int = 2
    ranks: int = 1
    vocab_size: int = 6400
    seed: int = FIRST_SEED  # of initial weights and data order
    learning_rate: float | None = None
    documents: str = "documents"  # "rows": the others get full rows too, for memory at equal shapes
    compile: bool = False
    compile_mode: str = "default"  # torch.compile's, of the bare loop
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def peak_rate(self) -> float:
        """``learning_rate``, else that of the DeepSpeed JSON: the bare loop and Hugging Face's take ours."""
        if self.learning_rate is not None:
            return self.learning_rate
        return float(json.loads((ROOT / self.deepspeed_config).read_text())["optimizer"]["params"]["lr"])


@dataclass(frozen=True)
class Round:
    """One timed stretch: trained tokens, seconds by the clock, seconds of CPU of the side's process, losses."""

    tokens: int
    seconds: float
    cpu_seconds: float

    @property
    def speed(self) -> float:
        return self.tokens / self.seconds

    @property
    def cpu_speed(self) -> float:
        return self.tokens / self.cpu_seconds


# A parent that is a rank itself (a test) must not lend its port to the side.
RANK_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class WorkerError(RuntimeError):
    """A side's process ended before it answered."""


class Worker:
    """The parent's end of one side (all its ranks)."""

    def __init__(self, name: str, job: Job) -> None:
        self.name, self.job = name, job
        self._log = tempfile.NamedTemporaryFile("w+", prefix="benchmark-", suffix=".log", delete=False)  # noqa: SIM115
        self._ranks = [self._start(rank) for rank in range(job.ranks)]

    def _start(self, rank: int) -> subprocess.Popen[str]:
        inherited = {k: v for k, v in os.environ.items() if k not in RANK_VARIABLES}
        environment = {
            **inherited,
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": str(self.job.threads),
            "TOKENIZERS_PARALLELISM": "false",
            "WANDB_MODE": "disabled",
        }
        if self.job.ranks > 1:
            environment |= _rank_environment(rank, self.job.ranks)
        command = [sys.executable, str(ROOT / "benchmarks" / "side.py"), json.dumps(asdict(self.job))]
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            cwd=ROOT,
            env=environment,
        )

    def ask(self, command: str) -> dict[str, Any]:
        """Send a line to all ranks; rank 0's answer. Raises WorkerError with the end of the log."""
        try:
            for process in self._ranks:
                assert process.stdin is not None
                process.stdin.write(command + "\n")
                process.stdin.flush()
            answers = [self._answer(process) for process in self._ranks]
        except BrokenPipeError:
            raise self._error() from None
        return answers[0]

    def _answer(self, process: subprocess.Popen[str]) -> dict[str, Any]:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise self._error()
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _error(self) -> WorkerError:
        return WorkerError(f"{self.name}: the process ended\n{Path(self._log.name).read_text()[-3000:]}")

    def train(self, steps: int) -> Round:
        """Train ``steps`` optimizer steps."""
        answer = self.ask(f"steps {steps}")
        return Round(answer["tokens"], answer["seconds"], answer["cpu_seconds"])

    def kill(self) -> None:
        """End the processes now; who waits for an answer gets a WorkerError. ``close`` is still to follow."""
        for process in self._ranks:
            process.kill()

    def close(self) -> None:
        """End the processes; a second call does nothing."""
        while self._ranks:
            process = self._ranks.pop()
            process.kill()
            process.communicate()
        self._log.close()
        Path(self._log.name).unlink(missing_ok=True)


_PORTS: dict[int, str] = {}


def _rank_environment(rank: int, ranks: int) -> dict[str, str]:
    from minimind.base.launcher import free_port

    if rank == 0:
        _PORTS[0] = str(free_port())
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": _PORTS[0],
    }


class Commands:
    """The child's end: stdin and what used to be stdout (prints of libraries go to the log)."""

    def __init__(self, evaluate: Callable[[], dict[str, Any]] | None = None) -> None:
        self._out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        self.extra: Callable[[], dict[str, Any]] = dict  # joined to each round's answer
        self.evaluate = evaluate
        self._started = (0.0, 0.0)

    def next(self) -> int | None:
        """The number of steps to train now (the clock starts), or None: end. Answers ``evaluate`` by itself."""
        for line in sys.stdin:
            word, _, number = line.strip().partition(" ")
            if word == "steps":
                wait_for_device()
                self._started = (time.perf_counter(), _cpu_seconds())
                return int(number)
            if word == "quit":
                return None
            assert self.evaluate is not None and word == "evaluate"
            self._say(self.evaluate())
        return None

    def done(self, tokens: int) -> None:
        """The steps are over; the clock stops."""
        wait_for_device()
        seconds = time.perf_counter() - self._started[0]
        cpu = _cpu_seconds() - self._started[1]
        self._say({"tokens": tokens, "seconds": seconds, "cpu_seconds": cpu, **self.extra()})

    def _say(self, answer: Mapping[str, Any]) -> None:
        self._out.write(json.dumps(answer) + "\n")
        self._out.flush()


def wait_for_device() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def alternate(workers: Mapping[str, Worker], rounds: int, steps: int, warmup: int) -> dict[str, list[Round]]:
    """``rounds`` rounds of ``steps`` steps by each worker in turn, after ``warmup`` steps that don't count.

    A line of progress from the first step on, and after the warm-up how long it will take.
    """
    seconds = 0.0
    for name, worker in workers.items():
        for step in range(warmup):
            last = worker.train(1)
            say(f"warm-up: {name}, step {step + 1} of {warmup}, {last.seconds:.1f} s, {last.speed:,.0f} tokens/s")
        seconds += last.seconds * steps * rounds
    say(f"{rounds} rounds of {steps} steps a side: some {seconds / 60:.0f} min")
    measured: dict[str, list[Round]] = {name: [] for name in workers}
    for number in range(rounds):
        for name, worker in workers.items():
            measured[name].append(worker.train(steps))
            say(f"round {number + 1}: {name} {measured[name][-1].speed:,.0f} tokens/s")
    return measured


def say(line: str) -> None:
    """Progress, beside the results."""
    print(line, file=sys.stderr, flush=True)
