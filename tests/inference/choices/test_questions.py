"""Which questions the formats' records are; each format as its owners publish it, a made-up row of it."""

import pytest

from minimind.data.read.sources import Record
from minimind.data.records.encoding import Reject
from minimind.inference.choices.questions import Question, question_of

ARC = {"id": "x", "question": "What flows?", "choices": {"text": ["stone", "river"], "label": ["1", "2"]}}
SWAG = {"ind": 4, "activity_label": "Rowing", "ctx_a": "A man sits [step] in a boat.", "ctx_b": "the man", "label": "1"}
EXAM = {"A": "一", "B": "二", "C": "三", "D": "四"}


def read(value: object, file: str = "set.jsonl") -> Question:
    found = question_of(Record(value, file, 3))
    assert isinstance(found, Question), found
    return found


def test_own_questions_take_an_index_or_a_letter() -> None:
    for answer in (1, "B", " B "):
        found = read({"question": "What flows?", "choices": ["stone", "river"], "answer": answer})
        assert (found.context, found.choices, found.answer) == ("What flows?", ("stone", "river"), 1)
        assert (found.subject, str(found)) == ("set", "set.jsonl:3")
    assert read({"question": "Q", "choices": ["a", "b"], "answer": 0, "subject": "law"}).subject == "law"


def test_c_eval_names_the_subject_of_its_file() -> None:
    row = {"id": "0", "question": " 几？ ", **EXAM, "answer": "C", "explanation": ""}
    found = read(row, "val/computer_network_val.csv")
    start = "以下是中国关于计算机网络的单项选择题，请选出其中的正确答案。\n\n"
    assert found.context == start + "几？\nA. 一\nB. 二\nC. 三\nD. 四\n答案："
    assert (found.subject, found.choices, found.answer) == ("computer_network", ("A", "B", "C", "D"), 2)
    assert read(row, "mine.csv").context.startswith("几？\nA. 一")  # a subject that has no Chinese name


def test_cmmlu_is_told_by_its_capitals() -> None:
    found = read({"unnamed column 1": "0", "Question": "几？", **EXAM, "Answer": "D"}, "test/anatomy.csv")
    assert found.context.startswith("以下是关于解剖学的单项选择题，请直接给出正确答案的选项。\n\n几？\nA. 一")
    assert (found.subject, found.answer) == ("anatomy", 3)


def test_arc_goes_by_its_labels() -> None:
    found = read({**ARC, "answerKey": "2"})
    assert (found.context, found.choices, found.answer) == (
        "Question: What flows?\nAnswer:",
        ("stone", "river"),
        1,
    )


def test_hellaswag_loses_the_marks_of_its_pages() -> None:
    found = read({**SWAG, "endings": ["rows [substeps] away.", "sleeps.", "sings."]})
    assert found.context == "Rowing: A man sits in a boat. The man"
    assert (found.choices[0], found.answer) == ("rows away.", 1)
    assert read({**SWAG, "endings": ["a", "b"], "label": 0}).answer == 0


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("text", "a record is an object"),
        ({"text": "x"}, "no known multiple-choice format (fields: text)"),
        ({"question": "Q", "choices": ["a", "b"]}, "answer is null: expected an index from 0 to 1 or a letter up to B"),
        ({"question": "Q", "choices": ["a", "b"], "answer": 2}, "answer is 2"),
        ({"question": "Q", "choices": ["a", "b"], "answer": True}, "answer is True"),
        ({"question": "Q", "choices": ["a", "b"], "answer": "AB"}, "answer is 'AB'"),
        ({"question": "Q", "choices": ["a", "b"], "answer": ""}, "answer is ''"),
        ({"question": " ", "choices": ["a", "b"], "answer": 0}, "question is empty"),
        ({"question": "Q", "choices": ["a"], "answer": 0}, "choices has 1 entries"),
        ({"question": "Q", "choices": ["a", ""], "answer": 0}, "choices[1] is empty"),
        ({"question": "Q", "choices": {"a": 1}, "answer": 0}, "choices is an object"),
        ({"question": "Q", **EXAM, "answer": "E"}, "answer is 'E'"),
        ({"question": "Q", **EXAM}, "answer is null"),  # C-Eval's test files have none
        ({**ARC, "answerKey": "3"}, "answerKey '3' names none of 2 choices"),
        ({**ARC, "choices": ["a"], "answerKey": "1"}, "choices is no object"),
        ({**SWAG, "endings": ["a", "b"], "label": ""}, "label is ''"),
        ({**SWAG, "endings": ["a", "b"], "ctx_b": None}, "ctx_b is null"),
    ],
)
def test_what_is_wrong_with_a_record_is_said(value: object, reason: str) -> None:
    found = question_of(Record(value, "set.jsonl", 3))
    assert isinstance(found, Reject)
    assert str(found).startswith("set.jsonl:3: ")
    assert reason in str(found)


FORMATS = [
    {"question": "Q", "choices": ["a", "b"], "answer": 0, "subject": "law"},
    {"question": "Q", **EXAM, "answer": "C"},
    {"Question": "Q", **EXAM, "Answer": "C"},
    {**ARC, "answerKey": "2"},
    {**SWAG, "endings": ["a", "b"]},
]


@pytest.mark.parametrize(
    ("row", "field"), [(row, field) for row in FORMATS for field in row if field not in ("id", "ind")]
)
def test_whatever_field_is_wrong_is_named(row: dict[str, object], field: str) -> None:
    assert isinstance(question_of(Record(row, "set.jsonl", 3)), Question)
    found = question_of(Record({**row, field: 3.5}, "set.jsonl", 3, element=2))
    assert isinstance(found, Reject) and field in found.reason
    assert (found.file, found.line, found.element) == ("set.jsonl", 3, 2) and "3.5" in found.excerpt


def test_what_could_not_be_read_stays_as_its_reader_put_it() -> None:
    broken = Record(None, "set.jsonl", 3, "not JSON", "{x", 2)
    assert question_of(broken) == Reject("set.jsonl", 3, "not JSON", "{x", element=2)
