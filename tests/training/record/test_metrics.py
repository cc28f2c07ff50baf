"""What a run reports: the same numbers in the file and on the console, and nothing on other ranks."""

import io
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from minimind.base.findings import Finding
from minimind.config.run import load_run_config
from minimind.training.record.best import Best
from minimind.training.record.console import ConsoleLog, count, duration, fields_within, header_rows, progress_fields
from minimind.training.record.file import FILE_NAME, read_metrics
from minimind.training.record.metrics import Metrics
from minimind.training.values import RunSummary, SourceLoss, StepMetrics

SUMMARY = RunSummary(
    kind="pretrain",
    model="tiny",
    parameters=1_234_567,
    vocab_size=1024,
    rows=320,
    row_length=256,
    fill=0.991,
    epoch_tokens=81_000,
    micro_batch_size=4,
    accumulation=2,
    world_size=1,
    total_steps=40,
    epochs=1.0,
    precision="fp16",
    zero_stage=1,
    offload=False,
    deepspeed_config="ds_configs/fp16.json",
    optimizer="AdamW lr 0.001",
    schedule="cosine to 0.1, warmup 1",
    gradient_clipping=1.0,
    device="1 x CPU",
    output_dir="runs/first",
)
STEP = StepMetrics(
    step=10,
    tokens=20_480,
    loss=2.0,
    grad_norm=0.84,
    lr=1e-3,
    loss_scale=65536.0,
    skipped=0,
    applied=True,
    tokens_per_second=12_345.0,
    seconds=1.5,
    epoch=0.25,
)


@dataclass(frozen=True)
class Held:
    loss: float
    num_tokens: int = 100
    bits_per_byte: float | None = 1.25


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def metrics_to(out: io.StringIO, directory: Path, terminal: bool = False, width: int = 200, **kwargs: Any) -> Metrics:
    config = load_run_config(None, [], {"output_dir": directory})
    console = ConsoleLog(40, config.logging_steps, Console(file=out, force_terminal=terminal, width=width))
    return Metrics(directory, 0, config, 40, console=console, **kwargs)


def records(directory: Path, kind: str) -> list[dict[str, Any]]:
    """The records of a kind, without the time at which each was written."""
    found = [record for record in read_metrics(directory / FILE_NAME) if record["kind"] == kind]
    assert all(record.pop("time") > 1.7e9 for record in found)
    return found


@pytest.fixture
def out() -> io.StringIO:
    return io.StringIO()


def test_every_step_is_a_line_and_the_console_shows_every_tenth(tmp_path: Path, out: io.StringIO) -> None:
    metrics = metrics_to(out, tmp_path)
    for step in range(1, 41):
        metrics.step(replace(STEP, step=step))
    assert [r["step"] for r in records(tmp_path, "train")] == list(range(1, 41))
    assert [line.split()[1] for line in out.getvalue().splitlines()] == ["1/40", "10/40", "20/40", "30/40", "40/40"]


def test_the_header_says_how_often_it_evaluates_only_if_that_is_not_the_usual(tmp_path: Path, out: io.StringIO) -> None:
    assert "held-out" not in dict(header_rows(SUMMARY))
    remark = "evaluated once, at the end: more would cost over 2% of the training"
    metrics_to(out, tmp_path).header(replace(SUMMARY, eval_remark=remark))
    assert f"held-out  {remark}" in out.getvalue()


def test_the_header_says_which_fields_of_the_data_were_not_read() -> None:
    unread = "id in 20 (first a.jsonl:1)"
    assert ("", f"fields not read: {unread}") in header_rows(replace(SUMMARY, unread=unread))
    assert not any("not read" in text for _, text in header_rows(SUMMARY))


def test_the_header_names_where_the_data_come_from(tmp_path: Path, out: io.StringIO) -> None:
    named = replace(SUMMARY, data="a.jsonl, b.jsonl", held_out="c.jsonl, 7 documents")
    metrics_to(out, tmp_path).header(named)
    assert "from a.jsonl, b.jsonl" in out.getvalue() and "held-out  c.jsonl, 7 documents" in out.getvalue()


