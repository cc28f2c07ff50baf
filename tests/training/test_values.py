"""The values that parts of training share: evaluations counted, perplexity."""

from __future__ import annotations

import math

import pytest

from minimind.training.values import evaluations, perplexity


@pytest.mark.parametrize(("total", "every"), [(10, 3), (9, 3), (5, 100), (1, 1), (100, 7)])
def test_evaluations_are_counted_as_the_loop_holds_them(total: int, every: int) -> None:
    held = [step for step in range(1, total + 1) if step == total or step % every == 0]
    for after in range(total + 1):
        for upto in range(after, total + 1):
            count = sum(after < step <= upto for step in held)
            assert evaluations(after, upto, total, every) == count


def test_perplexity_never_raises() -> None:
    assert perplexity(1000.0) == math.inf
    assert math.isnan(perplexity(math.nan))
    assert perplexity(0.0) == 1.0
