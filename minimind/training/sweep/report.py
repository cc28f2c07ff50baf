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
from minimind.training.health.lr_bands import usual_band
from minimind.training.run.task import Task
from minimind.training.sweep.curves import Curve, Recommendation, Verdict
from minimind.training.sweep.options import SWEEP_ONLY, WHICH_RATES, rates_at

COLUMNS = {
    "rate": "{.rate:.3g}",
    "loss at start": "{.start:.3f}",
    "at end": "{.end:.3f}",
    "smoothed": "{.smoothed_end:.3f}",
    "worst spike": "{.worst_spike:.3f}",
    "skipped": "{.skipped}",
}


@dataclass(frozen=True)
class Outcome:
    """A finished sweep, or range test: one curve, no verdicts."""

    task: Task
    steps: int
    curves: Sequence[Curve]
    verdicts: Sequence[Verdict]
    chosen: Recommendation

    @property
    def settings(self) -> dict[str, float]:
        """The recommended ``optimizer.params``, by name."""
        return {} if self.chosen.rate is None else rates_at(self.task.resolved.optimizer.params, self.chosen.rate)


def report(outcome: Outcome) -> None:
    """Print table and recommendation; write JSON and PNG into the output directory, named by the kind."""
    kind = "lr_sweep" if outcome.verdicts else "lr_range_test"
    terminal, path = console(), outcome.task.config.output_dir / kind
    if outcome.verdicts:
        terminal.print(table(outcome))
    lines = summary(outcome)
    for line in lines:
        terminal.print(line, soft_wrap=True)
    write_durably(path.with_suffix(".json"), json.dumps({"kind": kind, **document(outcome)}, indent=1) + "\n")
    plot(outcome, lines[0], path.with_suffix(".png"))
    terminal.print(f"written: {path}.json and .png", soft_wrap=True)


def table(outcome: Outcome) -> Table:
    """One row a rate, the recommended one marked."""
    numbers = [Column(name, justify="right", no_wrap=True) for name in COLUMNS]
    result = Table(*numbers, "stable", box=None, pad_edge=False, header_style="bold")
    for verdict in sorted(outcome.verdicts):
        chosen = verdict.rate == outcome.chosen.rate
        stable = ("yes" if verdict.stable else f"no: {verdict.problem}") + " <- recommended" * chosen
        style = "bold green" if chosen else "" if verdict.stable else "red"
        result.add_row(*(form.format(verdict) for form in COLUMNS.values()), stable, style=style)
    return result


def summary(outcome: Outcome) -> list[str]:
    """The recommendation with its reason, what to type next, and the usual band."""
    chosen, task = outcome.chosen, outcome.task
    band = usual_band(task.config.model.num_parameters(), task.resolved.optimizer.type)
    settings = ", ".join(f'"{name}": {value:.3g}' for name, value in outcome.settings.items())
    lines = [f"recommended: {settings or 'none of these rates'}", f"reason: {chosen.reason}"]
    if chosen.advice:
        lines.append(f"next: {chosen.advice}")
    if chosen.ends:
        ends = ("--from", f"{chosen.ends[0]:.2g}", "--to", f"{chosen.ends[1]:.2g}")
        lines.append(f"sweep: {task.command.line(*ends, without=WHICH_RATES, script='lr_sweep')}")
    if list(outcome.settings) == ["lr"]:  # Muon's rates stand in the JSON only
        output = task.config.output_dir
        options = ("--set", f"learning_rate={chosen.rate:.3g}", "--output-dir", output.with_name(f"{output.name}-run"))
        lines.append(f"train: {task.command.line(*options, without=(*SWEEP_ONLY, '--output-dir'))}")
    lines.append(f"usual band: {band}")
    if chosen.rate is not None and not band.holds(chosen.rate):
        lines.append("the recommended rate is outside it: trust it for this data, but sweep again with more --steps")
    return lines


def document(outcome: Outcome) -> dict[str, Any]:
    """The JSON file's content but for its kind: strict JSON, numbers that are not finite are null."""
    config, resolved, chosen = outcome.task.config, outcome.task.resolved, outcome.chosen
    content = {
        "deepspeed_config": resolved.source,
        "optimizer": resolved.optimizer.type,
        "precision": resolved.precision,
        "parameters": config.model.num_parameters(),
        "rows_per_step": resolved.train_batch_size,
        "row_length": config.max_seq_length,
        "steps": outcome.steps,
        "seed": config.seed,
        "recommendation": {
            "rate": chosen.rate,
            "reason": chosen.reason,
            "advice": chosen.advice,
            "settings": outcome.settings,
        },
        "usual_band": asdict(usual_band(config.model.num_parameters(), resolved.optimizer.type)),
        "verdicts": [{**verdict._asdict(), "stable": verdict.stable} for verdict in outcome.verdicts],
        "curves": [asdict(curve) for curve in outcome.curves],
    }
    strict: dict[str, Any] = json.loads(json.dumps(content), parse_constant=lambda _: None)
    return strict


def plot(outcome: Outcome, title: str, path: Path) -> None:
    """All curves in one PNG, smoothed over raw ones: by step, dashed if not stable; a range test's by rate."""
    from matplotlib.figure import Figure

    figure, chosen = Figure(figsize=(8, 5), dpi=120, layout="constrained"), outcome.chosen.rate
    axes = figure.add_subplot(title=title, xlabel="step", ylabel="loss (nats per token)")
    unstable = {verdict.rate for verdict in outcome.verdicts if not verdict.stable}
    for curve, colour in zip(outcome.curves, cycle(COLOURS), strict=False):
        x, width = curve.rates or range(1, len(curve.losses) + 1), 2.6 if curve.rate == chosen else 1.4
        style, note = ("--", " (not stable)") if curve.rate in unstable else ("-", "")
        axes.plot(x, curve.losses, color=colour, alpha=0.25, linewidth=0.8)
        axes.plot(x, curve.trend, style, color=colour, linewidth=width, label=f"{curve.rate:.3g}{note}")
    if outcome.verdicts:
        axes.legend(title="learning rate", frameon=False)
    else:
        axes.set(xscale="log", xlabel="learning rate")
        axes.axvline(chosen or math.nan, color=COLOURS[1], linestyle="--")
    if finite := [loss for curve in outcome.curves for loss in curve.losses[: curve.finite]]:
        lowest, first = min(finite), outcome.curves[0].losses[0]  # all begin alike; one that diverges must not stretch
        room = max(first - lowest, 0.05 * first)
        axes.set_ylim(lowest - 0.05 * room, min(max(finite), first + room / 3) + 0.05 * room)
    axes.grid(alpha=0.25)
    with replacing(path) as file:
        figure.savefig(file, format="png", metadata={"Software": None})
