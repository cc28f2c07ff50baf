"""What DeepSpeed's own monitors show under this loop: each output is seen, or the linter says there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from minimind.config.deepspeed import Resolved
from minimind.training.engine.engine import Engine
from minimind.training.engine.step import train_step
from tests.support import random_rows, split
from tests.training.engine import plain
from tests.training.engine.layouts import accepted, factor


def resolved(**sections: object) -> Resolved:
    batch = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2, "gradient_clipping": 1.0}
    adamw = {"type": "AdamW", "params": {"lr": 1e-3}}
    found = accepted({**batch, "optimizer": adamw, "zero_optimization": {"stage": 1}, **sections})
    assert found is not None
    return found


def run(monitored: Resolved) -> None:
    """Three steps of two micro-batches."""
    engine = Engine(plain.small_model(), monitored, factor)
    try:
        for step in range(3):
            train_step(engine, split(random_rows(2, seed=step), 1, 0, 1))
    finally:
        engine.close()


@pytest.mark.usefixtures("one_rank")
def test_profiler_timers_and_csv_monitor_show_what_deepspeed_says(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    profile = tmp_path / "flops.txt"
    monitored = resolved(
        flops_profiler={"enabled": True, "profile_step": 1, "output_file": str(profile)},
        csv_monitor={"enabled": True, "output_path": str(tmp_path), "job_name": "job"},
        wall_clock_breakdown=True,
    )
    run(monitored)
    assert "Profile Summary" in profile.read_text()
    header, *rates = (tmp_path / "job" / "Train_Samples_lr.csv").read_text().split()
    assert header == "step,lr" and [rate.split(",")[0] for rate in rates] == ["2", "4", "6"]
    assert any("fwd" in line and "bwd_allreduce" in line for line in "".join(capfd.readouterr()).splitlines())


@pytest.mark.usefixtures("one_rank")
def test_tensorboard_gets_the_rate_and_the_loss_scale(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run(
        resolved(fp16={"enabled": True}, tensorboard={"enabled": True, "output_path": str(tmp_path), "job_name": "job"})
    )
    events = accumulator.EventAccumulator(str(tmp_path / "job")).Reload()
    rates, scales = (events.Scalars(f"Train/Samples/{name}") for name in ("lr", "loss_scale"))
    assert [event.step for event in rates] == [2, 4, 6] == [event.step for event in scales]
    assert [event.value for event in rates] == pytest.approx([1e-3 * factor(step) for step in (1, 2, 3)])
    assert scales[0].value == 2.0**16


@pytest.mark.usefixtures("one_rank")
def test_comms_logger_names_every_operation(capfd: pytest.CaptureFixture[str]) -> None:
    run(resolved(comms_logger={"enabled": True, "verbose": True, "prof_all": True}))
    shown = "".join(capfd.readouterr())
    assert "comm op: all_reduce" in shown and "msg size" in shown


def test_what_shows_nothing_is_said() -> None:
    def codes(**sections: object) -> set[str]:
        return {finding.code for finding in resolved(**sections).findings}

    assert "monitor-silent" in codes(comms_logger={"enabled": True})
    assert "monitor-silent" not in codes(comms_logger={"enabled": True, "verbose": True})
    assert "monitor-off" in codes(comet={"enabled": True})
    assert "section-unused" in codes(activation_checkpointing={"partition_activations": True})
