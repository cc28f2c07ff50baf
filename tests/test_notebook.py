"""examples/first_training.ipynb: its code runs from top to bottom, without Jupyter, and it is kept without outputs."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from tests.test_api import settings

NOTEBOOK = Path(__file__).parents[1] / "examples" / "first_training.ipynb"


def cells(kind: str) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == kind]


def run_cell(source: str, names: dict[str, Any]) -> Any:
    """The value of the cell's last expression, as a notebook shows it; None if it ends with a statement."""
    body = ast.parse(source).body
    last = ast.Expression(body.pop().value) if isinstance(body[-1], ast.Expr) else None  # type: ignore[attr-defined]
    exec(compile(ast.Module(body, []), str(NOTEBOOK), "exec"), names)
    return eval(compile(last, str(NOTEBOOK), "eval"), names) if last else None


@pytest.mark.usefixtures("one_rank")
def test_the_cells_run_in_order(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(NOTEBOOK.parent)
    first, *others = ("".join(cell["source"]) for cell in cells("code"))
    names: dict[str, Any] = {"__name__": "__main__"}
    chosen = run_cell(first, names)
    assert chosen is names["settings"] and names["deepspeed_config"].is_file()
    chosen.update(settings(files, tmp_path / "run"))
    run, plot, _ = (run_cell(source, names) for source in others)
    assert (run / "final" / "model.safetensors").is_file() and [step for step, _ in names["curve"]] == [1, 2]
    assert plot._repr_html_().count("polyline") == 1
    assert capsys.readouterr().out.strip()


def test_outputs_are_stripped() -> None:
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells("code"))
    assert {len(cells("markdown")), len(cells("code"))} == {5, 4}
