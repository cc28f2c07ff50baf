"""What benchmarks/gpu.py measures, and what came out: forms, their figures, the table, the targets."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from benchmarks import options as shared
from benchmarks.corpus import Corpus
from benchmarks.figures import markdown
from benchmarks.workers import Job, Round
from minimind.base.peaks import mfu, peak_flops

SPEED_PROMISE, MEMORY_PROMISE = 1.8, 0.5  # fp16 against fp32
TARGETS = {  # card -> (tokens/s, MFU) of "bf16": the first, then the next
    "H200": [(1.5e6, 0.25), (2.4e6, 0.41)],
    "RTX 3090": [(161_000, 0.38)],  # halves MiniMind's two hours (docs/performance.md)
}


@dataclass(frozen=True)
class Form:
    """One line of the table. ``rows`` a step: None for those of --micro-batch. ``mode``: torch.compile's."""

    name: str
    side: str
    precision: str
    deepspeed_config: str = ""
    compiled: bool = True
    attention: str = "auto"
    rows: int | None = None
    mode: str = "default"

    def job(self, options: argparse.Namespace, text: Corpus) -> Job:
        """What its process does."""
        compiling = self.compiled and not options.cpu
        changes: dict[str, Any] = {
            "precision": self.precision,
            "compile": compiling,
            "compile_mode": self.mode,
            "micro_batch": min(self.rows or options.micro_batch, options.micro_batch),
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


FORMS = (  # what the targets need comes first: on a small card they run in groups, in this order
    Form("bf16", "ours", "bf16", "bf16"),
    Form("bare bf16", "bare", "bf16"),
    Form("fp16", "ours", "fp16", "fp16"),
    Form("fp32", "ours", "fp32", "fp32"),
    Form("bf16 eager", "ours", "bf16", "bf16", compiled=False),
    Form("bare bf16 eager", "bare", "bf16", compiled=False),
    Form("HF Trainer bf16", "hf", "bf16", compiled=False),
    Form("HF Trainer bf16 compiled", "hf", "bf16"),
    Form("bf16 8 rows", "ours", "bf16", "bf16", rows=8),  # bound by launches? `minimind plan` assumes so
    Form("bf16 eager 8 rows", "ours", "bf16", "bf16", compiled=False, rows=8),
    Form("bare bf16 CUDA graphs", "bare", "bf16", mode="reduce-overhead"),  # what they would gain at most
    Form("bf16 dense mask", "ours", "bf16", "bf16", attention="mask"),
    Form("bf16 eager dense mask", "ours", "bf16", "bf16", compiled=False, attention="mask"),
    Form("bf16 muon", "ours", "bf16", "muon"),
    Form("bf16 ZeRO-2", "ours", "bf16", "bf16_zero2"),
    Form("bf16 ZeRO-2 offload", "ours", "bf16", "bf16_zero2_offload"),
    Form("fp16 eager", "ours", "fp16", "fp16", compiled=False),
    Form("bare fp16", "bare", "fp16"),
    Form("bare fp32", "bare", "fp32"),
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


def figures(results: Sequence[Result], options: argparse.Namespace, flops: float, device: str) -> list[dict[str, Any]]:
    """Everything known of each form, for the table and the JSON; None where there is nothing."""
    bare = [item for item in results if item.form.side == "bare" and item.form.mode == "default"]
    speeds = {(item.form.precision, item.form.compiled): item.rounds for item in bare}
    return [_figures(item, speeds, options.target, flops, device) for item in results]


def _figures(
    result: Result, bare: Mapping[tuple[str, bool], Sequence[Round]], target: float, flops: float, device: str
) -> dict[str, Any]:
    form = result.form
    alike = form.rows is None and (form.side != "bare" or form.mode != "default")
    beside = bare.get((form.precision, form.compiled), []) if alike else []
    pairs = list(zip(result.rounds, beside, strict=False))
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
    """fp16 against fp32, and the card's own targets: held or not, "n/a" where something was not measured."""
    said = [_half_against_single(lines.get("fp16"), lines.get("fp32"))]
    bf16 = lines.get("bf16")
    if bf16 and bf16["tokens_per_second"]:
        said += [_target(bf16, name, *goal) for name, goals in TARGETS.items() if name in device for goal in goals]
    return said


def _target(line: Mapping[str, Any], card: str, speed: float, share: float) -> str:
    return (
        f"{card}, bf16: {line['tokens_per_second']:,.0f} tokens/s "
        f"({_verdict(line['tokens_per_second'] >= speed)} {speed:,.0f}), "
        f"MFU {line['mfu']:.1%} ({_verdict(line['mfu'] >= share)} {share:.0%})"
    )


def _half_against_single(half: Mapping[str, Any] | None, single: Mapping[str, Any] | None) -> str:
    measured = ("tokens_per_second", "peak_bytes")
    if not half or not single or not all(line[name] for line in (half, single) for name in measured):
        return "fp16 against fp32: n/a, one of them was not measured"
    speed = half["tokens_per_second"] / single["tokens_per_second"]
    memory = half["peak_bytes"] / single["peak_bytes"]
    return (
        f"fp16 against fp32: {speed:.2f} times the speed ({_verdict(speed >= SPEED_PROMISE)} {SPEED_PROMISE}), "
        f"{memory:.2f} of the memory ({_verdict(memory <= MEMORY_PROMISE)} {MEMORY_PROMISE})"
    )


def _verdict(holds: bool) -> str:
    return "holds:" if holds else "MISSED:"
