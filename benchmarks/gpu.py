"""One command for one GPU: speed, MFU, memory and time to a loss, for every precision and ZeRO form.

    python benchmarks/gpu.py [--data F] [--budget 450] [--only "bf16,bare bf16"] [--json OUT]

Forms: fp16, bf16, fp32, ZeRO-2, ZeRO-2 with offload and Muon through our trainer, compiled and eager, bf16 also with
attention by dense mask; the bare PyTorch loop (side_bare.py) and Hugging Face Trainer (side_huggingface.py) beside
them. All processes start at once, so that imports and compilation overlap; then one works at a time, round by round in
turn. After each timed round the held-out loss is evaluated off the clock, which gives the time and tokens to --target
(starting, compiling and the --warmup steps don't count). --budget seconds bound everything: rounds end when the next
one would not fit, and a form that is not ready by half the budget or fails is named as such, with its error, never
silently left out.

MFU: minimind/base/peaks.py names convention and peaks. "of bare loop": against it in the same precision and compile
mode. The last lines check what was promised: fp16 against fp32 at least 1.8 times as fast at half the memory, and on an
H200 1.5 million tokens/s at 25% MFU. On a machine without a GPU it refuses, unless --cpu is given to try the script
out: the figures then say nothing.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import options as shared
from benchmarks.corpus import Corpus
from benchmarks.figures import markdown, write_json
from benchmarks.workers import Job, Round, Worker, WorkerError
from minimind.base.errors import UserError
from minimind.base.hardware import detect
from minimind.base.peaks import mfu, peak_flops
from minimind.model.transformer import ModelConfig, Transformer

READY_SHARE = 0.5  # of the budget: until then a form must have done its warm-up
SPEED_PROMISE, MEMORY_PROMISE = 1.8, 0.5  # fp16 against fp32
H200_SPEED, H200_MFU = 1.5e6, 0.25  # bf16, compiled


@dataclass(frozen=True)
class Form:
    """One line of the table."""

    name: str
    side: str
    precision: str
    deepspeed_config: str = ""
    compiled: bool = True
    attention: str = "auto"

    def job(self, options: argparse.Namespace, text: Corpus) -> Job:
        """What its process does."""
        compiling = self.compiled and not options.cpu
        changes: dict[str, Any] = {
            "precision": self.precision,
            "compile": compiling,
            "micro_batch": options.micro_batch,
            "total_steps": options.total_steps,
        }
        if self.deepspeed_config:
            changes["deepspeed_config"] = f"ds_configs/{self.deepspeed_config}.json"
            changes["settings"] = {
                "compile": "on" if compiling else "off",
                "emulate_fp16": options.cpu,
                "attention_backend": self.attention,
            }
        return shared.job(options, text, self.side, **changes)


FORMS = (
    Form("bf16", "ours", "bf16", "bf16"),
    Form("bf16 eager", "ours", "bf16", "bf16", compiled=False),
    Form("bf16 dense mask", "ours", "bf16", "bf16", attention="mask"),
    Form("bf16 eager dense mask", "ours", "bf16", "bf16", compiled=False, attention="mask"),
    Form("bf16 muon", "ours", "bf16", "muon"),
    Form("bf16 ZeRO-2", "ours", "bf16", "bf16_zero2"),
    Form("bf16 ZeRO-2 offload", "ours", "bf16", "bf16_zero2_offload"),
    Form("fp16", "ours", "fp16", "fp16"),
    Form("fp16 eager", "ours", "fp16", "fp16", compiled=False),
    Form("fp32", "ours", "fp32", "fp32"),
    Form("bare bf16", "bare", "bf16"),
    Form("bare bf16 eager", "bare", "bf16", compiled=False),
    Form("bare fp16", "bare", "fp16"),
    Form("bare fp32", "bare", "fp32"),
    Form("HF Trainer bf16", "hf", "bf16", compiled=False),
    Form("HF Trainer bf16 compiled", "hf", "bf16"),
)


@dataclass
class Result:
    """What one form did; ``error`` says why there is less than asked for."""

    form: Form
    rounds: list[Round] = field(default_factory=list)
    bits: list[float] = field(default_factory=list)
    peak: int = 0
    error: str = ""

    @property
    def speed(self) -> float | None:
        return median(item.speed for item in self.rounds) if self.rounds else None

    def to_target(self, target: float) -> tuple[float, int] | None:
        """Seconds and trained tokens until held-out bits a byte were at ``target`` or below, or None."""
        seconds, tokens = 0.0, 0
        for item, bits in zip(self.rounds, self.bits, strict=False):
            seconds, tokens = seconds + item.seconds, tokens + item.tokens
            if bits <= target:
                return seconds, tokens
        return None


class Budget:
    """Seconds that are left of the whole benchmark."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._end, self.seconds = clock, clock() + seconds, seconds

    def left(self) -> float:
        return self._end - self._clock()

    def allows(self, seconds: float) -> bool:
        """Whether something that takes about ``seconds`` still fits."""
        return self.left() > seconds


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    hardware = detect()
    if hardware.device_type != "cuda" and not options.cpu:
        raise UserError("no CUDA GPU here; benchmarks/trainer.py measures on a CPU, --cpu tries this script out")
    budget = Budget(options.budget)
    text = shared.corpus(options)
    results = run(options, text, budget)
    report(options, hardware.describe(), hardware.name, results)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = shared.parser(__doc__)
    parser.add_argument("--budget", type=float, default=450.0, help="seconds for everything")
    parser.add_argument("--rounds", type=shared.positive, default=8)
    parser.add_argument("--steps", type=shared.positive, default=25, help="optimizer steps a round")
    parser.add_argument("--warmup", type=shared.positive, default=10)
    parser.add_argument("--micro-batch", type=shared.positive, default=64, help="rows a step; less for a small GPU")
    parser.add_argument("--target", type=float, default=2.6, help="held-out bits a byte")
    parser.add_argument("--only", type=_forms, default=list(FORMS), help="comma-separated names")
    parser.add_argument("--cpu", action="store_true", help="run without a GPU, to try the script out")
    options = parser.parse_args(arguments)
    options.total_steps = options.warmup + options.rounds * options.steps
    return options


