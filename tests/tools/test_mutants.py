"""Which modules are mutated, by which tests they are judged, the sample, and what becomes of a fault."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.waiting import wait_for
from tools.mutant_judge import Copy
from tools.mutants import Ledger, Verdict, is_core, keys_of, mirrored_tests, run, sample, summary
from tools.mutations import Mutant, mutants_of

CODE = '''
def wrapped(work):
    return work


@wrapped
def double(x: int | None) -> int:
    """Twice ``x`` and no more."""
    message = "a text that people read"
    return x * 2
'''

MODULE, TESTS = "minimind/training/engine/step.py", "tests/training/engine/test_step.py"
DOUBLE = "def double(x):\n    return x * 2\n"
TWO_TESTS = """
from minimind.training.engine.step import double

def test_it():
    assert double(3) == 6

def test_nothing():
    assert double(0) == 0
"""


def is_running(pid: int) -> bool:
    """A zombie has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def mutant(code: str, line: int = 1) -> Mutant:
    return Mutant(Path("training/engine/step.py"), line, f"old -> {code}", lambda: code)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A package of one module, whose test knows only what doubles 0 and 3."""
    root = tmp_path / "checkout"
    for name, text in ((MODULE, DOUBLE), (TESTS, TWO_TESTS)):
        (root / name).parent.mkdir(parents=True)
        (root / name).write_text(text)
    (root / "pyproject.toml").write_text("[tool.pytest.ini_options]\npythonpath = ['.']\n")
    return root


@pytest.mark.parametrize(
    ("module", "core"),
    [
        ("training/loop.py", True),
        ("training/run/loop.py", True),  # wherever the package keeps it
        ("training/deepspeed_config/zero.py", True),
        ("config/deepspeed/zero.py", True),
        ("inference/server.py", True),
        ("data/store/packing.py", True),
        ("training/console.py", False),
        ("data/demo.py", False),
        ("inference/__init__.py", False),
        ("loss.py", False),
    ],
)
def test_the_core(module: str, core: bool) -> None:
    assert is_core(Path(module)) == core


def test_tests_are_found_by_rule(tmp_path: Path) -> None:
    for name in ("training/engine/test_step.py", "config/test_deepspeed.py", "config/deepspeed/test_words.py",
                 "training/run/test_loop.py", "training/run/test_main.py"):  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()

    def found(module: str) -> list[str]:
        return [path.as_posix() for path in mirrored_tests(Path(module), tmp_path)]

    assert found("training/engine/step.py") == ["training/engine/test_step.py"]
    assert found("config/deepspeed/zero.py") == ["config/test_deepspeed.py", "config/deepspeed/test_words.py"]
    assert found("training/run/loop.py") == ["training/run/test_loop.py", "training/run/test_main.py"]
    with pytest.raises(LookupError, match=r"snapshot\.py: no test mirrors it"):
        found("training/checkpoint/snapshot.py")


def test_a_sample_is_a_function_of_its_seed() -> None:
    mutants = [mutant("", line) for line in range(50)]
    assert [m.line for m in sample(mutants, 9, 1)] == [m.line for m in sample(mutants, 9, 1)]
    assert [m.line for m in sample(mutants, 9, 1)] != [m.line for m in sample(mutants, 9, 2)]
    assert len({m.line for m in sample(mutants, 99, 1)}) == 50
    others = [Mutant(Path("training/loop.py"), line, f"{line} -> {line}", str) for line in range(50)]
    before = {m.change for m in sample(others, 25, 1)}
    after = {m.change for m in sample([*others[3:], mutant("")], 25, 1)}  # three gone and a new one
    assert len(before & after) >= 21


def test_a_fault_that_the_tests_see_is_caught_and_the_verdicts_are_kept(checkout: Path, tmp_path: Path) -> None:
    mutants = [
        mutant("def double(x):\n    return x * 3\n"),
        mutant("def double(x):\n    return x + x\n"),
        mutant("def double(x)\n"),
    ]
    chosen = [(each, keys_of(each, checkout)) for each in mutants]
    path = tmp_path / "verdicts.jsonl"
    copy = Copy(checkout, tmp_path / "copy", heavy=())
    verdicts = list(run(chosen, Ledger(path), [copy], checkout))
    copy.close()
    assert [verdict.outcome for verdict in verdicts] == ["caught", "survived", "caught"]
    assert (checkout / MODULE).read_text() == (tmp_path / "copy" / MODULE).read_text() == DOUBLE
    assert list(run(chosen, Ledger(path), [], checkout)) == []
    (checkout / TESTS).write_text("new tests")
    renewed = [keys_of(each, checkout) for each in mutants]
    assert [Ledger(path).get(keys) for keys in renewed] == [None] * 3
    kept = [Ledger(path, added_only=True).get(keys) for keys in renewed]
    assert [each and each.outcome for each in kept] == ["caught", None, "caught"]


def test_what_goes_on_for_ever_is_ended_with_its_processes(checkout: Path, tmp_path: Path) -> None:
    copy, pids = Copy(checkout, tmp_path / "copy", heavy=()), tmp_path / "pids"
    waits = f"""
