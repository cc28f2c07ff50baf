"""What a learning-rate sweep leaves: a table on the terminal, one plot and one JSON file.

The JSON holds every loss, so a recommendation can be checked or made anew; a loss that was not finite is null in it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

from rich.table import Column, Table

from minimind.base.charts import COLOURS
from minimind.base.display import console
from minimind.base.files import replacing, write_durably
from minimind.training.health.lr_bands import Band, usual_band
from minimind.training.run.task import Task
from minimind.training.sweep.curves import Curve, Recommendation
from minimind.training.sweep.options import SWEEP_ONLY, WHICH_RATES, rates_at

COLUMNS = {
    "rate": "{.rate:.3g}",
    "loss at start": "{.start:.3f}",
    "at end": "{.end:.3f}",
    "smoothed": "{.smoothed_end:.3f}",
    "worst spike": "{.worst_spike:.3f}",
    "skipped": "{.skipped}",
}
# What the JSON says of each run, and of each one that was judged
CURVE = ("rate", "losses", "applied", "rates")
VERDICT = ("rate", "start", "end", "smoothed_end", "worst_spike", "skipped", "problem", "stable")


@dataclass(frozen=True)
class Outcome:
    """A finished sweep (its curves judged) or range test (one curve): what it was of, and what it recommends."""

    task: Task
    steps: int
    curves: Sequence[Curve]
    recommendation: Recommendation

    @property
    def name(self) -> str:
        return "lr_range_test" if self.curves[0].rates else "lr_sweep"

    @property
    def judged(self) -> Sequence[Curve]:
        """The curves that are compared with each other: none of a range test."""
        return [] if self.curves[0].rates else self.curves

    @property
    def settings(self) -> dict[str, float]:
        """The recommended ``optimizer.params``, by name."""
        rate = self.recommendation.rate
        return {} if rate is None else rates_at(self.task.resolved.optimizer.params, rate)

    @property
    def band(self) -> Band:
        return usual_band(self.task.config.model.num_parameters(), self.task.resolved.optimizer.type)


def report(outcome: Outcome) -> None:
    """Print table and recommendation; write ``<name>.json`` and ``<name>.png`` into the output directory."""
    terminal, path = console(), outcome.task.config.output_dir / outcome.name
    if outcome.judged:
        terminal.print(table(outcome))
    for line in summary(outcome):
        terminal.print(line, soft_wrap=True)
    write_durably(path.with_suffix(".json"), json.dumps(document(outcome), indent=1) + "\n")
    plot(outcome, path.with_suffix(".png"))
    terminal.print(f"written: {path}.json and .png", soft_wrap=True)


def table(outcome: Outcome) -> Table:
    """One row a rate, the recommended one marked."""
    numbers = [Column(name, justify="right", no_wrap=True) for name in COLUMNS]
    result = Table(*numbers, "stable", box=None, pad_edge=False, header_style="bold")
    for curve in sorted(outcome.judged, key=lambda curve: curve.rate):
        chosen = curve.rate == outcome.recommendation.rate
        stable = ("yes" if curve.stable else f"no: {curve.problem}") + " <- recommended" * chosen
        style = "bold green" if chosen else "" if curve.stable else "red"
        result.add_row(*(form.format(curve) for form in COLUMNS.values()), stable, style=style)
    return result


def summary(outcome: Outcome) -> list[str]:
    """The recommendation with its reason, what to type next, and the usual band."""
    chosen, band, command = outcome.recommendation, outcome.band, outcome.task.command
    settings = ", ".join(f'"{name}": {value:.3g}' for name, value in outcome.settings.items())
    lines = [f"recommended: {settings or 'none of these rates'}", f"reason: {chosen.reason}"]
    if chosen.advice:
        lines.append(f"next: {chosen.advice}")
    if chosen.ends:
        ends = ("--from", f"{chosen.ends[0]:.2g}", "--to", f"{chosen.ends[1]:.2g}")
        lines.append(f"sweep: {command.line(*ends, without=WHICH_RATES, script='lr_sweep')}")
    if list(outcome.settings) == ["lr"]:  # Muon's rates stand in the JSON only
        output = outcome.task.config.output_dir
        options = ("--set", f"learning_rate={chosen.rate:.3g}", "--output-dir", output.with_name(f"{output.name}-run"))
        lines.append(f"train: {command.line(*options, without=(*SWEEP_ONLY, '--output-dir'))}")
    lines.append(f"usual band: {band}")
    if chosen.rate is not None and not band.holds(chosen.rate):
        lines.append("the recommended rate is outside it: trust it for this data, but sweep again with more --steps")
    return lines


def document(outcome: Outcome) -> dict[str, Any]:
    """The JSON file's content: strict JSON, numbers that are not finite are null."""
    config, resolved = outcome.task.config, outcome.task.resolved
    chosen = {name: getattr(outcome.recommendation, name) for name in ("rate", "reason", "advice")}
    content = {
        "kind": outcome.name,
        "deepspeed_config": resolved.source,
        "optimizer": resolved.optimizer.type,
        "precision": resolved.precision,
        "parameters": config.model.num_parameters(),
        "rows_per_step": resolved.train_batch_size,
        "row_length": config.max_seq_length,
        "steps": outcome.steps,
        "seed": config.seed,
        "recommendation": {**chosen, "settings": outcome.settings},
        "usual_band": asdict(outcome.band),
        "verdicts": [{name: getattr(curve, name) for name in VERDICT} for curve in outcome.judged],
        "curves": [{name: getattr(curve, name) for name in CURVE} for curve in outcome.curves],
    }
    strict: dict[str, Any] = json.loads(json.dumps(content), parse_constant=lambda _: None)
    return strict


def plot(outcome: Outcome, path: Path) -> None:
    """All curves in one PNG, smoothed over raw ones: by step, dashed if not stable; a range test's by rate."""
    from matplotlib.figure import Figure

    chosen = outcome.recommendation.rate
    figure = Figure(figsize=(8, 5), dpi=120, layout="constrained")
    axes = figure.add_subplot(title=summary(outcome)[0], xlabel="step", ylabel="loss (nats per token)")
    for curve, colour in zip(outcome.curves, cycle(COLOURS), strict=False):
        x = curve.rates or range(1, len(curve.losses) + 1)
        bold, note = curve.rate == chosen, "" if curve.stable else " (not stable)"
        axes.plot(x, curve.losses, color=colour, alpha=0.25, linewidth=0.8)
        (trend,) = axes.plot(x, curve.trend, color=colour, linewidth=2.6 if bold else 1.4)
        trend.set(linestyle="-" if curve.stable else "--", label=f"{curve.rate:.3g}{note}")
    if outcome.judged:
        axes.legend(title="learning rate", frameon=False)
    else:
        axes.set(xscale="log", xlabel="learning rate")
        axes.axvline(chosen or math.nan, color=COLOURS[1], linestyle="--")
    if finite := [loss for curve in outcome.curves for loss in curve.losses[: curve.finite]]:
        lowest, first = min(finite), outcome.curves[0].start  # all begin alike; one that diverges must not stretch this
        room = max(first - lowest, 0.05 * first)
        axes.set_ylim(lowest - 0.05 * room, min(max(finite), first + room / 3) + 0.05 * room)
    axes.grid(alpha=0.25)
    with replacing(path) as file:
        figure.savefig(file, format="png", metadata={"Software": None})
