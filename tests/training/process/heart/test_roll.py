"""Who is lost, and when: by silence, by a stop, by an end, and never by what the observer itself slept through."""

from __future__ import annotations

import pytest

from minimind.training.process.attention import Attention
from minimind.training.process.heart.beats import Frame, Word
from minimind.training.process.heart.loss import EARLY, sentence
from minimind.training.process.heart.roll import CLOSED, GRACE, Roll

LIMIT = 50.0
HOSTS = ["node1", "node2"]


def beating(*frames: Frame) -> Roll:
    """Two ranks that were just heard."""
    roll = Roll(2, LIMIT)
    for frame in (Frame(Word.ALIVE, 0), Frame(Word.ALIVE, 1), *frames):
        roll.heard(frame)
    return roll


def after(roll: Roll, seconds: float, *kept: int) -> Frame | None:
    """The loss, if any, after so much time in which the ranks ``kept`` were heard."""
    for _ in range(int(seconds)):
        roll.passed(1.0)
        for rank in kept:
            roll.heard(Frame(Word.ALIVE, rank))
    return roll.lost()


def test_silence_is_a_loss_after_the_limit_and_not_before() -> None:
    roll = beating()
    assert after(roll, LIMIT, 0) is None
    lost = after(roll, 1, 0)
    assert lost == Frame(Word.SILENT, 1, detail=51)
    assert sentence(lost, HOSTS) == (
        "rank 1 on node2 has not been heard for 51 s: its host is down, or the network to it"
    )


def test_a_rank_that_is_heard_again_costs_nothing() -> None:
    roll = beating()
    assert after(roll, LIMIT - 1, 0) is None
    roll.heard(Frame(Word.ALIVE, 1))
    assert after(roll, LIMIT, 0) is None


def test_a_killed_rank_is_a_loss_at_once() -> None:
    assert beating(Frame(Word.GONE, 1)).lost() == Frame(Word.GONE, 1)


def test_a_closed_connection_is_a_loss_unless_there_is_a_new_one() -> None:
    roll = beating()
    roll.closed(1)
    assert after(roll, CLOSED, 0) is None
    roll.heard(Frame(Word.ALIVE, 1))
    assert after(roll, CLOSED + 1, 0) is None
    roll.closed(1)
    assert after(roll, CLOSED + 1, 0) == Frame(Word.GONE, 1)


def test_a_stopped_rank_is_a_loss_although_its_pulse_beats() -> None:
    roll = beating()
    for _ in range(int(LIMIT)):
        roll.heard(Frame(Word.STOPPED, 1))
        assert after(roll, 1, 0) is None
    roll.heard(Frame(Word.STOPPED, 1))
    lost = after(roll, 1, 0)
    assert lost == Frame(Word.STOPPED, 1, detail=51) and "SIGSTOP" in sentence(lost, HOSTS)


def test_a_job_that_is_suspended_as_a_whole_is_not_lost() -> None:
    roll = beating()
    for _ in range(10 * int(LIMIT)):
        for rank in range(2):
            roll.heard(Frame(Word.STOPPED, rank))
        assert after(roll, 1) is None


@pytest.mark.parametrize(("code", "words"), [(2, "exit code 2"), (EARLY, "stop before the first step")])
def test_one_that_ends_by_itself_is_a_loss_only_if_the_others_go_on(code: int, words: str) -> None:
    roll = beating(Frame(Word.ENDED, 1, detail=code))
    assert after(roll, GRACE, 0) is None
    lost = after(roll, 1, 0)
    assert lost == Frame(Word.ENDED, 1, detail=code) and words in sentence(lost, HOSTS)
    both = beating(Frame(Word.ENDED, 1, detail=code), Frame(Word.ENDED, 0))
    assert both.over()


def test_one_whose_work_is_done_is_never_lost() -> None:
    roll = beating(Frame(Word.ENDED, 1))
    roll.closed(1)
    assert after(roll, 3 * LIMIT, 0) is None


def test_time_that_was_slept_through_is_not_seen_to_pass() -> None:
    times = iter([0.0, 1.0, 3601.0, 3601.5])
    attention = Attention(1.0, lambda: next(times))
    assert [attention.passed() for _ in range(3)] == [1.0, 2.0, 0.5]
