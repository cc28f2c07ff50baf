"""Do the tests catch faults? mutmut's mutations of the core, a random sample of them, each against the mirrored tests.

    python tools/mutants.py [--size 300] [--seed 0] [--workers 1] [--only WORD] [--added-only] [--list]

`make mutants` starts it in the background. mutmut's own command can't do this here: it runs everything in forks of one
process that has imported what it mutates, has no sample, and leaves decorated functions (the training loop) alone. So
its operators are used as a library. A mutant is written into a copy of the checkout, and the tests that mirror its
module run there (mutant_judge.py): tests/<folder>/test_<name>.py or, where it has none, the file that
tests/modules_without_a_test_file.py names, and those of ``MORE``. Failing tests, a broken import or three times the
usual time: caught.

The sample is a function of seed, size and sources, and moves little with them. Verdicts are kept by the contents of
module, mutation and tests, so a stopped run goes on where it was, and after new tests only those mutants run again
whose tests or module changed. docs/testing.md says what is left out. State: $MINIMIND_CACHE/mutants, or --state.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import Queue

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.modules_without_a_test_file import COVERED_BY
from tools.mutant_judge import Copy
from tools.mutations import Mutant, mutants_of

ROOT = Path(__file__).resolve().parents[1]

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

# Tests beside the mirrored ones, by module or by folder.
MORE = {
    "config/deepspeed": tuple(f"config/deepspeed/test_{name}.py" for name in ("tables", "words", "obsolete")),
    "config/deepspeed/optimizers": ("training/engine/test_measure.py",),
    "data/read/charsets": ("data/read/test_sources.py", "data/store/test_prepare.py"),
    "data/records/conversations": ("data/store/test_prepare.py", "data/check/test_check.py"),
    "data/records/encoding": ("data/store/test_prepare.py",),
    "data/store/packing": ("data/store/test_batches.py",),
    "data/store/store": ("data/store/test_prepare.py",),
    "inference/batching": ("inference/serving/test_openai_client.py",),
    "inference/serving": tuple(f"inference/serving/test_{name}.py" for name in ("app", "openai_client", "front")),
    "training/checkpoint/directory": ("training/checkpoint/test_writer.py", "training/run/test_resume.py"),
    "training/checkpoint/snapshot": ("training/checkpoint/test_writer.py",),
    "training/checkpoint/writer": ("training/run/test_main.py",),
    "training/engine/engine": ("training/checkpoint/test_layouts.py", "training/run/test_main.py"),
    "training/engine/schedule": ("training/engine/test_engine.py",),
    "training/health/ladder": ("training/run/test_rescue.py",),
    "training/health/monitor": ("training/run/test_main.py",),
    "training/health/trouble": ("training/run/test_rescue.py",),
    "training/record/recorder": ("training/run/test_main.py",),
    "training/run/loop": (
        "training/run/test_main.py",
        "training/run/test_cadence.py",
        "training/run/test_rescue.py",
    ),
}


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant. ``key``: hash of module, mutation and tests; ``mutant``: that without the tests."""

    key: str
    mutant: str
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
    """The test files for a module (relative to the package), relative to ``tests``, the mirrored one first.
    Raises LookupError: none."""
    name = module.with_suffix("").as_posix()
    covering = [path for path, modules in COVERED_BY.items() if name in modules.split()]
    names = [f"{module.parent.as_posix()}/test_{module.name}", *covering]
    names += [*MORE.get(name, ()), *MORE.get(module.parent.as_posix(), ())]
    found = [Path(each) for each in dict.fromkeys(names) if (tests / each).is_file()]
    if not found:
        raise LookupError(f"{module}: no test mirrors it (tests/modules_without_a_test_file.py)")
    return found


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
    """The verdicts on the disk, one line each; the last one of a key counts. ``added_only``: tests have been added
    since and none taken away, so what was caught stays caught."""

    def __init__(self, path: Path, added_only: bool = False) -> None:
        self._path = path
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        verdicts = [Verdict(**json.loads(line)) for line in lines]
        self._verdicts = {verdict.key: verdict for verdict in verdicts}
        self._caught = {each.mutant: each for each in verdicts if added_only and each.outcome != "survived"}

    def get(self, keys: Keys) -> Verdict | None:
        return self._verdicts.get(keys.whole) or self._caught.get(keys.mutant)

    def add(self, verdict: Verdict) -> None:
        self._verdicts[verdict.key] = verdict
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(verdict), ensure_ascii=False) + "\n")


@dataclass(frozen=True)
class Keys:
    """``whole``: hash of everything that the verdict follows from, but for what module and tests import."""

    whole: str
    mutant: str


def keys_of(mutant: Mutant, root: Path) -> Keys:
    digest = hashlib.sha256((root / "minimind" / mutant.module).read_bytes())
    digest.update(f"{mutant.number} {mutant.change}".encode())
    without_tests = digest.hexdigest()[:24]
    for path in mirrored_tests(mutant.module, root / "tests"):
        digest.update((root / "tests" / path).read_bytes())
    return Keys(digest.hexdigest()[:24], without_tests)


def run(
    chosen: Sequence[tuple[Mutant, Keys]], ledger: Ledger, copies: Sequence[Copy], root: Path = ROOT
) -> Iterator[Verdict]:
    """Judge those that have no verdict yet, one at a time in each copy of ``root``."""
    free: Queue[Copy] = Queue()
    for copy in copies:
        free.put(copy)

    def judge(pair: tuple[Mutant, Keys]) -> Verdict:
        mutant, keys = pair
        tests = [Path("tests") / path for path in mirrored_tests(mutant.module, root / "tests")]
        copy = free.get()
        try:
            outcome, seconds = copy.judge(mutant.module, mutant.render(), tests)
        finally:
            free.put(copy)
        place = (str(mutant.module), mutant.line, mutant.change)
        return Verdict(keys.whole, keys.mutant, *place, outcome, round(seconds, 1))

    # By module, so that the first verdicts do not wait for every baseline.
    left = [pair for pair in chosen if ledger.get(pair[1]) is None]
    left.sort(key=lambda pair: (str(pair[0].module), pair[0].line))
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
    parser.add_argument(
        "--added-only", action="store_true", help="tests were only added since: what was caught is not judged again"
    )
    parser.add_argument("--list", action="store_true", help="say what is known, judge nothing")
    parser.add_argument("--state", type=Path, help="default: mutants in the cache directory")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    from minimind.data.store.rooms import default_cache

    options = parse(arguments)
    state = options.state or default_cache() / "mutants"
    state.mkdir(parents=True, exist_ok=True)
    ledger = Ledger(state / "verdicts.jsonl", options.added_only)
    mutants = sample(all_mutants(ROOT), options.size, options.seed)
    chosen = [(mutant, keys_of(mutant, ROOT)) for mutant in mutants if options.only in str(mutant.module)]
    if not options.list:
        copies = [Copy(ROOT, state / f"copy-{number}") for number in range(options.workers)]
        for verdict in run(chosen, ledger, copies):
            print(
                f"{verdict.outcome:8} {verdict.seconds:6.1f} s  {verdict.module}:{verdict.line}: {verdict.change}",
                flush=True,
            )
        for copy in copies:
            copy.close()
    known = [verdict for verdict in (ledger.get(keys) for _, keys in chosen) if verdict]
    print(summary(known, len(chosen)))


if __name__ == "__main__":
    main()
