"""Curves in so many points and no more, without losing what stands out."""

import math

import pytest

from minimind.base.charts import Buckets, drawable, running_mean


def test_buckets_keep_a_spike_and_a_gap() -> None:
    ys: list[float | None] = [1.0] * 100_000
    ys[70_123] = 50.0
    ys[10:5000] = [None] * 4990
    buckets = Buckets.of(ys, 50)
    assert len(buckets.mean) == len(buckets.low) == len(buckets.high) == 2000
    assert max(y for y in buckets.high if y is not None) == 50.0
    assert buckets.mean[1] is None and buckets.high[1] is None
    assert buckets.mean[1402] == pytest.approx(1.98) and buckets.low[1402] == 1.0


def test_the_last_bucket_may_be_smaller() -> None:
    assert Buckets.of([1.0, 2.0, 3.0, math.nan, 5.0], 2) == Buckets([1.5, 3.0, 5.0], [1.0, 3.0, 5.0], [2.0, 3.0, 5.0])


@pytest.mark.parametrize(("y", "fits"), [(None, False), (math.inf, False), (1e31, False), (1e-31, False), (0.0, True)])
def test_what_no_axis_holds(y: float | None, fits: bool) -> None:
    assert drawable(y) == fits


def test_running_mean_of_a_constant_is_the_constant() -> None:
    assert running_mean([2.0, None, 2.0, math.nan, 2.0], 3) == pytest.approx([2.0] * 5)
    assert running_mean([None, 1.0], 3) == [None, 1.0]
