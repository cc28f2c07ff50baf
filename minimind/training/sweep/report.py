"""What a learning-rate sweep leaves: a table on the terminal, one plot and one JSON file.

The JSON holds every loss, so a recommendation can be checked or made anew; a loss that was not finite is null in it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from minimind.base.charts import COLOURS
from minimind.base.files import replacing, write_durably
from minimind.training.health.lr_bands import Band
from minimind.training.sweep.curves import Curve, Recommendation, Verdict, centred, smoothed

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Outcome:
    """A finished sweep (one verdict a curve) or range test (one curve, no verdicts).

    ``settings``: the recommended ``optimizer.params``, by name. ``about``: what was run, for the JSON.
    """

    name: str
    curves: Sequence[Curve]
    verdicts: Sequence[Verdict]
    recommendation: Recommendation
    settings: Mapping[str, float]
    band: Band
    about: Mapping[str, Any]
    again: Callable[[float, float], str]  # the command that sweeps from one rate to another
    train: Callable[[float], str]  # the command that trains at a rate


def report(outcome: Outcome, directory: Path, console: Console) -> None:
    """Print table and recommendation; write ``<name>.json`` and ``<name>.png`` into ``directory``."""
    if outcome.verdicts:
        console.print(table(outcome.verdicts, outcome.recommendation.rate))
    for line in summary(outcome):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    write_durably(directory / f"{outcome.name}.json", json.dumps(document(outcome), indent=1) + "\n")
    plot(outcome, directory / f"{outcome.name}.png")
    console.print(f"written: {directory / outcome.name}.json and .png", markup=False, highlight=False, soft_wrap=True)


def table(verdicts: Sequence[Verdict], recommended: float | None) -> Table:
    """One row a rate, the recommended one marked."""
    result = Table(box=None, pad_edge=False, header_style="bold")
    names = ("rate", "loss at start", "at end", "smoothed", "worst spike", "skipped", "stable")
    for name in names[:-1]:
        result.add_column(name, justify="right", no_wrap=True)
    result.add_column(names[-1])
    for v in sorted(verdicts, key=lambda verdict: verdict.rate):
        numbers = [f"{value:.3f}" for value in (v.start, v.end, v.smoothed_end, v.worst_spike)]
        stable = "yes" if v.stable else f"no: {v.problem}"
        chosen = v.rate == recommended
        result.add_row(
            f"{v.rate:.3g}",
            *numbers,
            str(v.skipped),
            stable + (" <- recommended" if chosen else ""),
            style="bold green" if chosen else "" if v.stable else "red",
        )
    return result


def summary(outcome: Outcome) -> list[str]:
    """The recommendation with its reason, and the usual band."""
    chosen, band = outcome.recommendation, outcome.band
    settings = ", ".join(f'"{name}": {value:.3g}' for name, value in outcome.settings.items())
    lines = [f"recommended: {settings}" if chosen.rate is not None else "recommended: none of these rates"]
    lines.append(f"reason: {chosen.reason}")
    if chosen.advice:
        lines.append(f"next: {chosen.advice}")
    if (ends := _range(outcome)) is not None:
        lines.append(f"sweep: {outcome.again(*ends)}")
    if chosen.rate is not None and list(outcome.settings) == ["lr"]:  # Muon's rates stand in the JSON only
        lines.append(f"train: {outcome.train(chosen.rate)}")
    lines.append(f"usual band: {band}")
    if chosen.rate is not None and not band.holds(chosen.rate):
        lines.append("the recommended rate is outside it: trust it for this data, but sweep again with more --steps")
    return lines


def _range(outcome: Outcome) -> tuple[float, float] | None:
    """The range that the advice names; an end that it leaves open is this sweep's."""
    named = dict(re.findall(r"--(from|to) ([\d.e+-]*\d)", outcome.recommendation.advice))
    if not named:
        return None
    seen = [rate for curve in outcome.curves for rate in (curve.rates or (curve.rate,))]
    low, high = float(named.get("from", min(seen))), float(named.get("to", max(seen)))
    return (low, high) if low < high else (low, 10 * low)


def document(outcome: Outcome) -> dict[str, Any]:
    """The JSON file's content: strict JSON, numbers that are not finite are null."""
    content = {
        "kind": outcome.name,
        **outcome.about,
        "recommendation": {**asdict(outcome.recommendation), "settings": dict(outcome.settings)},
        "usual_band": asdict(outcome.band),
        "verdicts": [{**asdict(verdict), "stable": verdict.stable} for verdict in outcome.verdicts],
        "curves": [asdict(curve) for curve in outcome.curves],
    }
    cleaned: dict[str, Any] = _strict(content)
    return cleaned


def _strict(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _strict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def plot(outcome: Outcome, path: Path) -> None:
    """All curves in one PNG: loss by step for a sweep, by rate for a range test."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    if outcome.verdicts:
        _draw_sweep(axes, outcome)
    else:
        _draw_range(axes, outcome)
    _frame(axes, outcome.curves)
    with replacing(path) as file:
        figure.savefig(file, format="png", metadata={"Software": None})


def _draw_sweep(axes: Axes, outcome: Outcome) -> None:
    """Smoothed curves over the raw ones; a rate that was not stable is dashed."""
    for index, (curve, verdict) in enumerate(zip(outcome.curves, outcome.verdicts, strict=True)):
        steps, colour = range(1, len(curve.losses) + 1), COLOURS[index % len(COLOURS)]
        chosen = curve.rate == outcome.recommendation.rate
        label = f"{curve.rate:.3g}" + (" (recommended)" if chosen else "" if verdict.stable else " (not stable)")
        axes.plot(steps, curve.losses, color=colour, alpha=0.25, linewidth=0.8)
        axes.plot(
            steps,
            smoothed(curve.losses),
            color=colour,
            linewidth=2.6 if chosen else 1.4,
            linestyle="-" if verdict.stable else "--",
            label=label,
        )
    axes.set_xlabel("step")
    axes.legend(title="learning rate", frameon=False)


def _draw_range(axes: Axes, outcome: Outcome) -> None:
    """Loss against the rate of each step, with the recommended rate as a line."""
    (curve,) = outcome.curves
    axes.plot(curve.rates, curve.losses, color=COLOURS[0], alpha=0.35, linewidth=0.8)
    means = centred(curve.losses, max(1, len(curve.losses) // 20))  # as the recommendation saw it: without lag
    axes.plot(curve.rates, means, color=COLOURS[0], linewidth=1.6)
    axes.set_xscale("log")
    axes.set_xlabel("learning rate")
    if outcome.recommendation.rate is not None:
        rate = outcome.recommendation.rate
        axes.axvline(rate, color=COLOURS[1], linestyle="--", label=f"recommended: {rate:.2g}")
        axes.legend(frameon=False)


def _frame(axes: Axes, curves: Sequence[Curve]) -> None:
    """Limits that a diverging curve can't stretch: from the lowest loss to a third above the first."""
    finite = [loss for curve in curves for loss in curve.losses if math.isfinite(loss)]
    firsts = [curve.losses[0] for curve in curves if math.isfinite(curve.losses[0])]
    if finite and firsts:
        bottom, top = min(finite), max(firsts)
        room = max(top - bottom, 0.05 * top)
        axes.set_ylim(bottom - 0.05 * room, min(max(finite), top + room / 3) + 0.05 * room)
    axes.set_ylabel("loss (nats per token)")
    axes.grid(alpha=0.25)
