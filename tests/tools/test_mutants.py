"""Which modules are mutated, by which tests they are judged, the sample, and what becomes of a fault."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.mutants import Copy, Ledger, Verdict, is_core, key_of, mirrored_tests, run, sample, summary
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


def mutant(code: str, line: int = 1) -> Mutant:
    return Mutant(Path("training/step.py"), line, "old -> new", lambda: code)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A package of one module, whose test knows only what doubles 0 and 3."""
    root = tmp_path / "checkout"
    (root / "minimind" / "training").mkdir(parents=True)
    (root / "tests" / "training").mkdir(parents=True)
    (root / "minimind" / "training" / "step.py").write_text("def double(x):\n    return x * 2\n")
    (root / "tests" / "training" / "test_step.py").write_text(
        "from minimind.training.step import double\n\ndef test_it():\n    assert double(3) == 6\n"
    )
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
    for name in ("training/test_step.py", "training/test_deepspeed_config.py", "training/run/test_loop.py",
                 "training/run/test_main.py"):  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()

    def found(module: str) -> list[str]:
        return [path.relative_to(tmp_path).as_posix() for path in mirrored_tests(Path(module), tmp_path)]

    assert found("training/step.py") == ["training/test_step.py"]
    assert found("training/deepspeed_config/zero.py") == ["training/test_deepspeed_config.py"]
    assert found("training/run/loop.py") == ["training/run/test_loop.py", "training/run/test_main.py"]
    assert found("training/engine/step.py") == ["training/test_step.py"]  # one of the two has not moved yet
    with pytest.raises(LookupError, match=r"snapshot\.py: no test mirrors it"):
        found("training/snapshot.py")


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
        mutant("def double(x):\n    while x: pass\n"),
        mutant("def double(x)\n"),
    ]
    ledger = Ledger(tmp_path / "verdicts.jsonl")
    copy = Copy(checkout, tmp_path / "copy")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tools.mutants.SPARE", 10.0)
        verdicts = list(run(mutants, ledger, [copy], lambda m: key_of(m, checkout)))
    assert sorted(verdict.outcome for verdict in verdicts) == ["caught", "caught", "survived", "timeout"]
    assert (checkout / "minimind/training/step.py").read_text() == "def double(x):\n    return x * 2\n"
    again = Ledger(tmp_path / "verdicts.jsonl")
    assert list(run(mutants, again, [], lambda m: key_of(m, checkout))) == []
    (checkout / "tests/training/test_step.py").write_text("new tests")
    assert not {key_of(m, checkout) for m in mutants} & set(again.verdicts)


def test_tests_that_fail_by_themselves_judge_nothing(checkout: Path, tmp_path: Path) -> None:
    (checkout / "tests/training/test_step.py").write_text("def test_it():\n    assert False\n")
    with pytest.raises(RuntimeError, match="fail without any mutation"):
        Copy(checkout, tmp_path / "copy").judge(mutant(""), "key")


def test_the_summary_counts_and_names_survivors() -> None:
    verdicts = [Verdict(str(n), "a.py", n, "x -> y", "caught", 1.0) for n in range(3)]
    text = summary([*verdicts, Verdict("9", "b.py", 7, "1 -> 2", "survived", 1.0)], 300)
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
