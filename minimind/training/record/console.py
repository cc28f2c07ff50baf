"""What a person sees of a run: a header, one progress line, findings, evaluations, and what to type next.

Contract. On a terminal the progress line is rewritten in place and fits its width (the least important
fields go first); elsewhere it is printed every `logging_steps` steps, whole, without colour or control codes.
A number that is not known, or can't be trusted yet, is "n/a".

Known weakness: output that bypasses sys.stdout and sys.stderr (C++ libraries, other ranks) can break into
the line.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from minimind.base.command_lines import typed
from minimind.base.defaults import SAMPLES
from minimind.base.display import console as showing_console
from minimind.base.display import shown
from minimind.base.findings import Finding
from minimind.base.hardware import advised_config

if TYPE_CHECKING:
    from minimind.training.record.samples import Written
    from minimind.training.values import RunSummary, StepMetrics

NA = "n/a"


@dataclass(frozen=True)
class Ending:
    """How a run ended; `evaluated` and `best` are (step, held-out loss) of the last and the best evaluation."""

    reason: str
    seconds: float
    model: Path | None
    last: StepMetrics | None
    evaluated: tuple[int, float] | None
    best: tuple[int, float] | None


def count(number: float) -> str:
    """A count in at most five characters or so: 950, 12.3k, 25.8M, 1.41B."""
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= size * 0.9995:
            value = number / size
            return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}{unit}"
    return f"{number:.0f}"


def duration(seconds: float | None) -> str:
    """45s, 3m07s, 2h05m, 3d04h; n/a for None."""
    if seconds is None or not math.isfinite(seconds):
        return NA
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"


def number(value: float | None, spec: str) -> str:
    """`value` by format `spec`; NaN and infinity by name, None as n/a."""
    return NA if value is None else format(value, spec) if math.isfinite(value) else str(value)


def progress_fields(m: StepMetrics, ppl: float, total: int, eta: float | None) -> list[tuple[int, str, str]]:
    """(rank, label, value) of each field, left to right; the higher its rank, the sooner it is left out."""
    rate = NA if m.tokens_per_second is None else count(m.tokens_per_second)
    fields: list[tuple[int, str, str] | None] = [
        (0, "step", f"{m.step:>{len(str(total))}}/{total}"),
        (1, "loss", number(m.loss, ".4f")),
        (5, "ppl", number(ppl, ".1f" if ppl < 1e4 else ".1e")),
        (4, "lr", number(m.lr, ".2e")),
        (3, "|g|", number(m.grad_norm, ".2f")),
        # Only fp16 has a scale; a skipped step is worth a field only once there is one.
        (7, "scale", f"{m.loss_scale:g}") if m.loss_scale is not None else None,
        (6, "skipped", str(m.skipped) + ("" if m.applied else "!")) if m.skipped or not m.applied else None,
        (2, "tok/s", rate),
        (1, "left", duration(eta)),
        *(
            (8, f"loss of {name}", number(part.loss, ".4f"))
            for name, part in zip(_short([part.source for part in m.sources]), m.sources, strict=True)
        ),
    ]
    return [field for field in fields if field is not None]


def _short(paths: Sequence[str]) -> Sequence[str]:
    """The last part of each path, if no two are alike."""
    names = [Path(path).name for path in paths]
    return names if len(set(names)) == len(names) else paths


def fields_within(fields: Sequence[tuple[int, str, str]], width: int | None) -> list[tuple[str, str]]:
    """The fields (label, value) that fit into `width` characters, in order; None: all of them."""
    kept = list(fields)
    while width is not None and len(kept) > 1 and len("  ".join(f"{k} {v}" for _, k, v in kept)) > width:
        kept.remove(max(kept, key=lambda field: field[0]))
    return [(label, value) for _, label, value in kept]


def header_rows(s: RunSummary) -> list[tuple[str, str]]:
    """The header as (label, text): every choice that decides what the run computes and how long it takes."""
    ranks = f"{s.world_size} rank" + ("s" if s.world_size != 1 else "")
    split = f"micro-batch {s.micro_batch_size} x accumulation {s.accumulation} x {ranks}"
    tokens = count(s.epoch_tokens * s.epochs)
    zero = f"ZeRO {s.zero_stage}" + (" with CPU offload" if s.offload else "") if s.zero_stage else "no ZeRO"
    clip = f"clipping {s.gradient_clipping:g}" if s.gradient_clipping else "no clipping"
    start = f", going on after step {s.resumed_step:,}" if s.resumed_step else ""
    time = f"about {duration(s.expected_seconds)}" if s.expected_seconds is not None else f"time {NA} before it runs"
    memory = f", about {s.memory_bytes / 2**30:.2f} GiB" if s.memory_bytes is not None else ""
    return [
        ("model", f"{s.model}, {s.parameters:,} parameters, vocabulary {s.vocab_size:,}"),
        ("data", f"{s.rows:,} rows of {s.row_length}, {s.fill:.1%} full, {count(s.epoch_tokens)} trainable tokens"),
        *([("", f"from {s.data}")] if s.data is not None else []),
        *(
            ("", f"{part['weight']:g} x {part['path']}: {part['epoch_rows']:,} rows an epoch of {part['rows']:,}")
            for part in s.sources or ()
        ),
        *([("", f"fields not read: {s.unread}")] if s.unread is not None else []),
        ("step", f"{s.rows_per_step} rows = {s.tokens_per_step:,} tokens ({split})"),
        ("run", f"{s.total_steps:,} steps, {s.epochs:.2f} epochs, {tokens} trainable tokens, {time}{start}"),
        *([("held-out", held_out)] if (held_out := _held_out(s)) else []),
        *([("samples", s.samples)] if s.samples is not None else []),
        ("precision", f"{s.precision}, {zero}, from {s.deepspeed_config}"),
        ("optimizer", f"{s.optimizer}, {clip}; {s.schedule}"),
        ("device", f"{s.device}{memory}"),
        ("output", s.output_dir),
    ]


def _held_out(s: RunSummary) -> str:
    return "; ".join(part for part in (s.held_out, s.eval_remark) if part is not None)


def next_steps(summary: RunSummary, ending: Ending) -> list[tuple[str, str]]:
    """What there is now and what a person would type next, as (label, text)."""
    run = summary.output_dir
    remark = [("", f"({summary.command_remark})")] if summary.command_remark else []
    look = ("look", typed("minimind", "report", run))
    if ending.model is None:
        go_on = ("go on", summary.resume_command or "the same command with --resume")
        return [go_on, *remark, look] if ending.reason == "stopped" else [look] if ending.last else []
    model = ("model", str(ending.model))
    if summary.kind == "sft":
        return [model, ("chat", typed("minimind", "chat", run)), look]
    # Which conversations nobody has said yet, and a line without them would train on the built-in ones.
    config = advised_config(summary.deepspeed_config, "sft", summary.precision)
    options = typed("--model", run, "--deepspeed_config", config)
    tune = ("tune", summary.tune_command or f"give conversations to launch/sft.py: --train-file, with {options}")
    return [model, ("try", f"{typed('minimind', 'generate', run)} --prompt '...'"), tune, *remark, look]


class ConsoleLog:
    """Prints for rank 0. `console` is rich's; tests give one that writes into a string."""

    def __init__(self, total_steps: int, logging_steps: int, console: Console | None = None) -> None:
        self._total = total_steps
        self._every = logging_steps
        self._out = console or showing_console(soft_wrap=True)
        self._live: Live | None = None
        self._printed: set[tuple[str, str]] = set()

    def header(self, summary: RunSummary) -> None:
        self._out.print(Text(f"MiniMind on DeepSpeed: {summary.kind}", style="bold"))
        self._print_rows(header_rows(summary))

    def step(self, metrics: StepMetrics, ppl: float, eta: float | None) -> None:
        """Rewrite the line on a terminal; elsewhere print the first step, every `logging_steps`-th and the last."""
        fields = progress_fields(metrics, ppl, self._total, eta)
        if self._out.is_terminal:
            if self._live is None:
                # No refresh thread: the line changes when there is something new, and never while DeepSpeed forks.
                self._live = Live(console=self._out, auto_refresh=False, transient=True)
                self._live.start()
            self._live.update(_line(fields_within(fields, self._out.width - 1)), refresh=True)
        elif metrics.step in (1, self._total) or metrics.step % self._every == 0:
            self._out.print(_line(fields_within(fields, None)))

    def evaluating(self, done: int, total: int) -> None:
        """How far an evaluation that takes long has come: in place on a terminal, else a line."""
        line = _line([("held-out", f"{done:,} of {total:,} batches")])
        if self._live is not None:
            self._live.update(line, refresh=True)
        else:
            self._out.print(line)

    def evaluation(self, record: Mapping[str, Any]) -> None:
        """`record`: step, loss, ppl, bits_per_byte, best."""
        bits = record["bits_per_byte"]
        line = [
            ("held-out", f"after step {record['step']}"),
            ("loss", number(record["loss"], ".4f")),
            ("ppl", number(record["ppl"], ".1f")),
            *([("bits/byte", number(bits, ".4f"))] if bits is not None else []),
        ]
        self._out.print(Text.assemble(_line(line, "green"), "  best so far" if record["best"] else ""))

    def samples(self, written: Written) -> None:
        """Where the texts of an evaluation are, and what they cost."""
        fields = [
            ("samples", f"after step {written.step}"),
            ("texts", f"{written.texts} in {SAMPLES}"),
            ("tokens", f"{written.tokens:,}"),
            ("seconds", number(written.seconds, ".1f")),
        ]
        self._out.print(_line(fields, "green"))

    def finding(self, finding: Finding) -> None:
        """Message and advice; the same words are printed once in a run."""
        if (finding.code, finding.message) in self._printed:
            return
        self._printed.add((finding.code, shown(finding.message)))
        where = f" at step {finding.step}" if finding.step is not None else ""
        self._out.print(Text.assemble((f"! {finding.code}{where}: ", "yellow"), shown(finding.message)))
        if finding.advice:
            self._out.print(f"  advice: {shown(finding.advice)}", style="dim", markup=False)

    def close(self, summary: RunSummary | None, ending: Ending) -> None:
        """Where the run ended, where its model is, and what to type next."""
        self.stop_line()
        done = [f"{ending.reason} after {duration(ending.seconds)}"]
        if ending.last is not None:
            done.append(f"step {ending.last.step}/{self._total}, {count(ending.last.tokens)} tokens trained on")
            done.append(f"loss {number(ending.last.loss, '.4f')}")
        if ending.evaluated is not None:
            done.append(f"held-out {number(ending.evaluated[1], '.4f')}{_best_note(ending)}")
        self._out.print(Text(", ".join(done), style="bold"))
        if summary is not None:
            self._print_rows(next_steps(summary, ending))

    def stop_line(self) -> None:
        """Leave the progress line as it is and go on below it. Does nothing when there is none."""
        if self._live is not None:
            self._live.transient = False
            self._live.stop()
            self._live = None

    def _print_rows(self, rows: Iterable[tuple[str, str]]) -> None:
        for label, text in rows:
            self._out.print(Text.assemble((f"  {label:<10}", "cyan"), shown(text)))


def _line(fields: Iterable[tuple[str, str]], style: str = "dim") -> Text:
    parts = (Text.assemble((f"{label} ", style), value) for label, value in fields)
    return Text("  ").join(parts)


def _best_note(ending: Ending) -> str:
    if ending.best is None or ending.evaluated is None or ending.best[0] == ending.evaluated[0]:
        return ""
    return f" (best {number(ending.best[1], '.4f')} at step {ending.best[0]})"
