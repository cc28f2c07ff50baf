"""How `minimind check` looks on a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich.console import Console
from rich.table import Table
from rich.text import Text

from minimind.base.display import shown
from minimind.data.check.report import CheckReport, FileReport
from minimind.data.records.unread import sentence

_SHOWN = 20


def show(report: CheckReport, console: Console) -> None:
    """A table for each file, its bad lines, and a sample with the trainable tokens in green."""
    for file in report.files:
        _show_file(file, report.max_seq_length, console)
    for shared in report.shared:
        console.print(str(shared), style="yellow", markup=False, soft_wrap=True)
    if report.ignored:
        console.print(f"left out, no data: {shown(', '.join(report.ignored))}", markup=False)


def _show_file(report: FileReport, max_seq_length: int, console: Console) -> None:
    """One file's table, then its first bad lines, then a sample."""
    table = Table(title=Text(shown(report.path)), title_justify="left", show_header=False)
    for name, value in _rows(report, max_seq_length):
        table.add_row(name, Text(shown(value)))
    console.print(table)
    for line in report.bad[:_SHOWN]:
        console.print(Text(f"  {shown(line)}", "red"), soft_wrap=True)
    if report.rejected > _SHOWN:
        console.print(f"  ... and {report.rejected - _SHOWN:,} more; --json lists the first 1,000")
    if report.sample:
        parts = [(shown(text), "green" if trainable else "dim") for text, trainable in report.sample]
        console.print(Text.assemble(("sample, trained tokens in green: ", "bold"), *parts))


def _rows(report: FileReport, row: int) -> Iterator[tuple[str, str]]:
    if report.error is not None:
        yield "unreadable", report.error
        if not report.records:
            return
    packed = f" in {report.compression}" if report.compression else ""
    yield ("file", f"{report.container}{packed}, {report.encoding} (confidence {report.encoding_confidence:.2f})")
    yield "format", _counts(report.formats) or "none recognised"
    yield "fields", _counts(report.fields) or "none"
    if report.fields_not_read:
        yield "fields not read", sentence(report.fields_not_read)
    yield "records", f"{report.records:,}: {report.used:,} used, {report.rejected:,} rejected"
    if report.reasons:
        yield "rejected for", "\n".join(f"{count:,} x {reason}" for reason, count in report.reasons.items())
    if not report.characters:
        return
    yield "characters", f"{report.characters:,}; a document {_spread(report.characters_per_document)}"
    if report.turns_per_document:
        yield "turns", _spread(report.turns_per_document)
    yield "scripts", ", ".join(f"{name} {share:.1%}" for name, share in report.scripts.items())
    near = f"{report.near_duplicates:,} near (of {report.near_compared:,} compared)"
    yield "duplicates", f"{report.exact_duplicates:,} exact, {near}"
    if report.trimmed:
        yield "no last answer", f"{report.trimmed:,} conversations end without one: cut off there"
    if report.reasoning_dropped:
        yield "reasoning", f"left out of {report.reasoning_dropped:,} answers"
    if report.tokens_per_document:
        yield "tokens", f"{report.tokens:,}; a document {_spread(report.tokens_per_document)}"
        yield "trainable", f"{report.trainable_share:.1%} of the tokens"
        yield f"rows of {row}", _fit(report)


def _fit(report: FileReport) -> str:
    fill = f"filled {report.row_fill:.1%}"
    if report.kind == "pretrain":
        longer = f"{report.longer_than_row:,} documents are longer and are split, nothing is lost"
        return f"{fill}; {longer}; {report.characters_per_token} characters a token"
    shortened = f"{report.truncated:,} conversations shortened ({report.answers_cut:,} in the answer)"
    return f"{fill}; {shortened}, {report.answers_lost:,} whose answer does not fit"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())


def _spread(values: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {value:,}" for name, value in values.items())
