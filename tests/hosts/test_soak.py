"""Random faults over two hosts, the same command again each time: the run ends bit for bit where nobody disturbed it.

Faults are drawn from a seed: ``FAULT_SEED=7 FAULTS=20 pytest -m soak tests/hosts``.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.faults.comparison import CURVE, assert_same_state, records, state
from tests.hosts.bed import Bed, Missing
from tests.hosts.fleet import Fleet, Rank, wait_for_steps
from tests.hosts.test_faults import words
from tests.waiting import PATIENCE, wait_for

SEED, FAULTS = os.environ.get("FAULT_SEED", "0"), int(os.environ.get("FAULTS", "66"))
STEPS = 300
OPTIONS = ["--set", "save_steps=10", "--set", "heartbeat={limit: 10, start_limit: 50}", "--max-steps", str(STEPS)]
KINDS = (
    "kill of a rank",
    "kill of launch.py",
    "kill of a host's everything",
    "cut link",
    "cable pulled",
    "cut and mended link",
    "full disk on one host",
    "slow disk on one host",
    "SIGTERM on one host",
    "frozen rank",
)


@dataclass
class Soak:
    """Two hosts, and a run that is started on them again and again."""

    directory: Path
    files: dict[str, Path]
    rng: random.Random
    counts: Counter[str] = field(default_factory=Counter)
    stack: ExitStack = field(default_factory=ExitStack)

    def renew(self) -> None:
        """New hosts, the disk kept."""
        self.stack.close()
        number = len(list(self.directory.glob("bed-*")))
        bed = self.stack.enter_context(Bed(self.directory / f"bed-{number}"))
        self.fleet = self.stack.enter_context(Fleet(bed))

    def command(self, run: Path) -> list[str]:
        """What the job script starts, each time."""
        return [*words(self.files, run, *OPTIONS), "--resume", "auto"]

    def uninterrupted(self) -> Path:
        run = self.directory / "whole"
        self.fleet.run(self.command(run))
        return run

    def disturb(self, run: Path, kind: str) -> bool:
        """One start of the run, with a fault; whether it was over before. Counts those that met a living run."""
        which = self.rng.randrange(2)
        if kind == "kill of launch.py":
            return self._kill_launcher(run, which)
        before = last_step(run)
        variables = {"MINIMIND_TEST_DISK": kind.split()[0]} if "disk" in kind else {}
        ranks = self._start(run, which, variables)
        if not variables:
            wait_for_steps_or_end(run, ranks, before + self.rng.randint(1, 40))
            self._strike(kind, ranks[which])
        codes = self._codes(ranks, kind)
        if kind == "kill of a host's everything":
            self.renew()
        self.fleet.bed.mend()
        texts = [rank.text for rank in ranks]
        assert not any("Traceback" in text for text in texts), texts
        over = codes == [0, 0] and last_step(run) == STEPS
        expected = kind in ("cut and mended link", "full disk on one host", "slow disk on one host")
        self.counts[kind] += expected or not over
        if not over and kind != "SIGTERM on one host":
            assert any(("error: " in text and "go on" in text) or "start again " in text for text in texts), texts
        return over

    def _start(self, run: Path, which: int, variables: dict[str, str]) -> list[Rank]:
        return self.fleet.start(self.command(run), only={which: variables})

    def _strike(self, kind: str, rank: Rank) -> None:
        bed, number = self.fleet.bed, self.fleet.servers.index(rank.server)
        {
            "kill of a rank": lambda: rank.signal(signal.SIGKILL),
            "kill of a host's everything": bed.hosts[number].kill,
            "cut link": bed.cut,
            "cable pulled": bed.unplug,
            "cut and mended link": lambda: (bed.cut(), bed.mend()),
            "SIGTERM on one host": rank.signal,
            "frozen rank": lambda: rank.signal(signal.SIGSTOP),
        }[kind]()

    def _codes(self, ranks: list[Rank], kind: str) -> list[int]:
        """The exit codes; of a host that is gone there is none."""
        if kind != "kill of a host's everything":
            return [rank.wait() for rank in ranks]
        return [code for rank in ranks if (code := rank.wait_or_gone()) is not None]

    def _kill_launcher(self, run: Path, which: int) -> bool:
        """SIGKILL to launch.py of one host: its rank stops as asked, and both save."""
        bed, before = self.fleet.bed, last_step(run)
        port, processes = str(self.rng.randrange(20000, 32000)), []
        for number, host in enumerate(bed.hosts):
            flags = ["--hostfile", str(bed.hostfile()), "--no_ssh", "--node_rank", str(number)]
            flags += ["--master_addr", bed.hosts[0].name, "--master_port", port]
            launcher = [sys.executable, str(Path(sys.executable).parent / "deepspeed"), *flags]
            log = (self.directory / f"launcher-{self.counts.total()}-{number}.log").open("w")
            processes.append(host.start([*launcher, "launch/pretrain.py", *self.command(run)], log))
        wait_for(lambda: last_step(run) > before or processes[0].poll() is not None)
        victims = bed.hosts[which].processes("deepspeed.launcher.launch")
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        for process in processes:
            process.wait(PATIENCE)
        wait_for(lambda: not any(host.processes("launch/pretrain.py") for host in bed.hosts))
        over = last_step(run) == STEPS
        self.counts["kill of launch.py"] += bool(victims) and not over
        return over


def weights(run: Path) -> bytes:
    """The tensors of final/, in the file's order: of its header the library leaves the order of what was made by whom
    to chance."""
    content = (run / "final" / "model.safetensors").read_bytes()
    return content[8 + int.from_bytes(content[:8], "little") :]


def last_step(run: Path) -> int:
    steps = records(run, "train", ("step",)) if whole_lines(run) else []
    return steps[-1][0] if steps else 0


def whole_lines(run: Path) -> bool:
    """Whether there is a metrics.jsonl that can be read: a killed run's last line may be a part of one."""
    path = run / "metrics.jsonl"
    return path.exists() and path.read_bytes().endswith(b"\n")


def wait_for_steps_or_end(run: Path, ranks: list[Rank], step: int) -> None:
    wait_for_steps(run, ranks, min(step, STEPS), saved=False)


@pytest.fixture
def soak(tmp_path: Path, files: dict[str, Path]) -> Iterator[Soak]:
    soak = Soak(tmp_path, files, random.Random(f"hosts {SEED}"))
    try:
        soak.renew()
        yield soak
    except Missing as missing:
        pytest.skip(str(missing))
    finally:
        soak.stack.close()


@pytest.mark.soak
@pytest.mark.timeout(6 * 3600)
def test_random_faults_over_two_hosts(soak: Soak) -> None:
    whole, number = soak.uninterrupted(), 0
    kinds: list[str] = []
    while soak.counts.total() < FAULTS:
        run, number, over = soak.directory / f"run-{number}", number + 1, False
        while not over:
            kinds = kinds or soak.rng.sample(KINDS, len(KINDS))
            over = soak.disturb(run, kinds.pop()) if soak.counts.total() < FAULTS else True
            print(f"seed {SEED}: {soak.counts.total()} faults, {dict(sorted(soak.counts.items()))}", flush=True)
        if last_step(run) < STEPS:
            soak.fleet.run(soak.command(run))
        assert records(run, "train", CURVE) == records(whole, "train", CURVE)
        last = (whole / "latest").read_text().strip()
        assert (run / "latest").read_text().strip() == last
        assert_same_state(state(run / last), state(whole / last), last)
        assert weights(run) == weights(whole)
    assert soak.counts.keys() == set(KINDS)
