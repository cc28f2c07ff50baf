"""A run directory, or several, as one HTML page that needs nothing else: no network, no scripts, no other files.

Contract. Works on a run that is going on, was killed, or has torn lines: what can be read is shown and what is
missing is said. Steps that a rollback or a resume repeated are shown as they went the last time.

Known weakness: the whole metrics.jsonl is read into memory (about 0.3 MB a thousand steps).
"""

from __future__ import annotations

import html
import json
import os
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minimind.base.charts import COLOURS, Line, chart
from minimind.base.defaults import ENVIRONMENT, RUN_CONFIG, RUN_JSON
from minimind.base.errors import UserError
from minimind.base.files import open_inside, write_durably
from minimind.base.secrets import mask_command, mask_text, mask_values
from minimind.base.strict.json_text import parse_json, read_small, reason_of
from minimind.training.record.console import NA, count, duration, number
from minimind.training.record.file import FILE_NAME, read_metrics

Record = dict[str, Any]
FILES = (RUN_CONFIG, RUN_JSON, ENVIRONMENT)
MARK = '<p class="sub">MiniMind on DeepSpeed</p>'  # by which a page of ours is known
LARGEST_TEXT = 4 << 20  # bytes; older environment.json files hold uncommitted changes
MOST_SOURCES = 64  # lines of a chart: as many as can be told apart, and more

STYLE = """
:root { color-scheme: light dark; --line: #80808033; --soft: #808a94; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1080px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin: 0 } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem }
p.sub, figcaption, .soft { color: var(--soft) }
table { border-collapse: collapse; width: 100% } th, td { text-align: left; padding: .3rem .7rem .3rem 0;
  border-bottom: 1px solid var(--line); vertical-align: top } th { color: var(--soft); font-weight: 500 }
td.n { font-variant-numeric: tabular-nums } .scroll { overflow-x: auto }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(480px, 100%), 1fr)); gap: 1rem }
figure { margin: 0; padding: .6rem; border: 1px solid var(--line); border-radius: 8px }
figure svg { width: 100%; height: auto }
.dot { display: inline-block; width: .7em; height: .7em; border-radius: 50%; margin-right: .4em }
pre { font: 12.5px/1.45 ui-monospace, monospace; overflow-x: auto; padding: .8rem; border: 1px solid var(--line);
  border-radius: 8px }
summary { cursor: pointer; padding: .2rem 0 }
"""


@dataclass(frozen=True)
class RunData:
    """What one run directory holds; lists are empty and texts missing where it holds nothing."""

    path: Path
    label: str
    colour: str
    about: Record  # the last "run" line
    train: list[Record]  # by step, one each
    evaluations: list[Record]
    sources: list[Record]  # losses of weighted sources, one record for each source and report
    findings: list[Record]
    end: Record | None
    texts: dict[str, str]

    def column(self, name: str) -> list[float | None]:
        return [record.get(name) for record in self.train]


def write_report(runs: Sequence[Path], output: Path | None = None) -> Path:
    """Write the page and return its path: RUN/report.html, for several runs report.html beside the first.

    Raises UserError for a path without metrics.jsonl, and when the page can't be written.
    """
    data = [load_run(path, i) for i, path in enumerate(runs)]
    target = output or (data[0].path if len(data) == 1 else data[0].path.resolve().parent) / "report.html"
    try:
        if output is None:
            _require_report(target)
        write_durably(target, page(data))
    except OSError as error:
        raise UserError(f"{target}: can't write the report: {error.strerror}") from None
    return target


def _require_report(target: Path) -> None:
    """UserError where a page that is no report of ours has the name that nobody chose. A link is replaced."""
    if target.is_symlink() or not target.exists():
        return
    with open_inside(target.parent, target.name) as file:
        start = file.read(1 << 16)
    if MARK.encode() not in start:
        raise UserError(f"{target}: is there and is no report of this program; name another with --output")


def load_run(path: Path, index: int = 0) -> RunData:
    """Read a run directory (or the metrics.jsonl in it). Raises UserError when there is no metrics.jsonl."""
    directory = path.parent if path.name == FILE_NAME else path
    try:
        records = list(read_metrics(directory / FILE_NAME))
    except OSError as error:
        raise UserError(
            f"{directory / FILE_NAME}: {error.strerror}: give the output directory of a training run"
        ) from None
    texts = {name: _shareable(name, _text(directory, name)) for name in FILES if os.path.lexists(directory / name)}
    ends = _of(records, "end")
    return RunData(
        path=directory,
        label=directory.resolve().name,
        colour=COLOURS[index % len(COLOURS)],
        about=(_of(records, "run") or [{}])[-1],
        train=_by_step(_of(records, "train")),
        evaluations=_by_step(_of(records, "eval")),
        sources=_of(records, "source"),
        findings=_of(records, "finding"),
        end=ends[-1] if ends and records[-1]["kind"] == "end" else None,
        texts=texts,
    )