import os, pathlib, subprocess, time
other = subprocess.Popen(["sleep", "1000000"])
pathlib.Path({str(pids)!r}).write_text(f"{{os.getpid()}} {{other.pid}}")
time.sleep(1e6)
"""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tools.mutant_judge.SPARE", 3.0)
        assert copy.judge(Path("training/engine/step.py"), waits, [Path(TESTS)])[0] == "timeout"
    copy.close()
    if pids.exists():  # else it had not come so far
        wait_for(lambda: not any(is_running(int(pid)) for pid in pids.read_text().split()))


def test_what_goes_round_for_ever_is_ended_by_the_processors_seconds(checkout: Path, tmp_path: Path) -> None:
    copy = Copy(checkout, tmp_path / "copy", heavy=())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tools.mutant_judge.SPARE", 1e6)  # which the clock waits for
        patch.setattr("tools.mutant_judge.MOST_CPU", 1)
        round_and_round = "while True: pass"
        assert copy.judge(Path("training/engine/step.py"), round_and_round, [Path(TESTS)])[0] == "timeout"
    copy.close()


def test_the_same_length_in_the_same_second_is_another_module_all_the_same(checkout: Path, tmp_path: Path) -> None:
    """Python takes a module's compiled form by time and length, unless it is told to look at the contents."""
    copy = Copy(checkout, tmp_path / "copy", heavy=())
    verdicts = [
        copy.judge(Path("training/engine/step.py"), DOUBLE.replace("2", digit), [Path(TESTS)])[0] for digit in "2325"
    ]
    copy.close()
    assert verdicts == ["survived", "caught", "survived", "caught"]


def test_tests_that_fail_by_themselves_judge_nothing(checkout: Path, tmp_path: Path) -> None:
    step = Path("training/engine/step.py")
    (checkout / TESTS).write_text(TWO_TESTS + "\ndef test_on_a_bad_day():\n    assert False\n")
    copy = Copy(checkout, tmp_path / "copy", heavy=())
    assert copy.judge(step, DOUBLE, [Path(TESTS)])[0] == "survived"
    copy.close()
    (checkout / TESTS).write_text("def test_it():\n    assert False\n")
    copy = Copy(checkout, tmp_path / "copy", heavy=())
    with pytest.raises(RuntimeError, match="fail without any mutation"):
        copy.judge(step, "", [Path(TESTS)])
    copy.close()


def test_the_summary_counts_and_names_survivors() -> None:
    verdicts = [Verdict(str(n), str(n), "a.py", n, "x -> y", "caught", 1.0) for n in range(3)]
    text = summary([*verdicts, Verdict("9", "9", "b.py", 7, "1 -> 2", "survived", 1.0)], 300)
    assert text.splitlines() == [
        "4 of 300 judged: 3 caught (75.0%), 1 survived",
        "  minimind/b.py:7: 1 -> 2",
    ]


def test_mutants_leave_annotations_and_prose_alone_and_take_decorated_functions(tmp_path: Path) -> None:
    pytest.importorskip("mutmut", reason="the extra `mutants`")
    path = tmp_path / "module.py"
    path.write_text(CODE)
    found = list(mutants_of(path, Path("module.py")))
    codes = [each.render() for each in found]
    assert any("return x / 2" in code for code in codes) and any("return x * 3" in code for code in codes)
    assert all("int | None) -> int:" in code and "Twice ``x``" in code for code in codes)
    assert all('"a text that people read"' in code or "message = None" in code for code in codes)
    assert {each.line for each in found} <= {8, 9, 10, 11} and all("->" in each.change for each in found)
