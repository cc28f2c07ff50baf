"""The import rule of docs/architecture.md, over the syntax trees: who may know whom, and nothing runs in circles."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

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
MODULES = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in (ROOT / "minimind").rglob("*.py")}


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


def test_no_folder_is_crowded() -> None:
    crowded = {
        str(folder.relative_to(ROOT)): len(files)
        for folder in (ROOT / "minimind").rglob("*")
        if folder.is_dir() and len(files := [f for f in folder.glob("*.py") if f.name != "__init__.py"]) > 15
    }
    assert not crowded
