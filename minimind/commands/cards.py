"""The table of ``minimind plan``: on which card a run fits in which form, with how many rows, and how long it takes.

Contract. Memory is counted as for the run's own plan (config/memory.py), with the shipped JSONs' AdamW. A card's GB are
taken as 10^9 bytes, so that no more is promised than is there. Hours are the formula of docs/performance.md at a share
of the data sheet's peak that is assumed and named; those of this machine are measured, or "n/a". What several ranks
send each other is not known here, so with them hours are "n/a".

Rows: the fewest, as a power of two and not below the usual eight, for which a card computes at that share as long as an
eager step's kernels take to launch. With fewer it waits for launches. Kernels are counted, as one an operation, their
time is assumed; a compiled model launches fewer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from minimind.base.defaults import ENGINE, USUAL_MFU
from minimind.base.errors import UserError
from minimind.base.hardware import Hardware
from minimind.base.peaks import peak_flops
from minimind.base.shipped import CONFIG_DIRECTORY, from_here
from minimind.config.deepspeed import Resolved, resolve
from minimind.config.memory import largest_micro_batch, table_state_bytes
from minimind.config.run import RunConfig

CARDS = {"RTX 3090": 24, "RTX 4090": 24, "A100 40GB": 40, "A100 80GB": 80, "H100": 80, "H200": 141}  # GB of the sheet
FORMS = {  # heading -> shipped JSON
    "fp32": "fp32",
    "bf16": "bf16",
    "ZeRO-2": "bf16_zero2",
    "+offload": "bf16_zero2_offload",
    "ZeRO-3": "bf16_zero3",
    "+offload ": "bf16_zero3_offload",
}
PRECISIONS = ("bf16", "fp32")
LAUNCH_SECONDS = 5e-6  # what PyTorch takes to launch one kernel eagerly: assumed
USUAL_ROWS = int(ENGINE["per_device_train_batch_size"])
NA = "n/a"


class Measured(NamedTuple):
    """What this machine does in a precision, with how many rows at a time (None: those of the JSON)."""

    tokens_per_second: float
    rows: int | None = None


@dataclass(frozen=True)
class Question:
    """What the table is about. ``tokens`` to train on, None if unknown; ``launches`` of an eager forward and backward
    pass; ``flops`` of training on a token."""

    run: RunConfig
    ranks: int
    tokens: float | None
    flops: float
    launches: int
    mfu: float = USUAL_MFU

    def hours(self, tokens_per_second: float | None) -> str:
        """At this speed; "n/a" where that, the tokens or what ranks send are unknown."""
        if tokens_per_second is None or self.tokens is None or self.ranks > 1:
            return NA
        hours = self.tokens / tokens_per_second / 3600
        return f"{hours:,.1f}" if hours >= 1 else f"{hours:.2g}"


def fitting_rows(question: Question, form: str, hardware: Hardware) -> int | None:
    """The largest micro-batch of a shipped JSON; None where the memory is unknown or the form can't run there."""
    resolved = shipped_form(question, form, hardware)
    if resolved is None or hardware.memory is None or (hardware.device_type == "cpu" and "offload" in form):
        return None
    state_bytes = table_state_bytes(resolved.optimizer, question.run.model)
    return largest_micro_batch(question.run, resolved, hardware.memory, state_bytes, hardware)


def shipped_form(question: Question, form: str, hardware: Hardware) -> Resolved | None:
    """The shipped JSON for the run's model and row length alone: what else its YAML sets belongs to its own JSON. None
    for one that the machine can't run."""
    run = question.run
    plain = RunConfig(
        model=run.model, max_seq_length=run.max_seq_length, gradient_checkpointing=run.gradient_checkpointing
    )
    try:
        return resolve(from_here(CONFIG_DIRECTORY / f"{form}.json"), plain, question.ranks, hardware)
    except UserError:
        return None


