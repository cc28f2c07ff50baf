"""The logic of benchmarks/gpu.py without a GPU: groups, budget, failures, MFU, table, promises, options."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import gpu, gpu_forms
from benchmarks.gpu import Budget
from benchmarks.gpu_forms import FORMS, Form, Result
from benchmarks.workers import Round, WorkerError
from minimind.base.errors import UserError
from minimind.base.hardware import Hardware
from minimind.base.peaks import mfu, peak_flops
from minimind.model.transformer import ModelConfig, Transformer
from tests.waiting import PATIENCE


class FakeWorker:
    """Answers as a side does; each round takes ``seconds``."""

    def __init__(self, seconds: float = 1.0, fails: bool = False) -> None:
        self.seconds, self.fails, self.bits = seconds, fails, 4.0

    def ask(self, command: str) -> dict[str, Any]:
        if self.fails:
            raise WorkerError("side: the process ended\nCUDA out of memory")
        self.bits -= 0.5 if command == "evaluate" else 0.0
        return {"tokens": 1000, "seconds": self.seconds, "cpu_seconds": 1.0, "peak": 2**30, "bits_per_byte": self.bits}

    def train(self, steps: int) -> None:
        self.ask(f"steps {steps}")

    def close(self) -> None:
        pass

    def kill(self) -> None:
        pass


class HangingWorker(FakeWorker):
    """Answers nothing until it is ended, as a process does whose kernel never comes back."""

    def __init__(self) -> None:
        super().__init__()
        self.ended = threading.Event()

    def ask(self, command: str) -> dict[str, Any]:
        assert self.ended.wait(PATIENCE)
        raise WorkerError("hanging: the process ended\n")

    def kill(self) -> None:
        self.ended.set()


class BabblingWorker(FakeWorker):
    """Answers what is no answer."""

    def ask(self, command: str) -> dict[str, Any]:
        return {}


def test_mfu_is_flops_over_the_named_peak() -> None:
    flops = Transformer(ModelConfig.preset("26m"), seed=None).flops_per_token(512)
    assert flops == pytest.approx(6 * 25_829_888 + 6 * 8 * 512 * 512)
    peak = peak_flops("NVIDIA H200", "bf16")
    assert peak == 989.4e12
    assert mfu(1.5e6, flops, peak) == pytest.approx(0.254, abs=0.001)
    assert mfu(1.5e6, flops, None) is None


def test_peaks_by_precision_and_card() -> None:
    assert peak_flops("NVIDIA GeForce RTX 3090", "fp16") == 71e12
    assert peak_flops("NVIDIA GeForce RTX 3090", "fp32") == 35.6e12
    assert peak_flops("NVIDIA H100 PCIe", "bf16") == 756e12  # the more exact name wins
    assert peak_flops("AMD EPYC", "bf16") is None


def test_the_budget_runs_out() -> None:
    now = [0.0]
    budget = Budget(10.0, clock=lambda: now[0])
    assert budget.allows(9.0)
    now[0] = 8.0
    assert budget.left() == 2.0
    assert not budget.allows(2.5)


def test_a_round_that_would_not_fit_is_not_begun() -> None:
    now = [0.0]
    result, budget = Result(FORMS[0]), Budget(5.0, clock=lambda: now[0])
    gpu.one_round(result, FakeWorker(seconds=3.0), 4, budget)  # type: ignore[arg-type]
    gpu.one_round(result, FakeWorker(seconds=3.0), 4, budget)  # type: ignore[arg-type]
    assert len(result.rounds) == 1
    assert result.error == "out of time after 1 rounds"


def test_a_form_that_fails_says_so_and_the_others_go_on() -> None:
    results, budget = [Result(form) for form in FORMS[:2]], Budget(60.0)
    workers: Any = [FakeWorker(fails=True), FakeWorker()]
    gpu.warm_up(results, workers, 1, budget)
    assert [result.error for result in results] == ["CUDA out of memory", ""]


def test_a_round_that_hangs_is_ended_with_the_budget() -> None:
    result, worker = Result(FORMS[0]), HangingWorker()
    gpu.one_round(result, worker, 4, Budget(0.05))  # type: ignore[arg-type]
    assert worker.ended.is_set() and result.error == "hanging: the process ended"


def test_whatever_goes_wrong_in_a_form_stays_in_its_line() -> None:
    results, budget = [Result(form) for form in FORMS[:2]], Budget(60.0)
    workers: Any = [BabblingWorker(), FakeWorker()]
    gpu.warm_up(results, workers, 1, budget)
    for result, worker in zip(results, workers, strict=True):
        gpu.one_round(result, worker, 4, budget)
    assert "tokens" in results[0].error and not results[0].rounds
    assert len(results[1].rounds) == 1 and not results[1].error


@pytest.mark.parametrize(("memory", "count"), [(150_000_000_000, len(FORMS)), (25_000_000_000, 3), (None, 1)])
def test_a_card_takes_as_many_forms_at_once_as_it_holds(memory: int | None, count: int) -> None:
    results = [Result(form) for form in FORMS]
    groups = gpu.grouped(results, gpu.together(Hardware("cuda", True, True, "card", memory)))
    assert [result for group in groups for result in group] == results
    assert len(groups[0]) == count


def test_compilers_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    environment: dict[str, str] = {}
    monkeypatch.setattr(gpu.os, "environ", environment)
    monkeypatch.setattr(gpu.os, "cpu_count", lambda: 16)
    gpu.limit_compilers(3)
    assert environment["TORCHINDUCTOR_COMPILE_THREADS"] == "5"
    gpu.limit_compilers(100)
    assert environment["TORCHINDUCTOR_COMPILE_THREADS"] == "5"  # what somebody set stays


def test_groups_run_one_after_the_other_and_every_round_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alive: list[str] = []

    class Alive(FakeWorker):
        def __init__(self, name: str, job: object) -> None:
            super().__init__()
            self.name = name
            alive.append(name)
            assert len(alive) <= 2

        def close(self) -> None:
            alive.remove(self.name)

    kept: list[int] = []
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")
    monkeypatch.setattr(gpu, "Worker", Alive)
    monkeypatch.setattr(gpu.shared, "corpus", lambda _: SimpleNamespace(tokenizer="", train="", held_out=""))
    monkeypatch.setattr(gpu, "write_json", lambda path, found: kept.append(sum(f["rounds"] for f in found["results"])))
    gpu.main(["--cpu", "--only", "bf16,fp32,bare bf16", "--together", "2", "--rounds", "2", "--json", str(tmp_path)])
    assert not alive
    assert kept == [2, 4, 5, 6, 6]


def test_time_to_the_target_adds_the_rounds_up() -> None:
    result, worker = Result(FORMS[0]), FakeWorker(seconds=2.0)
    for _ in range(4):
        gpu.one_round(result, worker, 4, Budget(60.0))  # type: ignore[arg-type]
    assert result.bits == [3.5, 3.0, 2.5, 2.0]
    assert result.to_target(2.6) == (6.0, 3000)
    assert result.to_target(1.0) is None


def line(speed: float | None, memory: int) -> dict[str, Any]:
    return {"tokens_per_second": speed, "peak_bytes": memory}


def test_the_promise_is_checked_not_assumed() -> None:
    [held] = gpu_forms.promises({"fp16": line(200.0, 4), "fp32": line(100.0, 10)}, "RTX 3090")
    assert held == "fp16 against fp32: 2.00 times the speed (holds: 1.8), 0.40 of the memory (holds: 0.5)"
    [missed] = gpu_forms.promises({"fp16": line(150.0, 6), "fp32": line(100.0, 10)}, "RTX 3090")
    assert missed.count("MISSED") == 2
    assert "n/a" in gpu_forms.promises({"fp16": line(None, 6), "fp32": line(100.0, 10)}, "RTX 3090")[0]


def test_cards_have_targets_of_their_own() -> None:
    _, first, then = gpu_forms.promises({"bf16": line(1.6e6, 1) | {"mfu": 0.24}}, "NVIDIA H200")
    assert first == "H200, bf16: 1,600,000 tokens/s (holds: 1,500,000), MFU 24.0% (MISSED: 25%)"
    assert then == "H200, bf16: 1,600,000 tokens/s (MISSED: 2,400,000), MFU 24.0% (MISSED: 41%)"
    _, said = gpu_forms.promises({"bf16": line(162e3, 1) | {"mfu": 0.39}}, "NVIDIA GeForce RTX 3090")
    assert said == "RTX 3090, bf16: 162,000 tokens/s (holds: 161,000), MFU 39.0% (holds: 38%)"


def test_the_table_compares_with_the_bare_loop_of_the_same_kind() -> None:
    ours, eager = Result(Form("bf16", "ours", "bf16")), Result(Form("e", "ours", "bf16", compiled=False))
    bare, late = (
        Result(Form("bare", "bare", "bf16")),
        Result(Form("fp16", "ours", "fp16"), error="not ready after 225 s"),
    )
    for result, seconds in ((ours, 1.0), (eager, 1.0), (bare, 0.5)):
        result.rounds, result.bits, result.peak = [Round(1000, seconds, 1.0)] * 2, [3.0, 2.5], 2**31
    options = gpu.parse(["--target", "2.6"])
    lines = gpu_forms.figures([ours, eager, bare, late], options, 1.7e8, "NVIDIA H200")
    assert [entry["of_bare"] for entry in lines] == [0.5, None, None, None]
    rows = gpu_forms.table(lines, 2.6).splitlines()
    assert "2.0 s, 2k tokens" in rows[2]
    assert "2.00" in rows[2]
    assert "n/a" in rows[5] and "not ready after 225 s" in rows[5]


def test_unknown_forms_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        gpu.parse(["--only", "bf16,fp8"])
    assert "'fp8' is none of bf16" in capsys.readouterr().err
    assert [form.name for form in gpu.parse(["--only", "fp16"]).only] == ["fp16"]


def test_without_a_gpu_it_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "detect", lambda: Hardware("cpu", False, True))
    with pytest.raises(UserError, match="no CUDA GPU"):
        gpu.main([])


def test_every_form_has_its_config_and_side(files: dict[str, Any]) -> None:
    from benchmarks.corpus import Corpus
    from tests.support import DS_CONFIGS

    options = gpu.parse([])
    for form in FORMS:
        job = form.job(options, Corpus(*[files["pretrain"]] * 3))
        assert (DS_CONFIGS.parent / job.deepspeed_config).is_file()
        assert job.total_steps == options.warmup + options.rounds * options.steps
        assert job.compile == form.compiled
        assert job.micro_batch == (form.rows or 64)
        if form.side == "ours":
            assert job.settings["compile"] == ("on" if form.compiled else "off")
            assert job.settings["attention_backend"] == ("mask" if "mask" in form.name else "auto")
