"""The tree in docs/architecture.md, from the modules' own docstrings: `python tools/tree.py` writes it there.

Each folder and module has the first sentence of its docstring. A test fails when the page's tree is another.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- tree:begin -->\n```text\n", "```\n<!-- tree:end -->"
WIDTH = 25  # of a name with its indentation


def first_sentence(path: Path) -> str:
    """Of the module's docstring, on one line. ValueError without one."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    if not text:
        raise ValueError(f"{path}: no docstring")
    paragraph = " ".join(text.split("\n\n")[0].split())
    return re.split(r"(?<=[.!?])\s+(?=[A-Z`])", paragraph)[0].rstrip(".")


def lines(folder: Path, depth: int = 0) -> Iterator[str]:
    """The folder and what is below it: modules first, then folders, each by name."""
    package = folder / "__init__.py"
    yield _line(f"{folder.name}/", depth, first_sentence(package))
    for path in sorted(folder.glob("*.py")):
        if path != package:
            yield _line(path.name, depth + 1, first_sentence(path))
    for path in sorted(folder.iterdir()):
        if (path / "__init__.py").is_file():
            yield from lines(path, depth + 1)


def _line(name: str, depth: int, about: str) -> str:
    return f"{'  ' * depth + name:<{WIDTH}} {about}\n"


def tree() -> str:
    """The tree of the package, as it belongs between ``BEGIN`` and ``END``."""
    return "".join(lines(ROOT / "minimind"))


def with_tree(page: str) -> str:
    """The page with today's tree."""
    before, rest = page.split(BEGIN)
    return before + BEGIN + tree() + END + rest.split(END, 1)[1]


if __name__ == "__main__":
    PAGE.write_text(with_tree(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