def advised_rows(question: Question, card: str, fits: int | None) -> str:
    """Rows from which the card computes as long as it launches, but not below the usual, and no more than fit; "n/a"
    for a card without a peak."""
    peak = peak_flops(card, "bf16")
    if peak is None or not fits:
        return NA
    row_seconds = question.run.max_seq_length * question.flops / (peak * question.mfu)
    rows = 2 ** math.ceil(math.log2(max(question.launches * LAUNCH_SECONDS / row_seconds, USUAL_ROWS)))
    return str(min(rows, 2 ** int(math.log2(fits))))


def card_table(question: Question, here: Hardware | None, measured: Mapping[str, Measured]) -> list[str]:
    """The lines of the table. ``here``: this machine, to be its last row; ``measured``: its speed by precision."""
    hours = "n/a for several ranks" if question.ranks > 1 else _hours_heading(question)
    heading = [*FORMS, "rows", *(f"hours {precision}" for precision in PRECISIONS)]
    rows = [(name, Hardware("cuda", True, True, name, size * 10**9)) for name, size in CARDS.items()]
    lines = [_line(name, f"{CARDS[name]} GB", _cells(question, card)) for name, card in rows]
    if here is not None:
        size = NA if here.memory is None else f"{here.memory / 1e9:.0f} GB"
        lines.append(_line("this machine", size, _cells_here(question, here, measured)))
    return [
        "",
        f"by form: the largest micro-batch of {question.run.max_seq_length} tokens that fits (shipped JSONs, "
        f"1 GiB set aside, {question.ranks} rank(s))",
        f"rows: advised a step, above {USUAL_ROWS} where a card would wait for {question.launches:,} launches "
        f"(counted; {LAUNCH_SECONDS * 1e6:.0f} us each assumed); here: measured, else n/a",
        f"hours: {hours}",
        _line("card", "memory", heading),
        *lines,
    ]


def _hours_heading(question: Question) -> str:
    if question.tokens is None:
        return "n/a without --tokens"
    return f"{question.tokens:,.0f} tokens at {question.mfu:.0%} of the card's peak (assumed; --mfu)"


def _cells(question: Question, card: Hardware) -> list[str]:
    fits = [fitting_rows(question, form, card) for form in FORMS.values()]
    peaks = [peak_flops(card.name, precision) for precision in PRECISIONS]
    speeds = [None if peak is None else peak * question.mfu / question.flops for peak in peaks]
    return [*map(_number, fits), advised_rows(question, card.name, fits[1]), *map(question.hours, speeds)]


def _cells_here(question: Question, here: Hardware, measured: Mapping[str, Measured]) -> list[str]:
    fits = [fitting_rows(question, form, here) for form in FORMS.values()]
    best = max(measured.values(), key=lambda one: one.tokens_per_second, default=None)
    speeds = [measured[name].tokens_per_second if name in measured else None for name in PRECISIONS]
    return [*map(_number, fits), _number(best and best.rows), *map(question.hours, speeds)]


def _number(rows: int | None) -> str:
    return NA if rows is None else f"{rows:,}" if rows else "no"


def _line(name: str, memory: str, cells: list[str]) -> str:
    return f"{name:<13}{memory:>8}" + "".join(f"{cell.strip():>{max(len(cell) + 1, 10)}}" for cell in cells)


def update_line(question: Question, update_seconds: float) -> str:
    """What an update on this machine's CPU takes beside an H200's step of the advised rows, in one sentence."""
    peak = peak_flops("H200", "bf16")
    assert peak is not None
    rows = advised_rows(question, "H200", 2**20)
    step = int(rows) * question.run.max_seq_length * question.flops / (peak * question.mfu)
    share = update_seconds / (update_seconds + step)
    return (
        f"offload: AdamW's update takes {update_seconds * 1e3:,.0f} ms on this machine's CPU (measured), beside "
        f"{step * 1e3:,.0f} ms for a step of {rows} rows on an H200 (computed): {share:.0%} of the time, so accumulate"
    )
