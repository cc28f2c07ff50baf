"""kill -9 at a random event, --resume, until the run is over: it must equal the run that nobody killed.

Faults are drawn from a seed, so a failure repeats: ``FAULT_SEED=7 pytest tests/faults -k bf16``. In the suite some 35
kills; the soak's 200 are ``pytest -m soak tests/faults``.
"""

from __future__ import annotations

import json
import os
import random
import signal
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from tests.faults.comparison import assert_same_run
from tests.faults.fork_server import ForkServer
from tests.faults.injection import POINTS
from tests.support import DS_CONFIGS

SEED = os.environ.get("FAULT_SEED", "0")
STEPS = 10
MODEL = (
    "model={vocab_size: 400, hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 2, "
    "num_key_value_heads: 1, head_dim: 8, intermediate_size: 32}"
)
SETTINGS = [
    MODEL,
    "max_seq_length=48",
    "logging_steps=3",
    "save_steps=2",
    "eval_steps=3",
    "save_total_limit=2",
    "per_device_train_batch_size=4",
]
# name -> (shipped JSON, ranks, ZeRO stage or None: as shipped)
CONFIGS = {
    "fp32": ("fp32.json", 1, None),
    "bf16": ("bf16.json", 1, 1),
    "fp16": ("fp16.json", 1, None),
    "bf16-zero2": ("bf16_zero2.json", 1, None),
    "fp16-zero2": ("fp16_zero2.json", 1, None),
    "bf16-zero2-offload": ("bf16_zero2_offload.json", 1, None),
    "bf16-zero2-two-ranks": ("bf16_zero2.json", 2, None),
    "bf16-zero3-two-ranks": ("bf16_zero3.json", 2, None),
}
KILLS_A_RUN = 5
ON_EVERY_RANK = {"step", "evaluation", "file", "load", "clock"}
AT_THE_END = {"export:before", "export:after"}


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    with ForkServer() as server:
        yield server


def fault_json(name: str, directory: Path) -> Path:
    """The shipped JSON, with a loss scale that overflows at the start and grows soon after."""
    shipped, _, stage = CONFIGS[name]
    config = json.loads((DS_CONFIGS / shipped).read_text())
    if stage is not None:
        config.setdefault("zero_optimization", {})["stage"] = stage
    if "fp16" in config:
        config["fp16"] |= {"initial_scale_power": 22, "loss_scale_window": 3, "hysteresis": 1}
    path = directory / f"{name}.json"
    path.write_text(json.dumps(config))
    return path


def words(name: str, files: dict[str, Path], out: Path) -> list[str]:
    options = {
        "--deepspeed_config": fault_json(name, out.parent),
        "--train-file": files["pretrain"],
        "--eval-file": files["pretrain"],
        "--tokenizer": files["tokenizer"],
        "--output-dir": out,
    }
    given = [str(word) for option in options.items() for word in option]
    return [*given, "--emulate-fp16", "--max-steps", str(STEPS), *(w for s in SETTINGS for w in ("--set", s))]


def deck(rng: random.Random, ranks: int) -> Iterator[dict[str, Any]]:
    """Faults without end; each kind once before any comes again, the run's last moments at the end of a round."""
    while True:
        kinds = sorted(rng.sample(list(POINTS), len(POINTS)), key=lambda point: point in AT_THE_END)
        for point in kinds:
            rank = rng.randrange(ranks) if point.split(":")[0] in ON_EVERY_RANK else 0
            yield {"point": point, "count": rng.randint(1, POINTS[point]), "rank": rank}


RESUMABLE = {"point": "publish:after", "count": 1, "rank": 0}  # a kill that leaves a checkpoint behind


@dataclass
class Harness:
    """One configuration's runs: the uninterrupted one and those that are killed."""

    server: ForkServer
    name: str
    files: dict[str, Path]
    directory: Path
    killed: Counter[str] = field(default_factory=Counter)

    @property
    def ranks(self) -> int:
        return CONFIGS[self.name][1]

    def attempt(self, out: Path, fault: dict[str, Any] | None = None) -> bool:
        """Start, or resume what an earlier attempt left; True when the run is over."""
        resume = ["--resume"] if out.exists() else []
        codes, text = self.server.run([*words(self.name, self.files, out), *resume], out, fault, self.ranks)
        if fault and -signal.SIGKILL in codes:
            self.killed[fault["point"]] += 1
            # The other rank neither goes on, nor waits for ever, nor says that all is well.
            assert 0 not in codes and "Timeout (" not in text, (fault, codes, text)
            return False
        if resume and set(codes) == {2}:
            assert "no complete checkpoint to resume from" in text, text
            assert not list((out / "checkpoints").glob("step-*"))
            out.rename(out.with_name(f"{out.name}-before-{len(list(out.parent.iterdir()))}"))
            return self.attempt(out, fault)
        assert set(codes) == {0}, (fault, codes, text)
        return True

    def killed_run(self, out: Path, faults: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """A run under ``faults``, one an attempt, and then to its end; those that were not reached."""
        waiting = list(faults)
        while waiting:
            over = self.attempt(out, waiting[0])
            if over:
                return waiting
            waiting.pop(0)
        assert self.attempt(out)
        return []

    def kill(self, faults: list[dict[str, Any]]) -> None:
        """Runs until every one of ``faults`` has killed; each run must equal the uninterrupted one."""
        whole = self.directory / "whole"
        if not whole.exists():
            assert self.attempt(whole)
        runs = 0
        while faults:
            runs += 1
            assert runs <= len(POINTS) + sum(self.killed.values()), f"never reached: {faults}"
            out = self.directory / f"run-{runs}"
            left = self.killed_run(out, chunk := faults[:KILLS_A_RUN])
            assert_same_run(out, whole, STEPS)
            # One that was not reached comes again, earlier, in a run of its own.
            left = [{**fault, "count": max(1, fault["count"] // 2)} for fault in left]
            # With none reached the first one waits for something that only a resume does: kill once before it.
            first = [RESUMABLE] if len(left) == len(chunk) else []
            faults = [*first, *left, *faults[KILLS_A_RUN:]]


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_kill_and_resume_equals_uninterrupted(
    name: str, server: ForkServer, files: dict[str, Path], tmp_path: Path
) -> None:
    index, ranks = list(CONFIGS).index(name), CONFIGS[name][1]
    everything = deck(random.Random(SEED), ranks)  # the same deck for all: together they go through it
    faults = list(islice(everything, index * KILLS_A_RUN, (index + 1) * KILLS_A_RUN))
    harness = Harness(server, name, files, tmp_path)
    harness.kill(faults)
    assert sum(harness.killed.values()) >= KILLS_A_RUN


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_two_hundred_kills(server: ForkServer, files: dict[str, Path], tmp_path: Path) -> None:
    killed: Counter[str] = Counter()
    rng = random.Random(f"soak {SEED}")
    for name, (_, ranks, _) in CONFIGS.items():
        (tmp_path / name).mkdir()
        harness = Harness(server, name, files, tmp_path / name)
        harness.kill(list(islice(deck(rng, ranks), -(-200 // len(CONFIGS)))))
        killed += harness.killed
    print(f"seed {SEED}: {sum(killed.values())} kills, by event {dict(sorted(killed.items()))}")
    assert sum(killed.values()) >= 200 and killed.keys() == POINTS.keys()
