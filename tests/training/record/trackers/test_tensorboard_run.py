"""TensorBoard's own reader finds the numbers of a run, and after a resume or a rollback those of the last pass."""

from pathlib import Path

import pytest

from minimind.base.findings import Finding
from minimind.config.run import load_run_config
from minimind.training.record.trackers.tensorboard_run import TensorboardRun
from minimind.training.record.trackers.tracker import Beginning


def _run(directory: Path, steps: list[int], loss: float, resumed: int | None = None) -> None:
    tracker = TensorboardRun(Beginning(directory, load_run_config(None, []), "id", resumed, {"learning_rate": 0.25}))
    for step in steps:
        tracker.log({"train/loss": loss + step}, step)
    tracker.alert(Finding("loss-spike", "it rose", "look", steps[-1]))
    tracker.finish()
    assert tracker.findings() == []


def test_what_a_run_says_is_in_the_event_files(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    _run(tmp_path, [1, 2, 3, 4], 10.0)
    _run(tmp_path, [3, 4, 5, 4], 20.0, resumed=2)
    read = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(event.step, event.value) for event in read.Scalars("train/loss")] == [(1, 11), (2, 12), (3, 23), (4, 24)]
    assert any(b"learning_rate" in tensor.tensor_proto.string_val[0] for tensor in read.Tensors("run/text_summary"))
    assert any(b"loss-spike" in tensor.tensor_proto.string_val[0] for tensor in read.Tensors("finding/text_summary"))
