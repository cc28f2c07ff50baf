"""What is measured before a run: optimizer states against the table, the speed of a micro-batch."""

from __future__ import annotations

from pathlib import Path

import pytest

from minimind.base.hardware import Hardware
from minimind.config.deepspeed import OptimizerSpec, resolve
from minimind.config.memory import table_state_bytes
from minimind.config.model import ModelConfig
from minimind.config.run import load_run_config
from minimind.training.engine.measure import measure_state_bytes, measure_tokens_per_second

CONFIGS = Path(__file__).parents[3] / "ds_configs"


@pytest.mark.parametrize("kind", ["AdamW", "Adam", "Lion", "Muon", "AdamW8bit"])
def test_measured_optimizer_states_equal_the_table(kind: str) -> None:
    if kind == "AdamW8bit":
        pytest.importorskip("bitsandbytes")
    spec = OptimizerSpec(kind, {"lr": 1e-3, "betas": (0.9, 0.99), "weight_decay": 0.0})
    model = ModelConfig.preset("tiny", vocab_size=1000)
    assert measure_state_bytes(spec, model) == pytest.approx(table_state_bytes(spec, model), rel=0.05)


def test_speed_is_that_of_one_row_on_a_cpu_and_the_budget_ends_it_after_two() -> None:
    run = load_run_config(None, ["model=tiny", "model.vocab_size=1000", "max_seq_length=32"])
    cpu = Hardware("cpu", True, True, "CPU", 2**34)
    resolved = resolve(CONFIGS / "demo_fp32.json", run, 1, cpu)
    assert measure_tokens_per_second(run, resolved, cpu, budget=0.0) > 0
