"""Do the tests catch faults? mutmut's mutations of the core, a random sample of them, each against the mirrored tests.

    python tools/mutants.py [--size 300] [--seed 0] [--workers 1] [--only WORD] [--list]

`make mutants` starts it in the background. mutmut's own command can't do this here: it runs everything in forks of one
process that has imported torch, has no sample, and leaves decorated functions (the training loop) alone. So its
operators are used as a library. A mutant is written into a copy of the checkout, and the tests that mirror its module
run there: tests/<folder>/test_<name>.py, else the test of its package, and those of ``MORE``. Failing tests, a broken
import or three times the usual time: caught.

The sample is a function of seed, size and sources, and moves little with them. Verdicts are kept by the contents of
module, mutation and tests, so a stopped run goes on where it was, and after new tests only those mutants run again
whose tests or module changed. Left out: annotations, docstrings, and texts that people read (a literal with a space in
it). State: $MINIMIND_CACHE/mutants, or --state.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import Queue

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tools.mutations import Mutant, mutants_of

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("minimind", "tests", "launch", "ds_configs", "configs", "benchmarks", "docs")
FILES = ("pyproject.toml", "setup.cfg", "constraints.txt", "Makefile", "README.md", "README.zh.md")

# What is mutated: by name where the folder may change, whole packages otherwise.
TRAINING = {
    "step",
    "schedule",
    "engine",
    "loop",
    "recorder",
    "directory",
    "writer",
    "snapshot",
    "layouts",
    "ladder",
    "trouble",
    "monitor",
    "rules",
}
DATA = {"batches", "packing", "store", "encoding", "conversations", "charsets"}
PACKAGES = {"deepspeed_config", "deepspeed", "inference"}

# Tests beside the mirrored ones, by the names of module and test.
MORE = {
    "loop": ("test_main", "test_cadence", "test_rescue"),
    "engine": ("test_layouts", "test_main"),
    "recorder": ("test_main",),
    "writer": ("test_main",),
    "snapshot": ("test_writer",),
    "directory": ("test_writer", "test_resume"),
    "trouble": ("test_rescue",),
    "ladder": ("test_rescue",),
    "monitor": ("test_main",),
    "rules": ("test_monitor",),
    "schedule": ("test_engine",),
    "encoding": ("test_prepare",),
    "charsets": ("test_sources", "test_prepare"),
    "conversations": ("test_prepare", "test_check"),
    "store": ("test_prepare",),
    "packing": ("test_batches",),
}
TIMES = 3.0  # a mutant may take so many times as long as the unchanged module, and ...
SPARE = 60.0  # ... so many seconds more


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant. ``key``: hash of module, mutation and tests."""

    key: str
    module: str
    line: int
    change: str
    outcome: str  # "caught", "timeout" or "survived"
    seconds: float


def is_core(module: Path) -> bool:
    """Whether the module (relative to the package) is one of those whose faults must be caught."""
    folders = module.parts[:-1]
    named = TRAINING if "training" in folders else DATA if "data" in folders else set()
    return module.stem != "__init__" and (module.stem in named or bool(PACKAGES & set(folders)))


def mirrored_tests(module: Path, tests: Path) -> list[Path]:
    """The test files for a module (relative to the package), the mirrored one first. Raises LookupError: none."""
    mirrored = tests / module.parent / f"test_{module.stem}.py"
    package = tests / module.parent.parent / f"test_{module.parent.name}.py"
    names = [f"test_{module.stem}", *MORE.get(module.stem, ())]
    elsewhere = [path for name in names for path in sorted(tests.rglob(f"{name}.py"))]
    found = dict.fromkeys(path for path in (mirrored, package, *elsewhere) if path.is_file())
    if not found:
        raise LookupError(f"{module}: no test mirrors it; add it to MORE in {Path(__file__).name}")
    return list(found)


def all_mutants(root: Path) -> list[Mutant]:
    """Every mutant of the core, in a fixed order."""
    package = root / "minimind"
    modules = sorted(path for path in package.rglob("*.py") if is_core(path.relative_to(package)))
    return [mutant for path in modules for mutant in mutants_of(path, path.relative_to(package))]


def sample(mutants: Sequence[Mutant], size: int, seed: int) -> list[Mutant]:
    """``size`` of them, the same for the same seed; an edit in one place leaves the choice elsewhere as it was."""
    seen: Counter[str] = Counter()
    ranked = []
    for place, mutant in enumerate(mutants):
        name = f"{mutant.module.name} {mutant.change}"  # neither folder nor line: both move
        seen[name] += 1
        ranked.append((hashlib.sha256(f"{seed} {name} {seen[name]}".encode()).digest(), place))
    return [mutants[place] for _, place in sorted(ranked)[:size]]


class Ledger:
    """The verdicts on the disk, one line each; the last one of a key counts."""

    def __init__(self, path: Path) -> None:
        self._path = path
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        self.verdicts = {verdict.key: verdict for verdict in (Verdict(**json.loads(line)) for line in lines)}

    def add(self, verdict: Verdict) -> None:
        self.verdicts[verdict.key] = verdict
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(verdict), ensure_ascii=False) + "\n")


