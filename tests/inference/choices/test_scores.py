"""Scores of numbers whose right answers are worked out by hand."""

import pytest

from minimind.inference.choices.questions import Question
from minimind.inference.choices.scores import Answered, by_subject, chosen, score, table


def answered(nats: list[float], answer: int, subject: str = "s", choices: tuple[str, ...] = ("ab", "山河")) -> Answered:
    return Answered(Question("f", 1, subject, "c", choices, answer), nats, [1, 4][: len(nats)] or [1])


def test_each_measure_divides_by_its_own_length() -> None:
    one = Answered(Question("f", 1, "s", "c", ("a", "bbbb", "山山"), 0), [-2.0, -5.0, -2.5], [1, 2, 3])
    # sums -2, -5, -2.5; by character -2, -1.25, -1.25; by byte -2, -1.25, -0.42; by token -2, -2.5, -0.83
    assert [chosen(one, measure) for measure in ("acc", "acc_norm", "acc_bytes", "acc_tokens")] == [0, 1, 2, 2]


def test_of_equal_choices_the_first_counts() -> None:
    assert chosen(answered([-1.0, -1.0], 0), "acc") == 0


def test_shares_have_their_standard_error_and_chance() -> None:
    answers = [answered([-1.0, -2.0], n % 2) for n in range(8)]
    whole = score(answers)
    assert (whole["questions"], whole["chance"], whole["acc"]) == (8, 0.5, 0.5)
    assert whole["acc_stderr"] == pytest.approx((0.25 / 7) ** 0.5, abs=1e-6)
    assert score(answers[:1])["acc_stderr"] is None
    four = Answered(Question("f", 1, "s", "c", ("a", "b", "c", "d"), 0), [-1.0] * 4, [1] * 4)
    assert score([four, answers[0]])["chance"] == pytest.approx(0.375)


def test_the_table_has_a_line_for_each_subject_and_one_for_all() -> None:
    answers = [answered([-1.0, -2.0], 0, "law"), answered([-1.0, -2.0], 1, "art"), answered([-1.0, -2.0], 0, "law")]
    subjects = by_subject(answers)
    assert {name: own["acc"] for name, own in subjects.items()} == {"law": 1.0, "art": 0.0}
    lines = table(subjects, score(answers))
    assert [line.split()[0] for line in lines] == ["subject", "law", "art", "all"]
    assert "100.0 ± 0.0" in lines[1]
    assert "0.0 ± n/a" in lines[2]
    assert "66.7 ± 33.3" in lines[3]
    assert "50.0%" in lines[3]
    assert len(table({"law": subjects["law"]}, score(answers))) == 2
