"""A run directory becomes one page, whatever state the run is in, and the page needs nothing else."""

import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from minimind.base.charts import POINTS, Line, chart, running_mean, thin
from minimind.base.errors import UserError
from minimind.commands.report import differences, facts, load_run, write_report
from minimind.training.record.file import to_line


def _run(directory: Path, steps: int = 30, ended: bool = True, lr: float = 1e-3) -> Path:
    directory.mkdir(parents=True)
    records: list[dict[str, Any]] = [
        {
            "kind": "run",
            "step": 0,
            "task": "pretrain",
            "model": "tiny",
            "parameters": 1000,
            "total_steps": steps,
            "precision": "fp16",
            "zero_stage": 1,
        },
        {"kind": "finding", "step": None, "code": "lr-high", "message": "<script>alert(1)</script>", "advice": "down"},
    ]
    for step in range(1, steps + 1):
        speed = None if step == 1 else 1000.0
        records.append(
            {
                "kind": "train",
                "step": step,
                "tokens": step * 100,
                "loss": 5.0 - step / 10,
                "grad_norm": 1.0,
                "lr": lr,
                "loss_scale": 1024.0,
                "skipped": 1,
                "tokens_per_second": speed,
            }
        )
    records.append({"kind": "eval", "step": steps, "loss": 2.5, "ppl": math.exp(2.5), "bits_per_byte": 1.1})
    if ended:
        records.append({"kind": "end", "step": steps, "reason": "finished", "seconds": 61.0})
    (directory / "metrics.jsonl").write_bytes(b"".join(to_line(record) for record in records))
    (directory / "config.yaml").write_text(f"learning_rate: {lr}\nmodel:\n  hidden_size: 64\n")
    (directory / "ds_config.json").write_text('{"fp16": {"enabled": true}}')
    return directory


class _Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in ("src", "href", "xlink:href"):
                self.links.append(value or "")


def test_the_page_is_complete_and_needs_nothing_else(tmp_path: Path) -> None:
    path = write_report([_run(tmp_path / "first")])
    assert path == tmp_path / "first" / "report.html"
    text = path.read_text(encoding="utf-8")
    page = _Page(text)
    assert page.tags.count("svg") == 6  # loss, norm, lr, scale, speed, skipped
    assert {"script", "link", "img", "iframe"}.isdisjoint(page.tags)
    assert all(link.startswith("#") for link in page.links)
    assert {link[1:] for link in page.links} <= set(page.ids)
    assert len(page.ids) == len(set(page.ids))
    assert set(re.findall(r"https?://[^\"' <]*", text)) <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }
    for fact in ("finished after 1m01s", "2.5000 at step 30", "tiny, 1,000 parameters", "lr-high", "hidden_size: 64"):
        assert fact in text


def test_what_a_file_says_is_text_not_markup(tmp_path: Path) -> None:
    text = write_report([_run(tmp_path / "first")]).read_text()
    assert "&lt;script&gt;alert(1)" in text
    assert "<script" not in text


def test_several_runs_are_compared(tmp_path: Path) -> None:
    runs = [_run(tmp_path / "a"), _run(tmp_path / "b", lr=3e-4, ended=False)]
    path = write_report(runs)
    assert path == tmp_path / "report.html"
    text = path.read_text()
    assert "What differs" in text
    assert "going on, or killed" in text
    assert differences([load_run(run) for run in runs]) == [("learning_rate", ["0.001", "0.0003"])]


def test_a_torn_file_is_shown_as_far_as_it_goes(tmp_path: Path) -> None:
    run = _run(tmp_path / "first", ended=False)
    file = run / "metrics.jsonl"
    file.write_bytes(file.read_bytes()[:-30])
    (run / "ds_config.json").write_text('{"fp16": {')
    assert "30 of 30" in write_report([run]).read_text()
    assert load_run(run).evaluations == []


def test_a_run_without_any_step(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(b"")
    text = write_report([tmp_path]).read_text()
    assert "No step was reported" in text
    assert "svg" not in _Page(text).tags


def test_repeated_steps_count_once_as_they_went_last(tmp_path: Path) -> None:
    lines = [{"kind": "train", "step": s, "loss": loss} for s, loss in ((1, 5.0), (2, 9.0), (2, 4.0), (3, 3.0))]
    (tmp_path / "metrics.jsonl").write_bytes(b"".join(to_line(line) for line in lines))
    assert load_run(tmp_path).column("loss") == [5.0, 4.0, 3.0]


def test_null_numbers_are_shown_as_na(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(to_line({"kind": "train", "step": 1, "loss": math.nan}))
    assert dict(facts(load_run(tmp_path)))["loss, mean of the last 20 steps"] == "n/a"


def test_no_run_there_is_the_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"metrics\.jsonl: No such file or directory: give the output directory"):
        write_report([tmp_path / "nothing"])


def test_an_unwritable_page_is_the_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="can't write the report"):
        write_report([_run(tmp_path / "first")], tmp_path / "missing" / "report.html")


def test_thinning_keeps_a_spike_and_the_ends_of_a_gap() -> None:
    ys: list[float | None] = [1.0] * 100_000
    ys[70_123] = 50.0
    ys[10:5000] = [None] * 4990
    xs, thinned = thin(range(100_000), ys)
    assert len(xs) <= POINTS
    assert max(y for y in thinned if not math.isnan(y)) == 50.0
    assert any(math.isnan(y) for y in thinned)
    assert xs == sorted(xs)


def test_running_mean_of_a_constant_is_the_constant() -> None:
    assert running_mean([2.0, None, 2.0, math.nan, 2.0], 3) == pytest.approx([2.0] * 5)
    assert running_mean([None, 1.0], 3) == [None, 1.0]


def test_a_chart_is_the_same_each_time_and_absent_without_numbers() -> None:
    line = Line("loss", [1, 2, 3], [3.0, 2.0, 1.0], "#000000")
    assert chart("loss", [line], "loss") == chart("loss", [line], "loss")
    assert chart("loss", [Line("loss", [1], [None], "#000000")], "loss") is None


def test_a_scale_is_logarithmic_where_all_values_are_positive() -> None:
    def drawn(lowest: float, log: int | None) -> str:
        made = chart("scale", [Line("scale", [1, 2, 3], [lowest, 64.0, 4096.0], "#000000")], "scale", log=log)
        assert made is not None and made.startswith("<svg")
        return made

    assert drawn(1.0, 2) != drawn(1.0, None)
    assert drawn(0.0, 2) == drawn(0.0, None)


def test_losses_by_source_have_a_chart_with_a_line_each(tmp_path: Path) -> None:
    directory = _run(tmp_path / "mixed")
    assert "Loss by source" not in write_report([directory]).read_text(encoding="utf-8")
    with (directory / "metrics.jsonl").open("ab") as file:
        for step in (10, 20, 30, 20):  # a resume repeats a step
            for name in ("web & co", "books"):
                record = {"kind": "source", "step": step, "source": name, "loss": 3.0 + step, "tokens": 5}
                file.write(to_line(record))
    text = write_report([directory]).read_text(encoding="utf-8")
    assert "Loss by source" in text
    assert "web &amp; co" in text
    assert ">books<" in text
