"""Runs written by the version before the package's folders were moved (commit 6ed40c5) go on as if nothing had been.

tests/fixtures/before_the_move.tar.xz holds two runs of six steps (fp32 at stage 0, bf16 at stage 1; 7,632 parameters)
with their checkpoints of steps 3 and 6. Made on a CPU with AVX-512: elsewhere sums are rounded in another order, so the
steps that this machine computes are compared to five digits, what is loaded to the last bit.
"""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest
import torch

from minimind.config.deepspeed import resolve
from minimind.config.run import load_run_config
from minimind.model.transformer import Transformer
from minimind.training.engine.engine import Engine
from minimind.training.run.arguments import parse
from minimind.training.run.main import run
from tests.support import CPU, DS_CONFIGS

FIXTURE = Path(__file__).parents[2] / "fixtures" / "before_the_move.tar.xz"
SHAPE = (
    "model={vocab_size: 330, hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 2, "
    "num_key_value_heads: 1, head_dim: 8, intermediate_size: 32}"
)
STEPS = ["--set", "max_seq_length=32", "--set", "save_steps=3", "--set", "logging_steps=1"]


def tensors(directory: Path) -> dict[str, torch.Tensor]:
    """Every tensor of a checkpoint's files by its place in them. The files are ours, so pickles may be read."""
    found: dict[str, torch.Tensor] = {}

    def collect(value: Any, where: str) -> None:
        if isinstance(value, torch.Tensor):
            found[where] = value
        elif isinstance(value, dict):
            for key, inner in value.items():
                collect(inner, f"{where}/{key}")
        elif isinstance(value, (list, tuple)):
            for index, inner in enumerate(value):
                collect(inner, f"{where}/{index}")

    for file in sorted((directory / "engine").glob("*.pt")):
        collect(torch.load(file, weights_only=False), file.name)
    return found


def resume(name: str, steps: int) -> int:
    words = ["--deepspeed_config", str(DS_CONFIGS / f"{name}.json"), "--train-file", "text.jsonl", "--set", SHAPE]
    words += ["--tokenizer", "tokenizer", "--output-dir", f"run-{name}", "--max-steps", str(steps), "--resume", *STEPS]
    return run("pretrain", parse("pretrain", words))


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("name", ["fp32", "bf16"])
def test_a_run_from_before_goes_on(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tarfile.open(FIXTURE) as archive:
        archive.extractall(tmp_path, filter="data")
    kept = tmp_path / "before_the_move"
    monkeypatch.chdir(kept)
    shutil.copytree(kept / name, here := kept / f"run-{name}")
    shutil.rmtree(here / "checkpoints" / "step-00000006")
    (here / "latest").write_text("checkpoints/step-00000003")
    assert resume(name, 6) == 0
    old, new = (tensors(run / "checkpoints" / "step-00000006") for run in (kept / name, here))
    assert old.keys() == new.keys() and len(old) > 10
    for place, tensor in old.items():
        torch.testing.assert_close(new[place], tensor, rtol=1e-3, atol=1e-5, msg=lambda text, p=place: f"{p}: {text}")
    rows = [
        [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()] for run in (kept / name, here)
    ]
    losses = [[row["loss"] for row in run if row["kind"] == "train"] for run in rows]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4) and losses[0][:3] == losses[1][:3]


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("name", ["fp32", "bf16"])
def test_what_is_loaded_is_what_was_written(name: str, tmp_path: Path) -> None:
    """Resumed where it ended, a finished run saves nothing new; so the engine is loaded here and saved again."""
    with tarfile.open(FIXTURE) as archive:
        archive.extractall(tmp_path, filter="data")
    checkpoint = tmp_path / "before_the_move" / name / "checkpoints" / "step-00000003"
    config = load_run_config(None, [SHAPE])
    engine = Engine(
        Transformer(config.model, seed=1), resolve(DS_CONFIGS / f"{name}.json", config, 1, CPU), lambda s: 1.0
    )
    state = engine.load(checkpoint)
    engine.save(tmp_path / "again", state)
    old, new = tensors(checkpoint), tensors(tmp_path / "again")
    assert old.keys() == new.keys() and len(old) > 10
    assert all(torch.equal(old[place], new[place]) for place in old)
