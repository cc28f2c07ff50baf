"""docs/architecture.md: its tree is the package's, and every path and name in it is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools import tree

PAGE = tree.PAGE.read_text(encoding="utf-8")
WALKS = re.split(r"^## ", PAGE.split(tree.END)[1], flags=re.MULTILINE)[1:]


def test_the_page_has_todays_tree() -> None:
    assert tree.with_tree(PAGE) == PAGE, "python tools/tree.py"


def test_a_new_module_changes_the_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "minimind" / "part"
    package.mkdir(parents=True)
    for path, text in ((package.parent, "All. Of it."), (package, "A part: `x.y` of\nit. More.")):
        (path / "__init__.py").write_text(f'"""{text}"""\n')
    (package / "a.py").write_text('"""What a does.\n\nContract.\n"""\n')
    monkeypatch.setattr(tree, "ROOT", tmp_path)
    lines = [line.split(maxsplit=1) for line in tree.tree().splitlines()]
    assert lines == [["minimind/", "All"], ["part/", "A part: `x.y` of it"], ["a.py", "What a does"]]
    (package / "b.py").touch()
    with pytest.raises(ValueError, match=r"b.py: no docstring"):
        tree.tree()


def test_every_folder_with_modules_is_a_package() -> None:
    """Else neither the tree nor a wheel has it."""
    folders = {path.parent for path in (tree.ROOT / "minimind").rglob("*.py")}
    assert [str(folder) for folder in folders if not (folder / "__init__.py").is_file()] == []


@pytest.mark.parametrize("section", WALKS, ids=lambda section: section.split("\n")[0])
def test_every_module_of_a_walk_exists(section: str) -> None:
    """One with a folder from the package or the root; a bare one beside another, or in a folder that is named."""
    bold, path = r"\*\*([\w/]+\.py)\*\*", r"(?<![\w/])((?:\w+/)+\w+\.py)"
    names = {*re.findall(bold, section), *re.findall(path, section)}
    found = {name: [p for base in ("", "minimind") if (p := tree.ROOT / base / name).is_file()] for name in names}
    assert [name for name, there in found.items() if "/" in name and not there] == []
    folders = {there[0].parent for name, there in found.items() if "/" in name}
    folders |= {tree.ROOT / "minimind" / name for name in re.findall(r"in ((?:\w+/)+)(?=[ ,.])", section)}
    assert [n for n in names if "/" not in n and not any((folder / n).is_file() for folder in folders)] == []


def test_every_table_exists() -> None:
    rows = re.findall(r"^\| an? .* \| `(\w+)` in ([\w/]+\.py)", PAGE, re.MULTILINE)
    assert len(rows) == 6
    for table, module in rows:
        assert re.search(rf"^{table}\b.*= [\[{{]", (tree.ROOT / "minimind" / module).read_text(), re.MULTILINE), table
