"""The logic of the CPU benchmarks: crossings, memory lines, shares, what each side counts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks import cadence, memory, scaling, time_to_loss, trainer
from benchmarks.cadence import Costs
from benchmarks.llama import cut
from benchmarks.side_huggingface import Padder
from benchmarks.side_minimind import LENGTH, MiniMindLoop, learning_rate, padded
from benchmarks.time_to_loss import Course, race
from benchmarks.workers import Job, Round, Worker, WorkerError, alternate
from minimind.base.hardware import Hardware
from minimind.text.tokenizer import PAD_ID
from tests.support import DS_CONFIGS


class FakeWorker:
    """Loses ``gain`` bits a byte in each stretch."""

    def __init__(self, gain: float, log: list[str], name: str) -> None:
        self.gain, self.bits, self.log, self.name = gain, 5.0, log, name

    def train(self, steps: int) -> Round:
        self.bits -= self.gain
        self.log.append(self.name)
        return Round(100 * steps, 2.0 * steps, 1.0)

    def ask(self, _: str) -> dict[str, Any]:
        return {"bits_per_byte": self.bits}


def test_our_recipes_keep_abreast_of_minimind() -> None:
    log: list[str] = []
    workers: Any = {"minimind": FakeWorker(0.5, log, "m"), "muon": FakeWorker(1.0, log, "o")}
    courses = race(workers, dict.fromkeys(workers, 20), every=5, target=None)
    assert log == ["m", "o", "m", "m", "o", "m"]  # muon trains only when it is behind
    target = courses["minimind"].best
    assert courses["minimind"].crossing(target) == (2000, 40.0, 3.0)
    assert courses["muon"].crossing(target) == (1000, 20.0, 3.0)
    assert time_to_loss.table([(target, courses)]).splitlines()[-1].count("0.50 (0.50..0.50)") == 2


def test_a_target_ends_the_race_sooner() -> None:
    workers: Any = {"minimind": FakeWorker(0.5, [], "m"), "muon": FakeWorker(1.0, [], "o")}
    courses = race(workers, dict.fromkeys(workers, 100), every=5, target=4.2)
    assert courses["minimind"].steps == 10
    assert courses["muon"].steps == 5


def test_a_recipe_that_never_gets_there_is_said_so() -> None:
    workers: Any = {"minimind": FakeWorker(0.5, [], "m"), "adamw": FakeWorker(0.1, [], "a")}
    courses = race(workers, dict.fromkeys(workers, 12), every=5, target=None)
    assert [course.steps for course in courses.values()] == [12, 12]
    won = {name: Course([(1, 1.0, 0.0)], [1]) for name in courses}
    table = time_to_loss.table([(courses["minimind"].best, courses), (1.0, won)])
    assert "not reached in 1 of 2 round(s)" in table


def test_a_recipe_trains_no_longer_than_it_is_planned_for() -> None:
    workers: Any = {"minimind": FakeWorker(0.5, [], "m"), "muon": FakeWorker(0.1, [], "o")}
    courses = race(workers, {"minimind": 20, "muon": 7}, every=5, target=None)
    assert [course.steps for course in courses.values()] == [20, 7]
    assert time_to_loss.parse(["--plan", "muon=7"]).plan == {"muon": 7}
    for wrong in ("lion=7", "minimind=7", "muon=0", "muon"):
        with pytest.raises(SystemExit):
            time_to_loss.parse(["--plan", wrong])


def test_shares_need_minimind_at_the_target() -> None:
    courses = {"minimind": Course(), "muon": Course()}
    courses["minimind"].add(5, 100, 1.0, 4.0)
    courses["muon"].add(5, 100, 1.0, 2.0)
    assert "n/a" in time_to_loss.table([(3.0, courses)])
    assert time_to_loss.parse(["--recipes", "muon"]).recipes == ["minimind", "muon"]


def test_rounds_alternate_after_a_warm_up() -> None:
    log: list[str] = []
    workers: Any = {name: FakeWorker(0.0, log, name) for name in "ab"}
    measured = alternate(workers, rounds=2, steps=3, warmup=1)
    assert log == ["a", "b", "a", "b", "a", "b"]
    assert [item.tokens for item in measured["a"]] == [300, 300]


def test_speed_table_has_a_ratio_for_every_other_side() -> None:
    rounds = {"ours": [Round(200, 1.0, 1.0)] * 5, "hf": [Round(100, 1.0, 1.0)] * 5}
    found = trainer.results(rounds)
    assert found["hf"]["ratios"] == [2.0] * 5
    assert "ratios" not in found["ours"]
    table = trainer.table(rounds, {"ours": "bf16", "hf": "bf16, emulated"}).splitlines()
    assert "2.00 (2.00..2.00)" in table[-1] and "bf16, emulated" in table[-1]


def test_a_side_that_emulates_says_so() -> None:
    plain, half = Hardware("cpu", fp16=False, bf16=False), Hardware("cpu", fp16=False, bf16=True)
    assert [trainer.computed_in(name, plain) for name in ("fp32", "bf16", "fp16")] == [
        "fp32",
        "bf16, emulated",
        "fp16, emulated",
    ]
    assert trainer.computed_in("bf16", half) == "bf16"


@pytest.mark.parametrize("name", ["fp32", "bf16", "muon"])
def test_every_side_gets_the_precision_of_the_json(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Job] = []
    monkeypatch.setattr(trainer, "Worker", lambda side, job: started.append(job))
    options = trainer.parse(["--deepspeed_config", f"ds_configs/{name}.json"])
    text: Any = SimpleNamespace(tokenizer="", train="", held_out="")
    trainer.start(options, text)
    assert {job.side for job in started} == set(trainer.SIDES)
    assert {job.precision for job in started} == {"fp32" if name == "fp32" else "bf16"}


def test_our_copy_of_minimind_computes_in_its_jobs_precision() -> None:
    loop = object.__new__(MiniMindLoop)
    loop.device = torch.device("cpu")
    for loop.precision, dtype in [("fp32", torch.float32), ("bf16", torch.bfloat16)]:
        with loop._autocast():
            assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == dtype


def test_progress_is_told_from_the_first_step(capsys: pytest.CaptureFixture[str]) -> None:
    workers: Any = {"ours": FakeWorker(0.0, [], "ours")}
    alternate(workers, rounds=2, steps=3, warmup=2)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("warm-up: ours, step 1 of 2") and len(lines) == 2 + 1 + 2


def test_ours_is_always_a_side(capsys: pytest.CaptureFixture[str]) -> None:
    assert trainer.parse(["--sides", "hf,ours"]).sides == ["ours", "hf"]
    with pytest.raises(SystemExit):
        trainer.parse(["--sides", "lightning"])
    assert "'lightning' is none of ours" in capsys.readouterr().err


def test_the_largest_micro_batch_lies_on_the_measured_line() -> None:
    peaks = {8: 2 * 2**30, 16: 3 * 2**30}  # 1 GiB by 8 rows
    assert memory.largest(peaks, 10 * 2**30) == 8 + 7 * 8
    assert memory.largest({8: 2**30}, 10 * 2**30) is None
    assert memory.largest({8: 2**30, 16: 2**30}, 10 * 2**30) is None
    table = memory.table({"ours": {8: 2**29}, "Hugging Face Trainer": {8: 2**30}}, 10 * 2**30)
    assert "512 MiB (0.50)" in table


def costs(held_out: int, step: float, save: float, evaluation: float) -> Costs:
    return Costs(4096, held_out, steps=[step], saves=[save], evaluations=[evaluation])


def test_shares_of_a_run_at_the_trainers_own_cadence() -> None:
    found = cadence.course(costs(12_000, step=10.0, save=1.0, evaluation=8.0), 150)
    assert (found.evaluate_every, found.evaluations) == (50, 3)
    assert (found.saves, found.periodic) == (3 + 8, 8)  # 15, 30, 45, best 50, 60, ...; not 105, 40 s after best 100
    whole = 1500 + 3 * 8 + 11
    assert (found.evaluating, found.saving) == (pytest.approx(24 / whole), pytest.approx(11 / whole))


def test_a_long_run_saves_by_time_and_stays_within_two_percent() -> None:
    found = cadence.course(costs(10**6, step=3.0, save=1.0, evaluation=250.0), 80_000)
    assert found.evaluations == 19 and found.periodic > 240_000 / 700  # ten minutes, not 1,000 steps of 3 s
    assert found.evaluating <= 0.02 and found.saving <= 0.02


def test_a_share_that_is_too_large_is_shown_as_such() -> None:
    quick = cadence.course(costs(10**6, step=0.01, save=0.5, evaluation=0.01), 150)
    slow = cadence.course(costs(10**6, step=3.0, save=0.5, evaluation=0.01), 150)
    assert (quick.saves, quick.periodic) == (1, 0)  # the end's alone is a quarter of 1.5 seconds
    lines = cadence.table([quick, slow]).splitlines()[2:]
    assert lines[0].rstrip(" |").endswith("NO") and lines[1].rstrip(" |").endswith("yes")


def test_efficiency_of_two_ranks() -> None:
    assert scaling.efficiencies([Round(100, 1.0, 1.0)], [Round(180, 1.0, 1.0)]) == [0.9]
    assert "1.00 MB" in scaling.table({"all_reduce": (2, 1_000_000)})


def test_hugging_face_counts_labels_with_a_loss() -> None:
    padder = Padder()
    batch = padder([{"input_ids": [1, 7, 8, 2]}, {"input_ids": [1, 2]}])
    assert padder.tokens == [3 + 1]
    assert batch["input_ids"].tolist() == [[1, 7, 8, 2], [1, 2, PAD_ID, PAD_ID]]
    assert batch["labels"].tolist() == [[1, 7, 8, 2], [1, 2, -100, -100]]
    assert batch["attention_mask"].sum() == 6


def test_minimind_pads_everything_to_340() -> None:
    batches: Iterator[torch.Tensor] = padded([[1, 9, 2], [1, 2]], 3)
    batch = next(batches)
    assert batch.shape == (3, LENGTH)
    assert batch[:, :3].tolist() == [[1, 9, 2], [1, 2, PAD_ID], [1, 9, 2]]
    assert (batch[:, 3:] == PAD_ID).all()


def test_minimind_rate_falls_from_the_first_step_to_a_tenth() -> None:
    assert learning_rate(0, 100, 5e-4) == pytest.approx(5e-4)
    assert learning_rate(100, 100, 5e-4) == pytest.approx(5e-5)
    assert learning_rate(1, 100, 5e-4) < 5e-4


def test_cutting_keeps_the_end_of_text() -> None:
    assert cut([1, 5, 6, 7, 2], 4) == [1, 5, 6, 2]
    assert cut([1, 2], 4) == [1, 2]


def test_the_bare_loop_and_hugging_face_take_the_rate_of_our_json() -> None:
    job = Job("bare", "tiny", "", "", "")
    assert job.peak_rate == json.loads((DS_CONFIGS / "bf16.json").read_text())["optimizer"]["params"]["lr"]
    assert replace(job, learning_rate=7e-4).peak_rate == 7e-4


def test_a_side_that_dies_shows_its_log(tmp_path: Path) -> None:
    missing = str(tmp_path / "none")
    worker = Worker("bare", Job("bare", "tiny", missing, missing, missing, threads=1))
    try:
        with pytest.raises(WorkerError, match="none"):
            worker.train(1)
    finally:
        worker.close()


@pytest.mark.slow
def test_two_sides_end_to_end(files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Real processes: our trainer through DeepSpeed and the bare loop train the same rows."""
    out = tmp_path / "speed.json"
    trainer.main(
        [
            "--data",
            str(files["pretrain"]),
            "--vocab-size",
            "330",
            "--row-length",
            "32",
            "--preset",
            "tiny",
            "--threads",
            "1",
            "--rounds",
            "2",
            "--steps",
            "2",
            "--warmup",
            "1",
            "--micro-batch",
            "2",
            "--sides",
            "bare",
            "--json",
            str(out),
        ]
    )
    import json

    found = json.loads(out.read_text())["results"]
    assert found["ours"]["trained_tokens"] == found["bare"]["trained_tokens"]
    assert all(0 < tokens <= 2 * 2 * 32 for tokens in found["ours"]["trained_tokens"])
    assert len(found["bare"]["ratios"]) == 2
    assert "bare PyTorch loop" in capsys.readouterr().out