def _text(directory: Path, name: str) -> str:
    """A small file's text as far as it can be read. Raises UserError."""
    try:
        return read_small(directory, name, LARGEST_TEXT).decode("utf-8", "replace")
    except (OSError, ValueError) as error:
        raise UserError(f"{directory / name}: {reason_of(error)}: take it away to see the rest") from None


def _shareable(name: str, text: str) -> str:
    """A file's text as it may be passed on: no uncommitted changes (older runs have them there), secrets masked."""
    if not name.endswith(".json"):
        return mask_text(text)
    try:
        value = parse_json(text)
    except ValueError:
        return "not JSON: left out, for it may hold what should not be passed on"
    if name == "environment.json" and isinstance(value, dict):
        value.pop("git_diff", None)
        if isinstance(value.get("command"), list):
            value["command"] = mask_command([str(word) for word in value["command"]])
    return json.dumps(mask_values(value), indent=2, ensure_ascii=False)


def _of(records: Iterable[Record], kind: str) -> list[Record]:
    return [record for record in records if record["kind"] == kind]


def _by_step(records: Iterable[Record]) -> list[Record]:
    last = {record["step"]: record for record in records if isinstance(record.get("step"), int)}
    return [last[step] for step in sorted(last)]


def facts(run: RunData) -> list[tuple[str, str]]:
    """The run in a column of the overview: (name, value)."""
    last = run.train[-1] if run.train else {}
    losses = [loss for loss in run.column("loss")[-20:] if loss is not None]
    speeds = [speed for speed in run.column("tokens_per_second") if speed]
    held = [record for record in run.evaluations if record.get("loss") is not None]
    best = min(held, key=lambda record: record["loss"], default={})
    state = f"{run.end['reason']} after {duration(run.end['seconds'])}" if run.end else "going on, or killed"
    model = NA
    if {run.about.get("model"), run.about.get("parameters")}.isdisjoint({None}):
        model = f"{run.about['model']}, {run.about['parameters']:,} parameters"
    return [
        ("task", run.about.get("task", NA)),
        ("model", model),
        ("state", state),
        ("steps", f"{last.get('step', 0)} of {run.about.get('total_steps', NA)}"),
        ("trained tokens", count(last.get("tokens") or 0)),
        ("loss, mean of the last 20 steps", number(statistics.fmean(losses) if losses else None, ".4f")),
        ("best held-out loss", f"{number(best['loss'], '.4f')} at step {best['step']}" if best else NA),
        ("its perplexity", number(best.get("ppl"), ".2f")),
        ("its bits per byte", number(best.get("bits_per_byte"), ".4f")),
        ("tokens/s, median", count(statistics.median(speeds)) if speeds else NA),
        ("skipped steps", str(last.get("skipped", NA))),
        (
            "precision",
            f"{run.about['precision']}, ZeRO {run.about.get('zero_stage', NA)}" if "precision" in run.about else NA,
        ),
        ("findings", str(len(run.findings))),
    ]


def differences(runs: Sequence[RunData]) -> list[tuple[str, list[str]]]:
    """Settings of config.yaml and ds_config.json that are not the same in all runs: (name, value in each)."""
    settings = [_settings(run) for run in runs]
    names = sorted(set().union(*settings))
    rows = [(name, [values.get(name, "-") for values in settings]) for name in names]
    return [(name, values) for name, values in rows if len(set(values)) > 1]


def _settings(run: RunData) -> dict[str, str]:
    from minimind.base.strict.yaml_text import parse_yaml

    found: dict[str, str] = {}
    for name in (RUN_CONFIG, RUN_JSON):
        text = run.texts.get(name, "{}")
        try:
            value = parse_yaml(text)[0] if name == RUN_CONFIG else parse_json(text)
        except ValueError:  # a torn file: shown as text below, not compared
            continue
        _flatten("" if name == RUN_CONFIG else "ds: ", value, found)
    return found


def _flatten(prefix: str, value: Any, into: dict[str, str]) -> None:
    if isinstance(value, dict):
        for key, below in value.items():
            _flatten(f"{prefix}{key}" if not prefix or prefix.endswith(" ") else f"{prefix}.{key}", below, into)
    else:
        into[prefix] = json.dumps(value, ensure_ascii=False, default=str)