def test_the_time_left_counts_the_evaluations_to_come(tmp_path: Path, out: io.StringIO) -> None:
    """One evaluation at the end that takes as long as 30 of the 40 steps."""
    clock = Clock()
    metrics = metrics_to(out, tmp_path, clock=clock)
    metrics.header(replace(SUMMARY, eval_steps=1000, evaluation_cost=30.0))
    for step in range(1, 21):
        clock.now += 1.0
        metrics.step(replace(STEP, step=step))
    assert out.getvalue().splitlines()[-1].endswith("left 50s")


def test_an_evaluation_that_takes_long_shows_how_far_it_is(tmp_path: Path, out: io.StringIO) -> None:
    clock = Clock()
    metrics = metrics_to(out, tmp_path, clock=clock)
    for batch in range(10):
        metrics.evaluating(batch, 10)
        clock.now += 4.0
    said = [line for line in out.getvalue().splitlines() if "batches" in line]
    assert said == ["held-out 3 of 10 batches", "held-out 6 of 10 batches", "held-out 9 of 10 batches"]


def test_a_train_line_has_every_number(tmp_path: Path, out: io.StringIO) -> None:
    metrics_to(out, tmp_path).step(STEP)
    (record,) = records(tmp_path, "train")
    names = {"step", "tokens", "loss", "ppl", "grad_norm", "lr", "loss_scale", "skipped", "tokens_per_second"}
    assert names <= record.keys()
    assert record["ppl"] == pytest.approx(math.exp(2.0))


def test_plain_output_has_no_control_codes_and_no_colour(tmp_path: Path, out: io.StringIO) -> None:
    metrics = metrics_to(out, tmp_path)
    metrics.header(SUMMARY)
    metrics.step(STEP)
    metrics.evaluation(Held(2.1), 10)
    metrics.finding(Finding("loss-scale-low", "the scale is 64", "use bf16", 10))
    metrics.close(tmp_path / "final")
    assert "\x1b" not in out.getvalue()
    assert "\r" not in out.getvalue()


def test_the_header_says_what_will_happen(tmp_path: Path, out: io.StringIO) -> None:
    metrics_to(out, tmp_path).header(SUMMARY)
    for fact in (
        "1,234,567 parameters",
        "8 rows = 2,048 tokens",
        "40 steps",
        "99.1% full",
        "fp16, ZeRO 1",
        "ds_configs/fp16.json",
        "AdamW lr 0.001",
        "runs/first",
    ):
        assert fact in out.getvalue()
    assert records(tmp_path, "run")[0]["parameters"] == 1_234_567


def test_header_shows_known_time_memory_and_resume() -> None:
    rows = dict(header_rows(replace(SUMMARY, expected_seconds=187, memory_bytes=2**30, resumed_step=20, world_size=2)))
    assert "about 3m07s" in rows["run"]
    assert "after step 20" in rows["run"]
    assert "1.00 GiB" in rows["device"]
    assert "x 2 ranks" in rows["step"]


def test_untrusted_numbers_are_na(tmp_path: Path, out: io.StringIO) -> None:
    metrics_to(out, tmp_path).step(replace(STEP, step=1, tokens_per_second=None, grad_norm=None))
    line = out.getvalue()
    assert "tok/s n/a" in line
    assert "|g| n/a" in line
    assert "left n/a" in line


def test_time_left_of_a_resumed_run_waits_for_the_first_pace(tmp_path: Path, out: io.StringIO) -> None:
    """Its first steps are reported together, at one moment: no time lies between them, which is not no time left."""
    clock = Clock()
    metrics = metrics_to(out, tmp_path, clock=clock)
    for step in (8, 9, 10):
        metrics.step(replace(STEP, step=step, tokens_per_second=None))
    assert "left n/a" in out.getvalue().splitlines()[-1]
    clock.now = 20.0
    metrics.step(replace(STEP, step=20))
    assert "left 40s" in out.getvalue().splitlines()[-1]


