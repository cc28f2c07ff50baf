"""A run directory becomes one page, whatever state the run is in."""

import math
from pathlib import Path

import pytest

from minimind.base.errors import UserError
from minimind.commands.report import write_report
from tests.commands.page.runs import about, content, finished, train, write


def test_a_report_lies_in_its_run(tmp_path: Path) -> None:
    path = write_report([write(tmp_path / "first", finished())])
    assert path == tmp_path / "first" / "report.html"
    (run,) = content(path.read_text(encoding="utf-8"))["runs"]
    assert run["state"]["code"] == "finished" and not content(path.read_text())["live"]


def test_several_runs_are_compared(tmp_path: Path) -> None:
    runs = [write(tmp_path / "a", finished()), write(tmp_path / "b", [about(9), train(1)], "learning_rate: 0.0003\n")]
    path = write_report([runs[0], runs[1] / "metrics.jsonl"])
    assert path == tmp_path / "report.html"
    value = content(path.read_text())
    assert [run["state"]["code"] for run in value["runs"]] == ["finished", "stale"]
    assert value["differences"] == [{"name": "learning_rate", "values": ["0.001", "0.0003"]}]


def test_a_torn_file_is_shown_as_far_as_it_goes(tmp_path: Path) -> None:
    run = write(tmp_path / "first", finished())
    (run / "metrics.jsonl").write_bytes((run / "metrics.jsonl").read_bytes()[:-30])
    (run / "ds_config.json").write_text('{"fp16": {')
    (value,) = content(write_report([run]).read_text())["runs"]
    assert value["train"]["step"][-1] == 30 and value["state"]["code"] != "finished"


def test_a_run_without_any_step(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(b"")
    (value,) = content(write_report([tmp_path]).read_text())["runs"]
    assert value["train"]["step"] == [] and len(value["missing"]) == 3


def test_numbers_that_are_none_are_no_trouble(tmp_path: Path) -> None:
    write_report([write(tmp_path, [train(1, loss=math.nan, grad_norm=math.inf, lr=None)])])


def test_an_unwritable_page_is_the_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="can't write the report"):
        write_report([write(tmp_path / "first", finished())], tmp_path / "missing" / "report.html")
