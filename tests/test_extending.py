"""docs/architecture.md says how to add an optimizer, a schedule, a data format, a health rule, a tracker, a command and
an export format: one entry in one place each. Here one of each is added that way, and works from beginning to end.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from minimind import cli
from minimind.base.display import say
from minimind.base.errors import UserError
from minimind.base.findings import Finding
from minimind.base.hardware import Hardware
from minimind.cli import app
from minimind.cli.options import Model
from minimind.commands import models
from minimind.config import run as run_config
from minimind.config import schedules
from minimind.config.deepspeed import resolve
from minimind.config.deepspeed.optimizers import OPTIMIZERS, OptimizerKind, learning_rate
from minimind.config.memory import estimate_memory
from minimind.config.run import load_run_config
from minimind.data.read import tables
from minimind.data.read.json_text import Value
from minimind.data.read.sources import expand, read_records
from minimind.data.read.streams import Head, text_lines
from minimind.training.engine.optimizers import build_optimizer
from minimind.training.engine.schedule import Schedule
from minimind.training.health import monitor
from minimind.training.record.metrics import Metrics
from minimind.training.record.trackers.tracker import Beginning
from minimind.training.values import StepMetrics
from tests.support import tiny_config, tiny_model

ROOT = Path(__file__).parents[1]
HERE = __name__
CPU = Hardware("cpu", fp16=False, bf16=True)
STEP = StepMetrics(
    step=1,
    tokens=100,
    loss=2.0,
    grad_norm=1.0,
    lr=1e-3,
    loss_scale=None,
    skipped=0,
    applied=True,
    tokens_per_second=None,
    seconds=1.0,
    epoch=0.1,
)


def sgd(groups: list[dict[str, Any]], params: dict[str, Any]) -> torch.optim.Optimizer:
    return torch.optim.SGD(groups, lr=params["lr"], momentum=params.get("momentum", 0.0))


class Notebook:
    """A tracker that keeps what it is told."""

    def __init__(self, beginning: Beginning) -> None:
        self.name = beginning.name
        self.told: list[tuple[str, Any]] = []

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        self.told.append(("log", (step, numbers["train/loss"])))

    def alert(self, finding: Finding) -> None:
        self.told.append(("alert", finding.code))

    def findings(self) -> list[Finding]:
        return []

    def finish(self, failed: bool = False) -> None:
        self.told.append(("finish", failed))


def pipe_values(head: Head) -> Iterator[Value]:
    for number, line in text_lines(head):
        yield Value({"text": str(line).replace("|", " ")}, number)


def rises(health: monitor.Health, metrics: StepMetrics) -> Finding | None:
    if len(health.losses) < 2 or metrics.loss <= health.losses[0]:
        return None
    return Finding("higher-than-first", f"loss {metrics.loss:g}", "look at the data")


@pytest.fixture
def entry(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any, str, Any], None]:
    return monkeypatch.setitem


def test_an_optimizer(entry: Callable[[Any, str, Any], None]) -> None:
    params = {"lr": "number", "momentum": "number", "weight_decay": "number"}
    entry(OPTIMIZERS, "SignSGD", OptimizerKind(params, 0.1, 0.01, (4.0, 4.0), f"{HERE}:sgd", also=("momentumsgd",)))
    section = {"type": "momentum_sgd", "params": {"lr": "auto", "momentum": 0.9}}
    config = tiny_config()
    resolved = resolve({"optimizer": section, "bf16": {"enabled": True}}, config, 1, CPU)
    assert (resolved.optimizer.type, resolved.optimizer.params["lr"]) == (
        "SignSGD",
        learning_rate("pretrain", "SignSGD"),
    )
    assert estimate_memory(config, resolved).optimizer == 4 * config.model.num_parameters()
    optimizer = build_optimizer(tiny_model(), resolved.optimizer.type, resolved.optimizer.params)
    assert isinstance(optimizer, torch.optim.SGD) and optimizer.param_groups[0]["momentum"] == 0.9
    with pytest.raises(UserError, match=r"optimizer.params.eps"):
        resolve({"optimizer": {"type": "SignSGD", "params": {"eps": 1}}, "bf16": {"enabled": True}}, config, 1, CPU)


def test_a_schedule(entry: Callable[[Any, str, Any], None]) -> None:
    entry(schedules.SHAPES, "square", lambda progress: (1.0 - progress) ** 2)
    config = load_run_config(None, ["lr_scheduler_type=square"])
    schedule = Schedule(config.lr_scheduler_type, total_steps=5, warmup_steps=0, min_lr_ratio=0.0)
    assert [schedule.factor(step) for step in range(5)] == [1.0, 0.5625, 0.25, 0.0625, 0.0]
    with pytest.raises(UserError, match=r"expected 'cosine', .* or 'square', got 'cubic'"):
        load_run_config(None, ["lr_scheduler_type=cubic"])


def test_a_data_format(entry: Callable[[Any, str, Any], None], tmp_path: Path) -> None:
    entry(tables.READERS, ".pipes", pipe_values)
    (tmp_path / "a.pipes").write_text("the|sea\ncalm|day\n", encoding="utf-8")
    sources, ignored = expand([tmp_path], tmp_path)
    assert [source.path.name for source in sources] == ["a.pipes"] and not ignored
    records = list(read_records(sources[0].path))
    assert [(record.value, record.line) for record in records] == [({"text": "the sea"}, 1), ({"text": "calm day"}, 2)]


def test_a_health_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitor, "STEP_RULES", [*monitor.STEP_RULES, rises])
    health, fields = monitor.Health(), vars(STEP)
    codes = [[f.code for f in health.observe_step(StepMetrics(**fields | {"loss": loss}))] for loss in (2.0, 3.0, 3.0)]
    assert codes == [[], ["higher-than-first"], []]  # and once an episode, as every other one
    assert monitor.Health.from_state(json.loads(json.dumps(health.state()))).episodes == {"higher-than-first": 0}


def test_a_tracker(entry: Callable[[Any, str, Any], None], tmp_path: Path) -> None:
    entry(run_config.TRACKERS, "notebook", f"{HERE}:Notebook")
    config = load_run_config(None, ["report_to=notebook"], {"output_dir": str(tmp_path)})
    metrics = Metrics(tmp_path, 0, config, 2)
    metrics.step(STEP)
    metrics.finding(Finding("a", "b", "c"))
    metrics.close()
    tracker: Any = metrics._trackers[0]
    assert tracker.name == tmp_path.name
    assert tracker.told == [("log", (1, 2.0)), ("alert", "a"), ("finish", True)]


def test_a_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(app, "registered_commands", [*app.registered_commands])

    @app.command()
    def name_of(model: Model) -> None:
        say(model.name)

    assert cli.run(["name-of", "runs/river"]) == 0
    assert capsys.readouterr().out == "river\n"


def test_an_export_format(entry: Callable[[Any, str, Any], None], tmp_path: Path) -> None:
    def write(path: Path, output: Path, dtype: object, tokenizer: Path | None) -> Path:
        output.write_text(f"{path.name} as text")
        return output

    entry(models.EXPORTERS, "txt", write)
    words = ["export", "runs/a", "--output", str(tmp_path / "a.txt"), "--format"]
    assert CliRunner().invoke(app, [*words, "txt"]).exit_code == 0
    assert (tmp_path / "a.txt").read_text() == "a as text"
    refused = CliRunner().invoke(app, [*words, "doc"])
    assert isinstance(refused.exception, UserError) and "--format doc: not one of hf, pth, gguf, txt" in str(
        refused.exception
    )
