"""The table of modules with little coverage."""

from __future__ import annotations

import pytest


def file(covered: int, branches: int) -> dict[str, object]:
    """Of ten lines and ten branches."""
    return {
        "summary": {
            "percent_covered": 5.0 * (covered + branches),
            "covered_lines": covered,
            "num_statements": 10,
            "covered_branches": branches,
            "num_branches": 10,
        }
    }


def test_modules_below_the_limit_are_named_worst_first() -> None:
    pytest.importorskip("coverage")
    from tests.coverage_table import lines

    files = {"a.py": file(8, 8), "b.py": file(9, 8), "c.py": file(10, 2)}
    total = {"percent_covered": 75.0, "covered_lines": 27, "num_statements": 30, "covered_branches": 18}
    first, *table = lines({"totals": {**total, "num_branches": 30}, "files": files})
    assert first == "coverage: 75.0% (27 of 30 lines, 18 of 30 branches)"
    assert table[2:] == ["| c.py | 60% | 10 of 10 | 2 of 10 |", "| a.py | 80% | 8 of 10 | 8 of 10 |"]
    assert lines({"totals": {**total, "num_branches": 30}, "files": {"b.py": file(9, 8)}}) == [first]