def test_time_left_leaves_out_the_first_interval(tmp_path: Path, out: io.StringIO) -> None:
    clock = Clock()
    metrics = metrics_to(out, tmp_path, clock=clock)
    clock.now = 100.0  # warm-up and compilation
    metrics.step(replace(STEP, step=1))
    clock.now = 118.0  # then 2 s a step
    metrics.step(replace(STEP, step=10))
    assert "left 1m00s" in out.getvalue().splitlines()[-1]


def test_non_finite_loss_is_named_on_the_console_and_null_in_the_file(tmp_path: Path, out: io.StringIO) -> None:
    metrics_to(out, tmp_path).step(replace(STEP, loss=math.nan, grad_norm=math.inf, applied=False, skipped=1))
    (record,) = records(tmp_path, "train")
    assert record["loss"] is None
    assert record["non_finite"] == {"loss": "nan", "ppl": "nan", "grad_norm": "inf"}
    assert "loss nan" in out.getvalue()
    assert "skipped 1!" in out.getvalue()


def test_only_rank_0_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = load_run_config(None, [], {"report_to": "wandb", "output_dir": tmp_path})
    metrics = Metrics(tmp_path, 1, config, 40)
    metrics.header(SUMMARY)
    metrics.step(STEP)
    metrics.evaluation(Held(2.0), 10)
    metrics.finding(Finding("a", "b", "c"))
    metrics.close(tmp_path / "final")
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr().out == ""


def test_a_dry_run_leaves_an_old_run_alone(tmp_path: Path, out: io.StringIO) -> None:
    (tmp_path / FILE_NAME).write_text('{"kind": "train", "step": 1}\n')
    metrics = metrics_to(out, tmp_path, dry_run=True)
    metrics.header(SUMMARY)
    metrics.close(None, "dry run")
    assert [p.name for p in tmp_path.iterdir()] == [FILE_NAME]
    assert "dry run" in out.getvalue()
    assert "minimind report" not in out.getvalue()


def test_best_is_kept_over_a_resume(tmp_path: Path, out: io.StringIO) -> None:
    best = Best()
    first = metrics_to(out, tmp_path, best=best)
    first.step(STEP)
    best.observe(10, 2.0)
    first.evaluation(Held(2.0), 10)
    second = metrics_to(out, tmp_path, resumed_step=10, best=best)
    second.step(replace(STEP, step=20))
    second.evaluation(Held(2.5), 20)
    second.close(tmp_path / "final")
    assert [r["best"] for r in records(tmp_path, "eval")] == [True, False]
    assert "held-out 2.5000 (best 2.0000 at step 10)" in out.getvalue()


def test_the_same_finding_is_printed_once_and_kept_always(tmp_path: Path, out: io.StringIO) -> None:
    metrics = metrics_to(out, tmp_path)
    for step in (1, 2):
        metrics.finding(Finding("lr-high", "lr is 1 [bold]", "lower it", step, {"lr": math.inf}))
    assert out.getvalue().count("lr is 1 [bold]") == 1
    assert [r["values"] for r in records(tmp_path, "finding")] == [{"lr": "inf"}] * 2


@pytest.mark.parametrize(
    ("kind", "reason", "with_model", "expected"),
    [
        ("pretrain", "finished", True, ["runs/first/final", "minimind generate runs/first", "sft_fp16.json"]),
        ("sft", "finished", True, ["minimind chat runs/first", "minimind report runs/first"]),
        ("sft", "stopped", False, ["--resume"]),
    ],
)
def test_the_last_lines_say_what_to_type(
    tmp_path: Path, out: io.StringIO, kind: str, reason: str, with_model: bool, expected: list[str]
) -> None:
    metrics = metrics_to(out, tmp_path)
    metrics.header(replace(SUMMARY, kind=kind))
    metrics.step(replace(STEP, step=40))
    model = Path("runs/first/final") if with_model else None
    metrics.close(model, reason)
    metrics.close(model, reason)  # a second close is harmless
    tail = out.getvalue().split("left")[-1]
    assert f"{reason} after" in tail
    for text in expected:
        assert text in tail
    assert len(records(tmp_path, "end")) == 1