def _forms(text: str) -> list[Form]:
    known = {form.name: form for form in FORMS}
    unknown = [name for name in text.split(",") if name not in known]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(known)}")
    return [known[name] for name in text.split(",")]


def run(options: argparse.Namespace, text: Corpus, budget: Budget) -> list[Result]:
    """Start every form, wait for those that get ready, train them in turn."""
    results = [Result(form) for form in options.only]
    workers = [Worker(result.form.name, result.form.job(options, text)) for result in results]
    try:
        warm_up(results, workers, options.warmup, budget)
        for _ in range(options.rounds):
            for result, worker in zip(results, workers, strict=True):
                if not result.error:
                    one_round(result, worker, options.steps, budget)
    finally:
        for worker in workers:
            worker.close()
    return results


def warm_up(results: Sequence[Result], workers: Sequence[Worker], steps: int, budget: Budget) -> None:
    """All at once: imports, compilation (training and evaluating compile apart), the first steps.

    Notes the form that fails or is too late.
    """

    def start(worker: Worker) -> None:
        worker.train(steps)
        worker.ask("evaluate")

    pool = ThreadPoolExecutor(len(workers))
    waiting = [pool.submit(start, worker) for worker in workers]
    for result, worker, future in zip(results, workers, waiting, strict=True):
        try:
            future.result(timeout=max(0.0, budget.left() - (1 - READY_SHARE) * budget.seconds))
        except TimeoutError:
            result.error = f"not ready after {READY_SHARE * budget.seconds:.0f} s"
            worker.close()
        except WorkerError as error:
            result.error = str(error).strip().splitlines()[-1]
    pool.shutdown(wait=False, cancel_futures=True)


def one_round(result: Result, worker: Worker, steps: int, budget: Budget) -> None:
    """Train and evaluate, if the form's last round suggests that there is time."""
    expected = 2 * result.rounds[-1].seconds if result.rounds else 0.0
    if not budget.allows(expected):
        result.error = f"out of time after {len(result.rounds)} rounds"
        return
    try:
        answer = worker.ask(f"steps {steps}")
        result.rounds.append(Round(answer["tokens"], answer["seconds"], answer["cpu_seconds"]))
        result.peak = answer["peak"]
        result.bits.append(worker.ask("evaluate")["bits_per_byte"])
    except WorkerError as error:
        result.error = str(error).strip().splitlines()[-1]


