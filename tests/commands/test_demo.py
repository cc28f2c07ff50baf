"""`minimind demo` step by step, with the training replaced by what it leaves behind."""

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from minimind.base.errors import UserError
from minimind.commands import demo as demo_run
from minimind.commands.questions import Answer
from minimind.inference.about import about_model
from minimind.training.record.file import to_line


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The corpus and the runs as they are after training; returns the commands that would have run."""
    commands: list[list[str]] = []

    def prepare(directory: Path) -> tuple[Path, Path]:
        corpus = directory / "data"
        corpus.mkdir(parents=True)
        (corpus / "floor.json").write_text(json.dumps({"nats_per_byte": 0.2}))
        return corpus, directory / "tokenizer"

    def execute(command: Sequence[str], run_dir: Path) -> int:
        commands.append(list(command))
        run = Path(command[command.index("--output-dir") + 1])
        run.mkdir()
        line = {"kind": "eval", "step": 1, "loss": 1.0, "bits_per_byte": 0.22 / math.log(2)}
        (run / "metrics.jsonl").write_bytes(to_line(line))
        return 0

    monkeypatch.setattr(demo_run, "_prepare", prepare)
    monkeypatch.setattr(demo_run, "_run", execute)
    return commands


def answers(monkeypatch: pytest.MonkeyPatch, right: int) -> None:
    given = [Answer(f"[bold]q{n}", "a", "a" if n < right else "b", "arithmetic", 1 + n % 2) for n in range(100)]
    monkeypatch.setattr("minimind.inference.generation.load_model", lambda path: (None, None))
    monkeypatch.setattr("minimind.commands.questions.read_conversations", lambda path: [])
    monkeypatch.setattr("minimind.commands.questions.ask_questions", lambda conversations, respond: given)


@pytest.mark.parametrize(("right", "code"), [(100, 0), (90, 0), (89, 1)])
def test_ninety_of_a_hundred_pass(
    right: int,
    code: int,
    tmp_path: Path,
    trained: list[list[str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    answers(monkeypatch, right)
    assert demo_run.run_demo(tmp_path / "demo") == code
    out = capsys.readouterr().out
    assert f"{right} of 100 right" in out
    assert "held-out loss 0.2200 nats a byte, entropy floor 0.2000: 1.100 times the floor" in out
    assert f"minimind chat {tmp_path / 'demo' / 'sft'}" in out
    assert f"minimind report {tmp_path / 'demo' / 'pretrain'}" in out
    assert "[bold]q9" in out and "[bold]q10" not in out, "ten are shown"
    assert f"{right} of 100" in out.partition("second or third")[2]


def test_what_the_model_knows_is_kept_with_it(
    tmp_path: Path, trained: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers(monkeypatch, 100)
    demo_run.run_demo(tmp_path / "demo")
    about = about_model(tmp_path / "demo" / "sft")
    assert about is not None and len(about.examples) == 3
    assert about_model(tmp_path / "demo" / "pretrain") is None


def test_both_commands_are_the_documented_ones(
    tmp_path: Path, trained: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from minimind.training.run.arguments import parse

    answers(monkeypatch, 10)
    demo_run.run_demo(tmp_path / "demo")
    for kind, command in zip(("pretrain", "sft"), trained, strict=True):
        (at,) = (i for i, word in enumerate(command) if word.endswith(f"launch/{kind}.py"))
        arguments = parse(kind, command[at + 1 :])
        assert arguments.deepspeed_config.is_file()
        assert arguments.output_dir == tmp_path / "demo" / kind
    assert trained[1][trained[1].index("--model") + 1] == str(tmp_path / "demo" / "pretrain")


def test_a_failed_command_ends_the_demo_with_its_code(
    tmp_path: Path, trained: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_run, "_run", lambda command, run_dir: 3)
    assert demo_run.run_demo(tmp_path / "demo") == 3


def test_a_command_is_printed_before_it_runs(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert demo_run._run([sys.executable, "-c", "print('ran'); raise SystemExit(5)"], tmp_path) == 5
    first, second = capfd.readouterr().out.splitlines()
    assert first.startswith("$ ")
    assert second == "ran"


def test_a_run_that_was_stopped_early_ends_the_demo(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    command = [sys.executable, "-c", ""]
    assert demo_run._run(command, tmp_path) == 1
    assert "stopped before" in capfd.readouterr().out
    (tmp_path / "final").mkdir()
    assert demo_run._run(command, tmp_path) == 0


def test_an_installation_without_launch_scripts(
    tmp_path: Path, trained: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minimind.base.shipped.PACKAGE", tmp_path / "nothing" / "minimind")
    with pytest.raises(UserError, match=r"nothing/launch/pretrain.py: this installation is incomplete"):
        demo_run.run_demo(tmp_path / "demo")


def test_nats_per_byte_of_the_last_evaluation() -> None:
    records = [{"kind": "eval", "bits_per_byte": 2.0}, {"kind": "train"}, {"kind": "eval", "bits_per_byte": 1.0}]
    assert demo_run.nats_per_byte(records) == pytest.approx(math.log(2))
    assert demo_run.nats_per_byte([{"kind": "eval", "bits_per_byte": None}]) is None
