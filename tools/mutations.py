"""Every mutant of one module, by mutmut's operators.

mutmut is used as a library: its visitor and its list of operators. Two of its rules are changed. It leaves decorated
functions alone because of how it switches mutants at run time, which is not done here; and it mutates literals that
people read, which no test should pin word for word.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

EXCERPT = 100  # characters of a mutation that are shown


@dataclass(frozen=True)
class Mutant:
    """``module``: relative to the package. ``number``: of the module's mutants. ``render``: the whole module with the
    one mutation (40 ms: not for all)."""

    module: Path
    line: int
    change: str
    render: Callable[[], str]
    number: int = 0


def mutants_of(path: Path, module: Path) -> Iterator[Mutant]:
    """The mutants of the file ``path``, in order of mutmut's visit."""
    import libcst
    from libcst.metadata import MetadataWrapper, PositionProvider
    from mutmut.mutation.mutators import mutation_operators
    from mutmut.mutation.pragma_handling import IgnoredCode

    wrapper = MetadataWrapper(libcst.parse_module(path.read_text(encoding="utf-8")))
    visitor = _visitor()(mutation_operators, IgnoredCode(set(), set(), set()))
    tree = wrapper.visit(visitor)
    places = wrapper.resolve(PositionProvider)
    for number, mutation in enumerate(visitor.mutations):
        old, new = mutation.original_node, mutation.mutated_node
        place = places.get(old)
        change = f"{_shown(tree.code_for_node(old))} -> {_shown(tree.code_for_node(new))}"
        yield Mutant(module, place.start.line if place else 0, change, partial(render, tree, old, new), number)


def render(tree: Any, old: Any, new: Any) -> str:
    """The code of the module ``tree`` with ``new`` for the node ``old``."""
    from mutmut.mutation.file_mutation import deep_replace

    mutated: Any = deep_replace(tree, old, new)
    return str(mutated.code)


def _visitor() -> Any:
    """mutmut's visitor with this module's two changes; made here, so that only this function needs mutmut."""
    import libcst
    from mutmut.mutation.file_mutation import MutationVisitor

    class Visitor(MutationVisitor):  # type: ignore[misc]
        def _skip_node_and_children(self, node: libcst.CSTNode) -> bool:
            if isinstance(node, libcst.FunctionDef):
                return False
            prose = isinstance(node, libcst.SimpleString) and " " in node.value
            return prose or bool(super()._skip_node_and_children(node))

    return Visitor


def _shown(code: str) -> str:
    """One line of it."""
    line = " ".join(code.split())
    return line if len(line) <= EXCERPT else line[: EXCERPT - 3] + "..."