def report(options: argparse.Namespace, machine: str, device: str, results: Sequence[Result]) -> None:
    """Table, promises, JSON."""
    model = Transformer(ModelConfig.preset(options.preset, vocab_size=options.vocab_size), seed=None)
    flops = model.flops_per_token(options.row_length)
    lines = figures(results, options, flops, device)
    print(
        f"{machine}; {options.preset}, micro-batch {options.micro_batch} x {options.row_length}; "
        f"MFU: {flops / 1e6:.0f} MFLOP a token, {_peak_text(device)}"
    )
    print(table(lines, options.target))
    for line in promises({line["form"]: line for line in lines}, device):
        print(line)
    about = {
        "machine": machine,
        "preset": options.preset,
        "flops_per_token": flops,
        "target": options.target,
        "micro_batch": options.micro_batch,
        "row_length": options.row_length,
    }
    write_json(options.json, about | {"results": lines})


def _peak_text(device: str) -> str:
    half, single = peak_flops(device, "bf16"), peak_flops(device, "fp32")
    if half is None or single is None:
        return "peak unknown, so MFU is n/a"
    return f"peak {half / 1e12:.0f} TFLOP/s in half, {single / 1e12:.0f} in fp32 (dense, data sheet)"


def figures(results: Sequence[Result], options: argparse.Namespace, flops: float, device: str) -> list[dict[str, Any]]:
    """Everything known of each form, for the table and the JSON; None where there is nothing."""
    speeds = {(item.form.precision, item.form.compiled): item.rounds for item in results if item.form.side == "bare"}
    return [_figures(item, speeds, options.target, flops, device) for item in results]


def _figures(
    result: Result, bare: Mapping[tuple[str, bool], Sequence[Round]], target: float, flops: float, device: str
) -> dict[str, Any]:
    form = result.form
    beside = bare.get((form.precision, form.compiled), [])
    pairs = list(zip(result.rounds, beside, strict=False)) if form.side != "bare" else []
    return {
        "form": form.name,
        "tokens_per_second": result.speed,
        "mfu": mfu(result.speed, flops, peak_flops(device, form.precision)) if result.speed else None,
        "peak_bytes": result.peak or None,
        "of_bare": median(own.speed / other.speed for own, other in pairs) if pairs else None,
        "to_target": result.to_target(target),
        "best_bits_per_byte": min(result.bits, default=None),
        "rounds": len(result.rounds),
        "note": result.error,
    }


def table(lines: Sequence[Mapping[str, Any]], target: float) -> str:
    """The figures as Markdown, ready for a README."""
    header = ["form", "tokens/s", "MFU", "peak memory", "of bare loop", f"to {target} bits/byte", "note"]
    return markdown(header, [_row(line) for line in lines])


def _row(line: Mapping[str, Any]) -> list[str]:
    def text(key: str, form: str, scale: float = 1.0) -> str:
        return "n/a" if line[key] is None else format(line[key] * scale, form)

    reached = line["to_target"]
    target = f"{reached[0]:.1f} s, {reached[1] / 1e3:,.0f}k tokens" if reached else "not reached"
    return [
        line["form"],
        text("tokens_per_second", ",.0f"),
        text("mfu", ".1%"),
        text("peak_bytes", ",.2f", 2**-30),
        text("of_bare", ".2f"),
        target,
        line["note"],
    ]


def promises(lines: Mapping[str, Mapping[str, Any]], device: str) -> list[str]:
    """fp16 against fp32, and on an H200 its targets: held or not, "n/a" where something was not measured."""
    said = [_half_against_single(lines.get("fp16"), lines.get("fp32"))]
    bf16 = lines.get("bf16")
    if "H200" in device and bf16 and bf16["tokens_per_second"]:
        speed, share = bf16["tokens_per_second"], bf16["mfu"]
        said.append(
            f"H200, bf16: {speed:,.0f} tokens/s ({_verdict(speed >= H200_SPEED)} {H200_SPEED:,.0f}), "
            f"MFU {share:.1%} ({_verdict(share >= H200_MFU)} {H200_MFU:.0%})"
        )
    return said


def _half_against_single(half: Mapping[str, Any] | None, single: Mapping[str, Any] | None) -> str:
    if not half or not single or not half["tokens_per_second"] or not single["tokens_per_second"]:
        return "fp16 against fp32: n/a, one of them was not measured"
    speed = half["tokens_per_second"] / single["tokens_per_second"]
    memory = half["peak_bytes"] / single["peak_bytes"]
    return (
        f"fp16 against fp32: {speed:.2f} times the speed ({_verdict(speed >= SPEED_PROMISE)} {SPEED_PROMISE}), "
        f"{memory:.2f} of the memory ({_verdict(memory <= MEMORY_PROMISE)} {MEMORY_PROMISE})"
    )


def _verdict(holds: bool) -> str:
    return "holds:" if holds else "MISSED:"


if __name__ == "__main__":
    shared.exit_cleanly(main)
