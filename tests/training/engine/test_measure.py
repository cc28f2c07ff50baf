"""What is measured before a run: optimizer states against the table, the speed of a micro-batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from minimind.base.hardware import Hardware
from minimind.config.deepspeed import OptimizerSpec, resolve
from minimind.config.memory import table_state_bytes
from minimind.config.model import ModelConfig
from minimind.config.run import load_run_config
from minimind.training.engine import measure
from minimind.training.engine.measure import (
    best_rows,
    count_launches,
    measure_state_bytes,
    measure_tokens_per_second,
    measure_update_seconds,
)

CONFIGS = Path(__file__).parents[3] / "ds_configs"


@pytest.mark.parametrize("kind", ["AdamW", "Adam", "Lion", "Muon", "AdamW8bit"])
def test_measured_optimizer_states_equal_the_table(kind: str) -> None:
    if kind == "AdamW8bit":
        pytest.importorskip("bitsandbytes")
    spec = OptimizerSpec(kind, {"lr": 1e-3, "betas": (0.9, 0.99), "weight_decay": 0.0})
    model = ModelConfig.preset("tiny", vocab_size=1000)
    room = 0.05 if kind == "AdamW8bit" else 1e-3  # its small tensors stay in fp32
    assert measure_state_bytes(spec, model) == pytest.approx(table_state_bytes(spec, model), rel=room)


def test_speed_is_that_of_a_few_rows_on_a_cpu_and_the_budget_ends_it_after_two(monkeypatch: pytest.MonkeyPatch) -> None:
    run = load_run_config(None, ["model=tiny", "model.vocab_size=1000", "max_seq_length=32"])
    cpu = Hardware("cpu", True, True, "CPU", 2**34)
    resolved = resolve(CONFIGS / "demo_fp32.json", run, 1, cpu)
    assert measure_tokens_per_second(run, resolved, cpu, budget=0.0) > 0
    rows: list[int] = []

    def seconds(*given: Any, **_: Any) -> float:
        rows.append(given[3])
        return 2.0

    monkeypatch.setattr(measure, "_seconds", seconds)
    for length, wanted in ((32, 8), (256, 2), (512, 1), (1024, 1)):  # of the micro-batch's eight
        longer = run.model_copy(update={"max_seq_length": length})
        assert measure_tokens_per_second(longer, resolved, cpu) == wanted * length / 2
        assert rows.pop() == wanted


def test_a_large_model_is_measured_by_so_many_layers_as_fit_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass of k layers takes as long as its FLOPs say, so the answer is that of the whole model."""
    run = load_run_config(None, ["model=306m", "max_seq_length=512"])
    cpu = Hardware("cpu", True, True, "CPU", 2**36)
    resolved = resolve(CONFIGS / "fp32.json", run, 1, cpu)
    made: list[int] = []

    def seconds(*given: Any, model: ModelConfig, **_: Any) -> float:
        made.append(model.num_hidden_layers)
        return measure._flops(model, run) * 512 / speed

    monkeypatch.setattr(measure, "_seconds", seconds)
    whole = measure._flops(run.model, run)
    for speed, layers in ((1e14, 27), (5e11, range(2, 27)), (1e9, 1)):
        assert measure_tokens_per_second(run, resolved, cpu) == pytest.approx(speed / whole)
        assert made.pop() in ([layers] if isinstance(layers, int) else layers) and made.pop() == 1


def test_rows_are_doubled_while_that_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    run = load_run_config(None, ["model=tiny", "model.vocab_size=1000", "max_seq_length=32"])
    cpu = Hardware("cpu", True, True, "CPU", 2**34)
    resolved = resolve(CONFIGS / "demo_fp32.json", run, 1, cpu)
    speeds = {1: 100.0, 2: 160.0, 4: 199.0, 8: 200.0, 16: 200.0}
    tried: list[int] = []

    def speed(*_: Any, rows: int, **__: Any) -> float:
        tried.append(rows)
        return speeds[rows]

    monkeypatch.setattr(measure, "measure_tokens_per_second", speed)
    assert best_rows(run, resolved, cpu, budget=100.0, most=20) == (4, 199.0)
    assert tried == [1, 2, 4, 8, 16]
    assert best_rows(run, resolved, cpu, budget=0.0, most=20) == (1, 100.0)  # one is always tried


def test_launches_are_counted_by_layer() -> None:
    two, four = (count_launches(ModelConfig.preset("26m", num_hidden_layers=layers)) for layers in (2, 4))
    wide = count_launches(ModelConfig.preset("26m", num_hidden_layers=2, hidden_size=1024, intermediate_size=4096))
    assert 40 < (four - two) / 2 < 400 and two == wide


def test_an_update_is_measured_by_its_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "UPDATED", 1000)
    assert measure_update_seconds(ModelConfig.preset("tiny", vocab_size=1000)) > 0
