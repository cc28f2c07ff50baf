"""Where the default recipes' settings come from: short trainings, one setting changed at a time.

    python benchmarks/sweep.py [--recipe adamw|muon] [--settings lr,rows] [--tokens 250000] [--seeds 1] [--json OUT]

Each trial trains the 26M model on as many tokens, in the same order, with the recipe's whole schedule, and is
judged by held-out bits a byte at its end. The first trial is the shipped JSON; each other one differs in one setting.
Each is run with --seeds seeds, for initial weights and the order of the text, the same for all trials; seeds differ by
up to 0.1 bits, so a smaller gain in one seed says nothing. Trials are processes of their own; speed does not matter, so
other work may run beside it. Weakness: a real run is a hundred times longer, and the best peak rate falls somewhat with
length: between two that are equal here take the lower.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path
from statistics import mean, stdev
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import options as shared
from benchmarks.corpus import make_corpus
from benchmarks.figures import machine, markdown, spread, write_json
from benchmarks.workers import FIRST_SEED, Job, Worker
from minimind.base.errors import UserError
from minimind.config.run import load_run_config

HELD_OUT_KILOBYTES = 64
SCHEDULES = ["cosine", "linear", "cooldown", "wsd"]


@dataclass(frozen=True)
class Recipe:
    """A shipped JSON and the values to try. ``optimizer``: parameters of its JSON; ``settings``: of the run
    configuration; ``rows``: packed rows of a step."""

    deepspeed_config: str
    optimizer: Mapping[str, Sequence[Any]]
    settings: Mapping[str, Sequence[Any]]
    rows: Sequence[int]


RECIPES = {
    "adamw": Recipe(
        "ds_configs/bf16.json",
        {"lr": [5e-4, 1e-3, 2e-3, 3e-3, 5e-3], "betas": [[0.9, 0.95], [0.9, 0.999]]},
        {
            "lr_scheduler_type": SCHEDULES,
            "warmup_ratio": [0.0, 0.02, 0.1],
            "model.initializer_range": [0.01, 0.02, 0.04],
        },
        [4, 8, 16],
    ),
    "muon": Recipe(
        "ds_configs/muon.json",
        {"muon_lr": [0.01, 0.02, 0.04], "lr": [3e-3, 6e-3, 1e-2, 2e-2, 4e-2], "weight_decay": [0.01, 0.05, 0.1]},
        {"lr_scheduler_type": SCHEDULES, "warmup_ratio": [0.0, 0.02, 0.1], "model.initializer_range": [0.01, 0.02]},
        [4, 8],
    ),
}
DEFAULT_ROWS = 8


@dataclass(frozen=True)
class Trial:
    """One training: what differs from the shipped recipe (nothing: ``setting`` is empty)."""

    setting: str = ""
    value: Any = None


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    text = make_corpus(options.data, options.vocab_size, options.row_length, HELD_OUT_KILOBYTES)
    recipe = RECIPES[options.recipe]
    shipped = json.loads(Path(recipe.deepspeed_config).read_text(encoding="utf-8"))
    results = []
    for trial in trials(recipe, shipped["optimizer"]["params"], options.settings):
        bits = []
        for seed in range(FIRST_SEED, FIRST_SEED + options.seeds):
            make = partial(shared.job, options, text, "ours", seed=seed)
            bits.append(run(trial, shipped, options, make))
            name = f"{trial.setting or 'as shipped'} {trial.value or ''}"
            print(f"{name}, seed {seed}: {bits[-1]:.3f} bits/byte", file=sys.stderr, flush=True)
        results.append((trial, bits))
    about = machine(options.threads)
    print(f"{about['machine']}, {options.preset}, {recipe.deepspeed_config}, {options.tokens:,} tokens a trial")
    print(table(results))
    rows = [{"setting": trial.setting, "value": trial.value, "bits_per_byte": bits} for trial, bits in results]
    write_json(options.json, about | {"recipe": options.recipe, "tokens": options.tokens, "trials": rows})


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = shared.parser(__doc__)
    parser.add_argument("--recipe", choices=RECIPES, default="adamw")
    parser.add_argument("--settings", type=lambda text: text.split(","), help="which to change; default: all")
    parser.add_argument("--tokens", type=shared.positive, default=250_000, help="of each training")
    parser.add_argument("--seeds", type=shared.positive, default=1, help="trainings of each trial")
    return parser.parse_args(arguments)


def trials(recipe: Recipe, shipped: Mapping[str, Any], only: Sequence[str] | None = None) -> list[Trial]:
    """The shipped recipe first, then each value that differs from it. ``shipped``: its optimizer's parameters.

    Raises UserError for a name in ``only`` that the recipe does not vary.
    """
    values = {**recipe.optimizer, **recipe.settings, "rows": recipe.rows}
    unknown = [name for name in only or () if name not in values]
    if unknown:
        raise UserError(f"--settings {unknown[0]}: it is none of {', '.join(values)}")
    config = load_run_config(None)
    settings = {name: attrgetter(name)(config) for name in recipe.settings}
    standard = {**shipped, **settings, "rows": DEFAULT_ROWS}
    tried = {name: values[name] for name in only or values}
    changed = [Trial(name, value) for name, of in tried.items() for value in of if value != standard[name]]
    return [Trial(), *changed]


def run(trial: Trial, shipped: Mapping[str, Any], options: argparse.Namespace, make: Callable[..., Job]) -> float:
    """Held-out bits a byte after one training."""
    rows, settings = DEFAULT_ROWS, {}
    parameters = dict(shipped["optimizer"]["params"])
    if trial.setting == "rows":
        rows = trial.value
    elif trial.setting in parameters:
        parameters[trial.setting] = trial.value
    elif trial.setting:
        settings = {trial.setting: trial.value}
    steps = -(-options.tokens // (rows * options.row_length))
    with tempfile.TemporaryDirectory() as directory:
        config = Path(directory) / "deepspeed.json"
        config.write_text(json.dumps({**shipped, "optimizer": {**shipped["optimizer"], "params": parameters}}))
        worker = Worker(
            trial.setting, make(total_steps=steps, micro_batch=rows, deepspeed_config=str(config), settings=settings)
        )
        try:
            worker.train(steps)
            return float(worker.ask("evaluate")["bits_per_byte"])
        finally:
            worker.close()


def table(results: Sequence[tuple[Trial, Sequence[float]]]) -> str:
    """One line a trial: bits a byte over the seeds, and the distance from the shipped recipe, seed by seed."""
    rows = []
    for trial, bits in results:
        apart = [own - other for own, other in zip(bits, results[0][1], strict=True)]
        value = "" if trial.value is None else str(trial.value)
        rows.append([trial.setting or "as shipped", value, spread(bits, ".3f"), spread(apart, "+.3f"), error(apart)])
    return markdown(["setting", "value", "held-out bits/byte", "against shipped", "mean, standard error"], rows)


def error(apart: Sequence[float]) -> str:
    """Mean of the seeds' distances and its standard error, which a single seed does not have."""
    deviation = f"{stdev(apart) / len(apart) ** 0.5:.3f}" if len(apart) > 1 else "n/a"
    return f"{mean(apart):+.3f}, {deviation}"


if __name__ == "__main__":
    shared.exit_cleanly(main)
