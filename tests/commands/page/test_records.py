"""A run's records, folded: what was taken back, what came again, and what is new since a record."""

import os
from pathlib import Path

import pytest

from minimind.base.errors import UserError
from minimind.commands.page.records import RunRecords, load_records
from tests.commands.page.runs import START, about, add, end, evaluation, finding, rollback, train, write


def _steps(run: RunRecords) -> list[int]:
    return run.train.column("step")


def test_a_rollback_takes_steps_back_at_once_and_keeps_them_beside(tmp_path: Path) -> None:
    run = load_records(write(tmp_path, [about(9), *map(train, (1, 2, 3, 4)), evaluation(4, 9.0), *rollback(4, 2)]))
    assert _steps(run) == [1, 2] and run.evaluations.rows == []
    assert [step for step, _ in run.branches[0]] == [3, 4]
    assert [(mark.kind, mark.step) for mark in run.marks] == [("rollback", 4)]


def test_a_resume_that_writes_an_old_rollback_again_takes_nothing_back(tmp_path: Path) -> None:
    course = [about(9), *map(train, (1, 2, 3, 4)), *rollback(4, 2), train(3)]
    run = load_records(write(tmp_path, [*course, about(9, step=3), *rollback(4, 2), train(4)]))
    assert _steps(run) == [1, 2, 3, 4]
    assert [(mark.kind, mark.step) for mark in run.marks] == [("rollback", 4), ("resume", 3)]


def test_steps_that_come_again_count_once_as_they_went_last(tmp_path: Path) -> None:
    run = load_records(write(tmp_path, [train(1), train(2, loss=9.0), train(3), train(2, loss=4.0)]))
    assert _steps(run) == [1, 2] and run.train.column("loss")[1] == 4.0
    assert len(run.branches) == 1


def test_time_leaves_out_what_lies_between_two_sessions(tmp_path: Path) -> None:
    later = START + 50_000
    records = [about(4), train(1), train(2), end(2, "stopped"), about(4, step=2, time=later), train(3, time=later + 7)]
    run = load_records(write(tmp_path, records))
    assert run.train.column("elapsed") == [1.0, 2.0, 9.0]
    assert run.end is None


def test_a_run_of_an_older_version_has_no_times(tmp_path: Path) -> None:
    run = load_records(write(tmp_path, [about(2, time=None), train(1, time=None)]))
    assert run.train.column("elapsed") == [None]


def test_what_is_new_since_a_record(tmp_path: Path) -> None:
    run = load_records(write(tmp_path, [about(9), *map(train, (1, 2, 3))]))
    seen = run.number
    add(tmp_path, [train(4), *rollback(4, 1), train(2, loss=1.0)])
    run.read()
    assert [row[0] for row in run.train.since(seen)] == [2]
    assert run.kept_since(seen) == 2  # rows before step 2 still stand
    assert run.kept_since(run.number) is None and run.train.since(run.number) == []


def test_a_torn_line_is_read_when_it_is_whole(tmp_path: Path) -> None:
    write(tmp_path, [about(9), train(1), train(2)])
    file = tmp_path / "metrics.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole[:-20])
    run = load_records(tmp_path)
    assert _steps(run) == [1]
    file.write_bytes(whole)
    run.read()
    assert _steps(run) == [1, 2] and run.generation == 0


def test_a_file_that_was_replaced_or_cut_back_is_read_again(tmp_path: Path) -> None:
    run = load_records(write(tmp_path, [about(9), *map(train, (1, 2, 3))]))
    write(tmp_path / "new", [about(9), train(1)])
    os.replace(tmp_path / "new" / "metrics.jsonl", tmp_path / "metrics.jsonl")
    run.read()
    assert _steps(run) == [1] and run.generation == 1
    (tmp_path / "metrics.jsonl").write_bytes(b"")
    run.read()
    assert _steps(run) == [] and run.generation == 2


def test_a_wrong_record_is_named_by_its_line_also_later(tmp_path: Path) -> None:
    run = load_records(write(tmp_path, [about(9), train(1)]))
    add(tmp_path, [train(2, loss="low")])
    with pytest.raises(UserError, match=r"metrics\.jsonl:3: loss is"):
        run.read()


def test_the_same_finding_is_one_mark(tmp_path: Path) -> None:
    run = load_records(write(tmp_path, [finding(None, "a", "b")] * 3))
    assert len(run.marks) == 1


def test_no_run_there_is_the_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"metrics\.jsonl: No such file or directory: give the output directory"):
        load_records(tmp_path / "nothing")
