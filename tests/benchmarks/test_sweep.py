"""Which trials a sweep makes, and what each one changes."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import sweep
from benchmarks.corpus import Corpus
from benchmarks.sweep import RECIPES, Recipe, Trial
from minimind.base.errors import UserError

SHIPPED = {"optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "betas": [0.9, 0.999]}}, "bf16": {"enabled": True}}


def test_the_shipped_recipe_is_first_and_never_twice() -> None:
    recipe = Recipe("x.json", {"lr": [1e-3, 2e-3]}, {"warmup_ratio": [0.02, 0.1]}, [4, 8])
    found = sweep.trials(recipe, {"lr": 1e-3})
    assert found == [Trial(), Trial("lr", 2e-3), Trial("warmup_ratio", 0.1), Trial("rows", 4)]
    assert sweep.trials(recipe, {"lr": 1e-3}, ["rows"]) == [Trial(), Trial("rows", 4)]
    with pytest.raises(UserError, match="none of lr, warmup_ratio, rows"):
        sweep.trials(recipe, {"lr": 1e-3}, ["row"])


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_vary_what_their_json_says(name: str) -> None:
    shipped = json.loads(Path(RECIPES[name].deepspeed_config).read_text(encoding="utf-8"))
    assert set(RECIPES[name].optimizer) <= set(shipped["optimizer"]["params"])


@pytest.mark.parametrize(
    ("trial", "rate", "settings", "rows", "steps"),
    [
        (Trial(), 1e-3, {}, 8, 10),
        (Trial("lr", 2e-3), 2e-3, {}, 8, 10),
        (Trial("warmup_ratio", 0.0), 1e-3, {"warmup_ratio": 0.0}, 8, 10),
        (Trial("rows", 4), 1e-3, {}, 4, 20),
    ],
)
def test_a_trial_changes_one_thing(
    trial: Trial, rate: float, settings: dict[str, Any], rows: int, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[dict[str, Any]] = []

    class FakeWorker:
        def __init__(self, name: str, job: dict[str, Any]) -> None:
            made.append(job | {"json": json.loads(Path(job["deepspeed_config"]).read_text())})

        def train(self, count: int) -> None:
            made.append({"trained": count})

        def ask(self, _: str) -> dict[str, float]:
            return {"bits_per_byte": 3.0}

        def close(self) -> None:
            pass

    monkeypatch.setattr(sweep, "Worker", FakeWorker)
    options = argparse.Namespace(tokens=8 * 512 * 10, row_length=512)
    assert sweep.run(trial, SHIPPED, options, lambda **changes: changes) == 3.0  # type: ignore[arg-type, return-value]
    job, trained = made
    assert job["json"]["optimizer"]["params"] == {"lr": rate, "betas": [0.9, 0.999]}
    assert (job["settings"], job["micro_batch"], job["total_steps"], trained["trained"]) == (
        settings,
        rows,
        steps,
        steps,
    )


def test_the_table_shows_the_distance_from_the_shipped_recipe() -> None:
    """Seed by seed: 3.125 - 3.25 and 3.5 - 3.375."""
    table = sweep.table([(Trial(), [3.25, 3.375]), (Trial("lr", 2e-3), [3.125, 3.5])])
    assert "as shipped" in table and "3.312 (3.250..3.375)" in table
    assert "+0.000 (-0.125..+0.125) | +0.000, 0.125" in table
    assert sweep.error([0.5]) == "+0.500, n/a"


def test_every_trial_runs_with_the_same_seeds(
    files: dict[str, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seeds: list[int] = []

    def run(trial: Trial, shipped: object, options: object, make: Any) -> float:
        seeds.append(make(total_steps=1, micro_batch=8, deepspeed_config="ds_configs/bf16.json", settings={}).seed)
        return 3.0

    monkeypatch.setattr(sweep, "run", run)
    monkeypatch.setattr(sweep, "make_corpus", lambda *_: Corpus(*[files["pretrain"]] * 3))
    sweep.main(["--settings", "warmup_ratio", "--seeds", "2"])
    assert seeds == [42, 43] * 3
    assert "3.000 (3.000..3.000)" in capsys.readouterr().out