def test_a_full_disk_is_one_finding_and_not_the_end(
    tmp_path: Path, out: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics = metrics_to(out, tmp_path)

    def full(record: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(metrics._file, "append", full)
    metrics.step(replace(STEP, step=10))
    metrics.step(replace(STEP, step=20))
    assert out.getvalue().count("No space left on device") == 1
    assert "20/40" in out.getvalue()


def test_a_terminal_gets_one_line_rewritten_in_place(tmp_path: Path, out: io.StringIO) -> None:
    metrics = metrics_to(out, tmp_path, terminal=True, width=80)
    for step in range(1, 41):
        metrics.step(replace(STEP, step=step))
    metrics.evaluation(Held(2.1), 40)
    metrics.close(None)
    screen = list(_screen(out.getvalue()))
    assert sum("/40  loss" in line for line in screen) == 1
    assert any("held-out" in line for line in screen)
    assert max(len(line) for line in screen) <= 80


def _screen(output: str) -> Iterator[str]:
    """What a terminal shows after `output`: carriage return, erase line and cursor up, as rich's Live uses them."""
    import re

    lines, row, column = [""], 0, 0
    for token in re.findall(r"\x1b\[[0-9;?]*[a-zA-Z]|.|\n", output):
        if token == "\n":
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        elif token == "\r":
            column = 0
        elif token.startswith("\x1b["):
            if token.endswith("A"):
                row -= int(token[2:-1])
            elif token.endswith("K"):
                lines[row] = ""
        else:
            lines[row] = lines[row][:column].ljust(column) + token + lines[row][column + 1 :]
            column += 1
    yield from lines


@pytest.mark.parametrize("width", [20, 40, 60, 80, 120])
def test_fields_fit_and_the_important_ones_stay(width: int) -> None:
    fields = progress_fields(STEP, 7.4, 40, 60.0)
    kept = fields_within(fields, width)
    assert len("  ".join(f"{label} {value}" for label, value in kept)) <= width
    assert kept[0][0] == "step"
    assert fields_within(fields, None) == [(label, value) for _, label, value in fields]


def test_a_loss_scale_is_shown_only_where_there_is_one() -> None:
    assert "scale" not in [f[1] for f in progress_fields(replace(STEP, loss_scale=None), 7.4, 40, None)]
    assert ("scale", "65536") in [f[1:] for f in progress_fields(STEP, 7.4, 40, None)]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (950, "950"), (12_345, "12.3k"), (999_700, "1.00M"), (25_829_888, "25.8M"), (1.41e9, "1.41B")],
)
def test_count(value: float, text: str) -> None:
    assert count(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "n/a"), (math.inf, "n/a"), (45.4, "45s"), (187, "3m07s"), (7500, "2h05m"), (273_600, "3d04h")],
)
def test_duration(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def test_losses_by_source_go_to_the_file_the_console_and_trackers(
    out: io.StringIO, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics = metrics_to(out, tmp_path)
    sent: list[dict[str, float]] = []
    monkeypatch.setattr(metrics, "_to_trackers", lambda section, record: sent.append(dict(record)))
    sources = (SourceLoss("data/web.jsonl", 3.25, 100), SourceLoss("data/books", math.nan, 7))
    metrics.step(replace(STEP, sources=sources))
    assert records(tmp_path, "source") == [
        {"kind": "source", "step": 10, "source": "data/web.jsonl", "loss": 3.25, "tokens": 100},
        {
            "kind": "source",
            "step": 10,
            "source": "data/books",
            "loss": None,
            "tokens": 7,
            "non_finite": {"loss": "nan"},
        },
    ]
    assert "sources" not in records(tmp_path, "train")[0]
    assert "loss of web.jsonl 3.2500  loss of books nan" in out.getvalue()
    assert sent[0]["loss of data/web.jsonl"] == 3.25


def test_two_sources_with_one_file_name_are_shown_with_their_paths() -> None:
    sources = (SourceLoss("a/x.jsonl", 3.25, 100), SourceLoss("b/x.jsonl", 3.5, 7))
    labels = [label for _, label, _ in progress_fields(replace(STEP, sources=sources), 1.0, 40, None)]
    assert labels[-2:] == ["loss of a/x.jsonl", "loss of b/x.jsonl"]