def charts(runs: Sequence[RunData]) -> list[tuple[str, str]]:
    """(caption, svg) of each chart that has something to show."""
    several = len(runs) > 1

    def lines(name: str, smooth: bool = False) -> list[Line]:
        return [
            Line(
                run.label if several else name.replace("_", " "),
                [r["step"] for r in run.train],
                run.column(name),
                run.colour,
                smooth,
            )
            for run in runs
        ]

    held = [
        Line(
            f"{run.label} held-out" if several else "held-out",
            [r["step"] for r in run.evaluations],
            [r.get("loss") for r in run.evaluations],
            run.colour if several else COLOURS[1],
            dots=True,
        )
        for run in runs
    ]
    made = [
        (
            "Loss: nats per trainable token; the thick line is its running mean",
            chart("loss", lines("loss", True) + held, "loss"),
        ),
        ("Loss by source", chart("sources", _source_lines(runs), "loss") if any(r.sources for r in runs) else None),
        ("Gradient norm before clipping", chart("norm", lines("grad_norm"), "L2 norm", log=10)),
        ("Learning rate", chart("lr", lines("lr"), "learning rate")),
        ("Loss scale (fp16)", chart("scale", lines("loss_scale"), "loss scale", log=2)),
        ("Trainable tokens per second, all ranks", chart("speed", lines("tokens_per_second", True), "tokens/s")),
        ("Steps skipped so far", chart("skipped", lines("skipped"), "steps") if _any_skipped(runs) else None),
    ]
    return [(caption, svg) for caption, svg in made if svg is not None]


def _source_lines(runs: Sequence[RunData]) -> list[Line]:
    """A line for each weighted source of each run; steps that a resume repeated as they went the last time."""
    found: dict[tuple[int, str], dict[int, float | None]] = {}
    for number_, run in enumerate(runs):
        for record in run.sources:
            found.setdefault((number_, record["source"]), {})[record["step"]] = record.get("loss")
    return [
        Line(
            f"{runs[number_].label}: {source}" if len(runs) > 1 else source,
            sorted(losses),
            [losses[step] for step in sorted(losses)],
            COLOURS[i % len(COLOURS)],
            smooth=True,
        )
        for i, ((number_, source), losses) in enumerate(list(found.items())[:MOST_SOURCES])
    ]


def _any_skipped(runs: Sequence[RunData]) -> bool:
    return any(run.train and run.train[-1].get("skipped") for run in runs)


_SURROGATES = dict.fromkeys(range(55296, 57344), "�")  # bytes of a name that were no UTF-8


def page(runs: Sequence[RunData]) -> str:
    """The whole page. Everything that comes from a file is escaped."""
    title = ", ".join(run.label for run in runs)
    figures = "".join(f"<figure>{svg}<figcaption>{_e(text)}</figcaption></figure>" for text, svg in charts(runs))
    sections = [
        ("Overview", _overview(runs)),
        ("Curves", f'<div class="charts">{figures}</div>' if figures else '<p class="soft">No step was reported.</p>'),
        ("Findings", _findings(runs)),
        ("What differs", _differences(runs) if len(runs) > 1 else ""),
        ("Configuration", "".join(_files(run) for run in runs)),
    ]
    body = "".join(f"<h2>{name}</h2>{content}" for name, content in sections if content)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{_e(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}</style></head><body><h1>{_e(title)}</h1>"
        f"{MARK}{body}</body></html>\n"
    ).translate(_SURROGATES)


def _e(value: object) -> str:
    return html.escape(str(value))


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], cell: Callable[[str], str] = _e) -> str:
    top = "".join(f"<th>{name}</th>" for name in head)
    body = "".join("<tr>" + "".join(f'<td class="n">{cell(v)}</td>' for v in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table><tr>{top}</tr>{body}</table></div>'


def _heads(runs: Sequence[RunData]) -> list[str]:
    return [f'<span class="dot" style="background:{run.colour}"></span>{_e(run.label)}' for run in runs]


def _overview(runs: Sequence[RunData]) -> str:
    columns = [facts(run) for run in runs]
    names = [name for name, _ in columns[0]]
    return _table(["", *_heads(runs)], ([name, *(c[i][1] for c in columns)] for i, name in enumerate(names)))


def _differences(runs: Sequence[RunData]) -> str:
    return _table(["setting", *_heads(runs)], ([name, *values] for name, values in differences(runs)))


def _findings(runs: Sequence[RunData]) -> str:
    rows = [
        [
            run.label,
            "before" if f.get("step") is None else str(f["step"]),
            f.get("code", ""),
            f.get("message", ""),
            f.get("advice", ""),
        ]
        for run in runs
        for f in run.findings
    ]
    return _table(["run", "step", "code", "what", "advice"], rows) if rows else '<p class="soft">None.</p>'


def _files(run: RunData) -> str:
    blocks = [
        f"<details><summary>{_e(run.label)}: {name}</summary><pre>{_e(text)}</pre></details>"
        for name, text in run.texts.items()
    ]
    missing = ", ".join(name for name in FILES if name not in run.texts)
    return "".join(blocks) + (f'<p class="soft">{_e(run.label)} has no {missing}.</p>' if missing else "")
