"""What "best" means: finite, strictly lower, and counted from the last gain."""

from __future__ import annotations

import math

import pytest

from minimind.training.record.best import Best

NOT_FINITE = [math.nan, math.inf, -math.inf]


def after(*losses: float) -> Best:
    """The best of evaluations at steps 10, 20, ..."""
    best = Best()
    for number, loss in enumerate(losses, 1):
        best.observe(10 * number, loss)
    return best


@pytest.mark.parametrize("bad", NOT_FINITE)
def test_a_loss_that_is_not_finite_is_no_result(bad: float) -> None:
    assert not Best().observe(10, bad)
    assert after(bad) == Best()
    assert after(bad, 5.0, 4.0) == Best(4.0, 30, 0)
    assert after(5.0, 6.0, bad, bad) == Best(5.0, 10, 1)


def test_a_gain_starts_the_count_again() -> None:
    assert after(5.0, 6.0, 7.0) == Best(5.0, 10, 2)
    assert after(5.0, 6.0, 7.0, 4.0) == Best(4.0, 40, 0)
    assert after(5.0, 6.0, 7.0, 4.0, 4.5) == Best(4.0, 40, 1)


def test_equal_is_no_gain() -> None:
    best = after(5.0)
    assert not best.observe(20, 5.0)
    assert best == Best(5.0, 10, 1)


def test_it_goes_on_from_its_state() -> None:
    best = after(5.0, 6.0)
    again = Best.from_state(best.state())
    assert again == best and again is not best
    assert again.observe(30, 4.0) and best != again


@pytest.mark.parametrize("bad", NOT_FINITE)
def test_what_an_earlier_version_called_the_best_is_forgotten_if_it_is_not_finite(bad: float) -> None:
    assert Best.from_state({"loss": bad, "step": 10, "without_gain": 3}) == Best()
