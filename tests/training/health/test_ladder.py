"""The ladder's decisions: which rung, which data, which rate; and that they are kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from minimind.config.recovery import RecoveryConfig
from minimind.training.health.ladder import (
    FILE_NAME,
    Rollback,
    data_step,
    describe_rollback,
    make_rollback,
    next_rung,
    rate_factor,
    read_rollbacks,
    write_rollbacks,
)
from minimind.training.health.trouble import Trouble

CONFIG = RecoveryConfig()


def trouble(onset: int, step: int, code: str = "overflow") -> Trouble:
    return Trouble(code, step, onset, "bad")


def took(rung: str, onset: int, step: int, to_step: int, past: list[Rollback] | None = None) -> Rollback:
    return make_rollback(rung, trouble(onset, step), past or [], to_step, to_step, CONFIG)


def climb(precision: str, config: RecoveryConfig = CONFIG) -> list[str]:
    """The rungs that a trouble takes which nothing heals."""
    past: list[Rollback] = []
    while True:
        fixed = any(rollback.rung == "fixed-scale" for rollback in past)
        now = "fp32" if any(rollback.rung == "fp32" for rollback in past) else precision
        rung = next_rung(trouble(110, 120), past, now, fixed, config)
        if rung is None:
            return [rollback.rung for rollback in past]
        past.append(took(rung, 110, 120, 100, past))


def test_the_rungs_in_order_and_only_those_that_can_help() -> None:
    assert climb("fp16") == ["rollback", "fixed-scale", "fp32"]
    assert climb("bf16") == ["rollback", "fp32"]
    assert climb("fp32") == ["rollback"]
    assert climb("fp16", RecoveryConfig(max_rollbacks=1)) == ["rollback"]
    assert climb("fp16", RecoveryConfig(enabled=False)) == []


def test_trouble_elsewhere_starts_at_the_bottom_again() -> None:
    past = [took("rollback", 110, 120, 100)]
    again = 120 + CONFIG.heal_steps
    assert next_rung(trouble(again, again + 5), past, "bf16", False, CONFIG) == "fp32"
    assert next_rung(trouble(again + 1, again + 5), past, "bf16", False, CONFIG) == "rollback"


def test_the_window_is_left_out_of_the_data_and_nothing_else() -> None:
    # steps 110 to 120 (1-based) were bad: the data steps 109 to 119
    past = [took("rollback", 110, 120, 100)]
    assert past[0].skipped == (109, 119)
    used = [data_step(step, past) for step in range(130)]
    assert used[:109] == list(range(109)) and used[109:] == list(range(120, 141))
    # a later one counts in steps of the run, and lands in the data that the run really used
    past.append(took("rollback", 300, 302, 290, past))
    assert past[1].skipped == (310, 312)
    used = [data_step(step, past) for step in range(400)]
    assert sorted(set(range(400)) - set(used)) == [*range(109, 120), *range(310, 313)]
    assert used == sorted(set(used))


def test_overlapping_windows_leave_out_their_union() -> None:
    windows = [(5, 10), (8, 12), (11, 11)]
    past = [Rollback(i, "rollback", "spike", "", 1, 2, 0, 0, window, 0.5, 10) for i, window in enumerate(windows)]
    assert [data_step(step, past) for step in range(8)] == [0, 1, 2, 3, 4, 13, 14, 15]


def test_a_spike_leaves_out_the_step_before_it_too() -> None:
    rollback = make_rollback("rollback", trouble(110, 120, "spike"), [], 100, 100, CONFIG)
    assert rollback.skipped == (108, 119)


def test_the_rate_is_halved_once_a_rollback_and_only_the_last_one_warms_up() -> None:
    first = took("rollback", 110, 120, 100)
    assert rate_factor(5, []) == 1.0
    assert rate_factor(100, [first]) == pytest.approx(0.5 / CONFIG.rewarmup_steps)
    assert rate_factor(100 + CONFIG.rewarmup_steps - 1, [first]) == 0.5
    assert rate_factor(0, [first]) == rate_factor(100, [first])  # an engine is built before it is loaded
    second = took("fixed-scale", 110, 120, 100, [first])
    assert second.skipped is None and second.lr_factor == 1.0
    assert rate_factor(100, [first, second]) == pytest.approx(0.5 / CONFIG.rewarmup_steps)
    third = took("rollback", 400, 410, 390, [first, second])
    assert rate_factor(1000, [first, second, third]) == 0.25


def test_a_checkpoint_lives_with_the_rollbacks_up_to_its_step(tmp_path: Path) -> None:
    first = took("rollback", 110, 120, 100)
    second = took("fp32", 101, 130, 90, [first])
    third = took("rollback", 500, 510, 400, [first, second])
    write_rollbacks(tmp_path, [first, second, third])
    assert read_rollbacks(tmp_path, 1000) == [first, second, third]
    # from step 90 on the run's story holds both: the first one had gone back to 100, the second further
    assert read_rollbacks(tmp_path, 90) == [first, second]
    assert read_rollbacks(tmp_path, 89) == []
    assert read_rollbacks(tmp_path / "elsewhere", 1000) == []
    (tmp_path / FILE_NAME).write_text("{")
    with pytest.raises(ValueError, match="Expecting property name"):
        read_rollbacks(tmp_path, 1000)


def test_a_rollback_says_what_it_does() -> None:
    message = describe_rollback(took("rollback", 110, 120, 100)).message
    assert message == (
        "bad; rollback 1: back to step 100, learning rate x 0.5, 50 steps of warmup, the data of 11 steps left out"
    )
