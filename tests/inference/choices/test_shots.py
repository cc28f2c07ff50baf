"""Answered examples before questions, as the harness lays them out and draws them."""

import random

import pytest

from minimind.base.errors import UserError
from minimind.data.read.sources import Record
from minimind.inference.choices.questions import Question, question_of
from minimind.inference.choices.shots import with_examples

EXAM = {"A": "一", "B": "二", "C": "三", "D": "四"}


def own(file: str, count: int, start: int = 0) -> list[Question]:
    rows = [{"question": f"q{n}", "choices": ["a", f"b{n}"], "answer": 1} for n in range(start, start + count)]
    return read(file, rows)


def exam(file: str, texts: str) -> list[Question]:
    return read(file, [{"question": text, **EXAM, "answer": "C"} for text in texts])


def read(file: str, rows: list[dict[str, object]]) -> list[Question]:
    found = [question_of(Record(row, file, line)) for line, row in enumerate(rows, 1)]
    assert all(isinstance(one, Question) for one in found), found
    return [one for one in found if isinstance(one, Question)]


def test_an_exam_has_its_description_once_and_the_first_examples() -> None:
    (asked,) = exam("val/law_val.csv", "几")
    found = with_examples([asked], exam("dev/law_dev.csv", "甲乙丙"), 2)[0]
    block = "{}\nA. 一\nB. 二\nC. 三\nD. 四\n答案："
    start = asked.description
    assert start.startswith("以下是中国关于法学") and asked.context.startswith(start)
    assert found.context == f"{start}{block.format('甲')} C\n\n{block.format('乙')} C\n\n{block.format('几')}"
    assert (found.choices, found.answer, str(found)) == (asked.choices, asked.answer, str(asked))


def test_other_formats_draw_anew_for_each_question_of_a_subject() -> None:
    examples = own("set_train.jsonl", 9, start=100)
    drawn = random.Random(1234)
    for found in with_examples(own("set_test.jsonl", 3), examples, 2):
        first, second = drawn.sample([f"q{n} b{n}\n\n" for n in range(100, 109)], 2)
        assert found.context == first + second + f"q{found.line - 1}"


def test_each_subject_has_its_own_examples_and_its_own_draw() -> None:
    examples = [*own("law_train.jsonl", 4, start=100), *own("art_train.jsonl", 4, start=200)]
    law, art = with_examples([*own("law.jsonl", 1), *own("art.jsonl", 1)], examples, 2)
    assert "q10" in law.context and "q20" not in law.context and "q20" in art.context
    assert [text.replace("10", "20") for text in law.context.split("\n\n")] == art.context.split("\n\n")  # one seed


def test_one_file_of_examples_is_for_every_subject() -> None:
    assert with_examples(own("test-0001.parquet", 1), own("train-0001.parquet", 2, start=7), 2)[0].context.count("\n\n")


@pytest.mark.parametrize(
    ("examples", "message"),
    [
        (own("set_dev.jsonl", 1, start=9), "--shots 2: --examples has 1 of the subject set"),
        ([*own("a.jsonl", 2, start=9), *own("b.jsonl", 2, start=19)], "has 0 of the subject set"),
        (own("set_dev.jsonl", 3, start=1), "set_dev.jsonl:1: this example is one of the questions"),
    ],
)
def test_too_few_examples_and_the_questions_themselves_are_refused(examples: list[Question], message: str) -> None:
    with pytest.raises(UserError, match=message):
        with_examples(own("set.jsonl", 2), examples, 2)
