"""The import rule of docs/architecture.md, over the syntax trees: who may know whom, and nothing runs in circles."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.modules_without_a_test_file import COVERED_BY

ROOT = Path(__file__).parents[1]
FLOORS = (
    {"base"},
    {"config"},
    {"text", "model"},
    {"data"},
    {"corpus"},
    {"interop"},
    {"inference"},
    {"training"},
    {"commands"},
    {"cli"},
)
TRAINING = ({"values"}, {"process", "checkpoint", "health"}, {"engine"}, {"record"}, {"run"}, {"sweep"})
MOST_POSITIONAL = 5
FOREIGN = {"_linear_pointwise", "redirect_request", "adam_update"}  # of torch, urllib and DeepSpeed: their signatures
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in (ROOT / "minimind").rglob("*.py")
}


def imported(path: Path) -> Iterator[str]:
    """Our modules that a file imports, anywhere in it, for types too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in MODULES else node.module for name in names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


IMPORTS = {name: {i for i in imported(path) if i.split(".")[0] == "minimind"} for name, path in MODULES.items()}


def floor(module: str, depth: int, floors: tuple[set[str], ...]) -> int | None:
    parts = module.split(".")
    return next((n for n, names in enumerate(floors) if len(parts) > depth and parts[depth] in names), None)


@pytest.mark.parametrize(("depth", "floors", "within"), [(1, FLOORS, ""), (2, TRAINING, "minimind.training.")])
def test_no_module_imports_upwards(depth: int, floors: tuple[set[str], ...], within: str) -> None:
    upwards = [
        f"{name} -> {other}"
        for name, others in IMPORTS.items()
        for other in others
        if name.startswith(within) and other.startswith(within)
        if (mine := floor(name, depth, floors)) is not None and (theirs := floor(other, depth, floors)) is not None
        if theirs > mine
    ]
    assert not upwards, "\n".join(sorted(upwards))


def test_nothing_imports_in_a_circle() -> None:
    try:
        TopologicalSorter(IMPORTS).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_deepspeed_is_imported_in_training_engine_only() -> None:
    importers = {name for name, path in MODULES.items() if any(i.split(".")[0] == "deepspeed" for i in imported(path))}
    assert importers and all(name.startswith("minimind.training.engine.") for name in importers), importers


def reached(module: str) -> set[str]:
    """What importing ``module`` may import of ours, directly or not."""
    found, open_ = {module}, [module]
    while open_:
        new = IMPORTS.get(open_.pop(), set()) - found
        found |= new
        open_ += new
    return found


@pytest.mark.parametrize(
    "module", ["run.setup", "run.resume", "run.cadence", "record.metrics", "health.trouble", "values"]
)
def test_what_a_run_works_on_is_known_without_deepspeed(module: str) -> None:
    """A run's data, its plan and its numbers can be read where DeepSpeed is not installed."""
    assert "minimind.training.engine.engine" not in reached(f"minimind.training.{module}")


def called(node: ast.Call) -> str:
    function = node.func
    return function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")


def test_no_call_has_more_than_five_positional_arguments() -> None:
    """Nobody can tell the sixth by its place. Functions of any number of equals (``*words``) are another matter."""
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in MODULES.values()}
    functions = [n for tree in trees.values() for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
    any_number = {function.name for function in functions if function.args.vararg is not None}
    crowded = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {called(node)}"
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and len(node.args) > MOST_POSITIONAL and called(node) not in any_number | FOREIGN
    ]
    assert not crowded, "\n".join(crowded)


def test_no_folder_is_crowded() -> None:
    crowded = {
        str(folder.relative_to(ROOT)): len(files)
        for folder in (ROOT / "minimind").rglob("*")
        if folder.is_dir() and len(files := [f for f in folder.glob("*.py") if f.name != "__init__.py"]) > 15
    }
    assert not crowded


def test_every_module_has_a_test_file_or_a_line_that_names_one() -> None:
    """A line in the table is for a module without a file of its own, and names a file that imports it in the end."""
    tests = ROOT / "tests"
    modules = {path.relative_to(ROOT / "minimind") for path in MODULES.values() if path.name != "__init__.py"}
    bare = {str(m.with_suffix("")) for m in modules if not (tests / m.parent / f"test_{m.name}").is_file()}
    table = {module: tests / file for file, names in COVERED_BY.items() for module in names.split()}
    assert set(table) == bare
    for module, file in table.items():
        name = f"minimind.{module.replace('/', '.')}"
        near = {other for direct in imported(file) for other in reached(direct)}
        assert name in near or name in file.read_text(encoding="utf-8"), f"{file} has nothing to do with {name}"