def key_of(mutant: Mutant, root: Path) -> str:
    """Hash of everything that the verdict follows from, but for what module and tests import."""
    digest = hashlib.sha256(mutant.render().encode())
    for path in mirrored_tests(mutant.module, root / "tests"):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:24]


class Copy:
    """A checkout of its own to write mutants into."""

    def __init__(self, root: Path, directory: Path) -> None:
        self._root, self._directory = root, directory
        self._usual: dict[tuple[str, ...], float] = {}
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        for name in COPIED:
            if (root / name).is_dir():
                shutil.copytree(root / name, directory / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in FILES:
            if (root / name).is_file():
                shutil.copy(root / name, directory / name)

    def judge(self, mutant: Mutant, key: str) -> Verdict:
        """Run the tests with the mutant in place."""
        words = [str(path) for path in mirrored_tests(mutant.module, self._directory / "tests")]
        limit = TIMES * self._usual_seconds(words) + SPARE
        target = self._directory / "minimind" / mutant.module
        original = target.read_text(encoding="utf-8")
        target.write_text(mutant.render(), encoding="utf-8")
        try:
            code, seconds = self._pytest(words, limit)
        finally:
            target.write_text(original, encoding="utf-8")
        outcome = "timeout" if code is None else "survived" if code == 0 else "caught"
        return Verdict(key, str(mutant.module), mutant.line, mutant.change, outcome, round(seconds, 1))

    def _usual_seconds(self, words: list[str]) -> float:
        """How long the tests take with nothing changed. Raises RuntimeError if they fail by themselves."""
        if tuple(words) not in self._usual:
            code, seconds = self._pytest(words, None)
            if code != 0:
                raise RuntimeError(f"these tests fail without any mutation: {' '.join(words)}")
            self._usual[tuple(words)] = seconds
        return self._usual[tuple(words)]

    def _pytest(self, words: list[str], limit: float | None) -> tuple[int | None, float]:
        """pytest's exit code (None: it took longer than ``limit``) and its seconds."""
        began = time.monotonic()
        command = [sys.executable, "-B", "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *words]
        environment = {**os.environ, "PYTHONPATH": str(self._directory), "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(
            command,
            cwd=self._directory,
            env=environment,
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            code: int | None = process.wait(limit)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end_session(process)
        return code, time.monotonic() - began


def _end_session(process: subprocess.Popen[bytes]) -> None:
    """pytest and whatever ranks it has left."""
    with contextlib.suppress(ProcessLookupError):  # all of it has ended
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def run(
    chosen: Sequence[Mutant], ledger: Ledger, copies: Sequence[Copy], key: Callable[[Mutant], str]
) -> Iterator[Verdict]:
    """Judge those that have no verdict yet, one at a time in each copy."""
    free: Queue[Copy] = Queue()
    for copy in copies:
        free.put(copy)

    def judge(mutant: Mutant) -> Verdict:
        copy = free.get()
        try:
            return copy.judge(mutant, key(mutant))
        finally:
            free.put(copy)

    # By module, so that the first verdicts do not wait for every baseline.
    left = sorted((m for m in chosen if key(m) not in ledger.verdicts), key=lambda m: (str(m.module), m.line))
    with ThreadPoolExecutor(max(1, len(copies))) as pool:
        for verdict in pool.map(judge, left):
            ledger.add(verdict)
            yield verdict


def summary(verdicts: Sequence[Verdict], size: int) -> str:
    """Figures, and every survivor."""
    survivors = [verdict for verdict in verdicts if verdict.outcome == "survived"]
    caught = len(verdicts) - len(survivors)
    share = f"{caught / len(verdicts):.1%}" if verdicts else "n/a"
    lines = [f"{len(verdicts)} of {size} judged: {caught} caught ({share}), {len(survivors)} survived"]
    for verdict in sorted(survivors, key=lambda each: (each.module, each.line)):
        lines.append(f"  minimind/{verdict.module}:{verdict.line}: {verdict.change}")
    return "\n".join(lines)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=300, help="mutants in the sample")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1, help="each with a copy of the checkout")
    parser.add_argument("--only", default="", help="of the sample, the modules whose path contains this")
    parser.add_argument("--list", action="store_true", help="say what is known, judge nothing")
    parser.add_argument("--state", type=Path, help="default: mutants in the cache directory")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    from minimind.data.store.rooms import default_cache

    options = parse(arguments)
    state = options.state or default_cache() / "mutants"
    state.mkdir(parents=True, exist_ok=True)
    ledger = Ledger(state / "verdicts.jsonl")
    chosen = sample(all_mutants(ROOT), options.size, options.seed)
    chosen = [mutant for mutant in chosen if options.only in str(mutant.module)]
    keys = {id(mutant): key_of(mutant, ROOT) for mutant in chosen}
    if not options.list:
        copies = [Copy(ROOT, state / f"copy-{number}") for number in range(options.workers)]
        for verdict in run(chosen, ledger, copies, lambda mutant: keys[id(mutant)]):
            print(
                f"{verdict.outcome:8} {verdict.seconds:6.1f} s  {verdict.module}:{verdict.line}: {verdict.change}",
                flush=True,
            )
    known = [ledger.verdicts[key] for key in keys.values() if key in ledger.verdicts]
    print(summary(known, len(chosen)))


if __name__ == "__main__":
    main()
