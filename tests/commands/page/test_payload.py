"""What the page is given: bounded, plain JSON, whole or only what is new."""

import json
import math
from pathlib import Path

from minimind.commands.page import payload
from minimind.commands.page.payload import ROWS, changes, samples, whole
from minimind.commands.page.records import load_records
from tests.commands.page.runs import about, add, evaluation, finished, rollback, train, write


def test_a_short_run_is_given_as_it_is(tmp_path: Path) -> None:
    (value,) = whole([load_records(write(tmp_path / "a", finished()))])
    assert value["label"] == "a" and value["missing"] == ["environment.json"] and value["whole"]
    assert value["train"]["step"] == list(range(1, 31)) and "loss.low" not in value["train"]
    assert value["train"]["tokens_per_second"][0] is None and value["evaluations"]["bits_per_byte"] == [0.6, 0.45]
    json.dumps(value, allow_nan=False)


def test_a_long_run_comes_in_buckets_that_keep_a_spike(tmp_path: Path) -> None:
    steps = range(1, 3 * ROWS + 2)
    run = load_records(write(tmp_path, [about(9), *(train(s, loss=80.0 if s == 9000 else 1.0) for s in steps)]))
    columns = changes(run, None)["train"]
    assert len(columns["step"]) <= ROWS and columns["step"][-1] == 3 * ROWS + 1
    assert max(columns["loss.high"]) == 80.0 and max(columns["loss"]) < 80.0
    assert {len(ys) for ys in columns.values()} == {len(columns["step"])}


def test_what_no_chart_can_show_is_null(tmp_path: Path) -> None:
    values = (math.nan, math.inf, 1e300, 1e-300, 2.0)
    run = load_records(write(tmp_path, [train(i, loss=y) for i, y in enumerate(values, 1)]))
    assert changes(run, None)["train"]["loss"] == [None, None, None, None, 2.0]


def test_only_what_is_new(tmp_path: Path) -> None:
    run = load_records(write(tmp_path, [about(9), *map(train, (1, 2, 3)), evaluation(3, 1.0)]))
    seen = run.number
    assert changes(run, seen).keys() == {"generation", "number", "state"}
    add(tmp_path, [train(4)])
    run.read()
    value = changes(run, seen)
    assert value["train"]["step"] == [4] and value["keep"] is None and value["evaluations"]["step"] == []
    seen = run.number
    add(tmp_path, [*rollback(4, 2), train(3)])
    run.read()
    value = changes(run, seen)
    assert (value["train"]["step"], value["keep"], value["whole"]) == ([3], 3, False)
    assert value["branches"][0]["step"] == [3, 4]


def test_sources_are_bounded_and_named_in_order(tmp_path: Path) -> None:
    def source(step: int, name: str) -> dict[str, object]:
        return {"kind": "source", "step": step, "source": name, "loss": 3.0 + step}

    records = [source(step, name) for step in (10, 20, 20) for name in ("web & co", "__proto__")]
    run = load_records(write(tmp_path, records))
    assert changes(run, None)["sources"]["web & co"] == {"step": [10, 20, 20], "loss": [13.0, 23.0, 23.0]}
    many = load_records(write(tmp_path, [source(1, f"s{i}") for i in range(200)]))
    assert len(changes(many, None)["sources"]) == payload.MOST_SOURCES


def test_samples_are_the_last_of_each_step_and_prompt(tmp_path: Path) -> None:
    rows = [{"step": 10, "prompt": "a", "text": "old"}, {"step": 5, "prompt": "a", "text": "b"}, {"step": "x"}]
    rows += [{"step": 10, "prompt": "a", "text": "new", "more": 1}, [], {"step": 1, "prompt": 2, "text": "c"}]
    lines = [json.dumps(row) for row in rows]
    (tmp_path / "samples.jsonl").write_text("\n".join([*lines, "[" * 100_000, "{", '{"step": 1, "prom']))
    found = [{"step": 5, "prompt": "a", "text": "b"}, {"step": 10, "prompt": "a", "text": "new"}]
    assert samples(tmp_path) == found
    (tmp_path / "elsewhere.jsonl").write_bytes((tmp_path / "samples.jsonl").read_bytes())
    (run := tmp_path / "run").mkdir()
    (run / "samples.jsonl").symlink_to(tmp_path / "elsewhere.jsonl")
    assert samples(run) == []


def test_two_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    runs = [load_records(write(tmp_path / name / "run", [])) for name in ("a", "b")]
    assert [value["label"] for value in whole(runs)] == ["a/run", "b/run"]
