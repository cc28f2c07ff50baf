"""What is printed to be typed can be typed: whole, quoted, parsed by the real parsers, with paths that exist."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from minimind.base.command_lines import OwnCommand, typed
from minimind.base.findings import Finding
from minimind.base.hardware import Hardware, advised_config, shipped_config
from minimind.cli import app
from minimind.config.deepspeed import resolve
from minimind.config.run import load_run_config
from minimind.training.record.advice import Adviser
from minimind.training.run import arguments
from minimind.training.run.next_commands import next_lines, resume_command, sweep_command, tune_command
from minimind.training.run.rescue import remedies
from minimind.training.sweep import options as lr_options

ROOT = Path(__file__).parents[2]
GPU = Hardware("cuda", fp16=True, bf16=True)


def parse(line: str) -> Any:
    """The options of a printed ``deepspeed`` line, by the parser of the script that it names."""
    words = shlex.split(line)
    assert words[0] == "deepspeed"
    at = next(i for i, word in enumerate(words) if word.endswith(".py"))
    assert Path(words[at]).is_file()
    name, rest = Path(words[at]).stem, words[at + 1 :]
    return lr_options.parse(rest) if name == "lr_sweep" else arguments.parse(name, rest)  # type: ignore[arg-type]


def check_minimind(line: str) -> list[str]:
    """A printed ``minimind`` line is one that the console command takes."""
    words = shlex.split(line)
    assert words[0] == "minimind"
    command: Any = typer.main.get_command(app)
    command.commands[words[1]].make_context(words[1], words[2:])
    return words


def started(*more: str, ranks: int = 1) -> OwnCommand:
    json_file = str(ROOT / "ds_configs" / "fp16.json")
    words: tuple[str, ...] = ("--deepspeed_config", json_file, "--train-file", "my data/a b.jsonl", "c.jsonl")
    words += ("--output-dir", "runs/it's mine", "--set", "seed=1", "--local_rank=0", *more)
    return OwnCommand("pretrain", words, ranks)


@pytest.mark.parametrize("resumed", [(), ("--resume",), ("--resume", "runs/old"), ("--resume=runs/old", "--dry-run")])
@pytest.mark.parametrize("elsewhere", [False, True])
def test_going_on_is_the_same_command_wherever_it_is_typed(
    resumed: tuple[str, ...], elsewhere: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path if elsewhere else ROOT)
    parsed = parse(resume_command(started(*resumed)))
    assert parsed.train_file == [Path("my data/a b.jsonl"), Path("c.jsonl")]
    assert parsed.output_dir == Path("runs/it's mine") and parsed.set == ["seed=1"]
    assert parsed.resume == "" and not parsed.dry_run


@pytest.mark.parametrize(
    ("given", "again"),
    [(None, ""), ("", " --resume"), ("auto", " --resume auto"), ("runs/a b", " --resume 'runs/a b'")],
)
def test_a_run_without_a_checkpoint_is_started_again_as_it_was(given: str | None, again: str) -> None:
    """``--resume`` would find nothing; what it was resumed from, or would begin with, is in the line."""
    command = started(*([] if given is None else ["--resume", *([given] if given else [])]))
    lines = next_lines(command, given)
    assert lines.go_on == f"with: {command.line('--resume')}" and lines.again == f"with: {command.line()}{again}"
    assert parse(lines.again.removeprefix("with: ")).resume == given


def test_the_number_of_ranks_is_named_where_the_launcher_would_choose_another() -> None:
    assert "--num_gpus 2" in resume_command(started(ranks=2))
    assert "--num_gpus" not in resume_command(started())


def test_a_sweep_reads_the_runs_files() -> None:
    command = started("--max-steps", "7", "--eval-file", "e.jsonl")
    config = load_run_config(None, [], {"output_dir": "runs/it's mine", "train_file": ["a"]})
    parsed = parse(sweep_command(command, config, 1e-4, 3e-3))
    assert parsed.train_file == [Path("my data/a b.jsonl"), Path("c.jsonl")]
    assert (parsed.low, parsed.high, parsed.output_dir) == (1e-4, 3e-3, Path("runs/it's mine-sweep"))


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("name", ["bf16.json", "fp16_zero2.json", "muon.json", "demo_fp32.json"])
def test_fine_tuning_is_named_whole_on_the_built_in_corpus_and_not_on_other_files(
    name: str, elsewhere: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path if elsewhere else ROOT)
    precision = "fp32" if "fp32" in name else "fp16" if "fp16" in name else "bf16"
    config = load_run_config(None, ["max_seq_length=128", "gradient_checkpointing=true"], {"output_dir": "runs/a b"})
    line = tune_command(started(), config, precision, ROOT / "ds_configs" / name)
    assert line is not None
    parsed = parse(line)
    purpose = "demo_" if name.startswith("demo_") else "sft_"
    assert parsed.deepspeed_config.is_file() and parsed.deepspeed_config.name == f"{purpose}{precision}.json"
    assert parsed.model == Path("runs/a b") and parsed.output_dir not in (None, parsed.model)
    assert purpose == "demo_" or parsed.set == ["max_seq_length=128", "gradient_checkpointing=true"]
    assert purpose == "sft_" or parsed.config.is_file()
    own = load_run_config(None, [], {"train_file": ["mine.jsonl"]})
    assert tune_command(started(), own, precision, ROOT / "ds_configs" / name) is None


@pytest.mark.parametrize("name", ["fp16.json", "sft_fp16.json", "muon.json", "fp16_fixed_scale.json", "fp32.json"])
def test_each_remedy_of_a_post_mortem_can_be_typed_and_configures(name: str) -> None:
    source = ROOT / "ds_configs" / name
    command = OwnCommand("pretrain", ("--deepspeed_config", str(source), "--train-file", "a b.jsonl"))
    resolved = resolve(source, load_run_config(None), 1, GPU)
    rate = Finding("lr-above-band", "learning rate 1 is above", "", values={"start": 2e-3})
    found = remedies(resolved, command, rate, bf16=True)
    lines = [text[text.index("deepspeed launch") :] for text in found if "deepspeed launch" in text]
    assert "learning_rate=0.002" in lines[0] and len(lines) >= 3
    for line in lines:
        parsed = parse(line)
        again = resolve(parsed.deepspeed_config, load_run_config(None, parsed.set), 1, GPU)
        assert parsed.resume == "" and parsed.train_file == [Path("a b.jsonl")]
        assert again.optimizer.type == resolved.optimizer.type
    last = parse(lines[-1])
    assert resolve(last.deepspeed_config, load_run_config(None, last.set), 1, GPU).precision == "fp32"


# ------------------------------------------------------------------ advice


LR = Finding("lr-above-band", "too high", "start", values={"lr": 0.1, "low": 1e-4, "high": 3e-3, "start": 2e-3})
SPIKE = Finding("loss-spike", "spike", "look at this step's samples (minimind samples); or lower the learning rate", 7)


def test_samples_are_asked_for_with_run_and_step(tmp_path: Path) -> None:
    advice = Adviser(tmp_path / "a run").complete(SPIKE).advice
    words = check_minimind(advice[advice.index("(") + 1 : advice.index(")")])
    assert words[2:] == [str(tmp_path / "a run"), "--step", "7"]


@pytest.mark.parametrize(
    "code", ["loss-spike", "loss-plateau", "loss-not-finite", "grad-norm-below-band", "run-failed"]
)
def test_with_an_unusual_rate_the_advice_begins_with_it(code: str, tmp_path: Path) -> None:
    adviser = Adviser(tmp_path)
    advice = "raise the learning rate, or look at the data"
    before = adviser.complete(Finding(code, "m", advice, 3)).advice
    assert before == advice
    adviser.complete(LR)
    after = adviser.complete(Finding(code, "m", advice, 3)).advice
    assert after.startswith("first the learning rate: 0.1 is above the usual 0.0001 to 0.003: start from 0.002")
    assert code == "run-failed" or "raise" not in after


def test_other_findings_keep_their_advice(tmp_path: Path) -> None:
    adviser = Adviser(tmp_path)
    adviser.complete(LR)
    stall = Finding("data-stall", "waits", "put the store on a local disk", 3)
    assert adviser.complete(stall) == stall


def test_no_advice_asks_for_what_is_there(tmp_path: Path) -> None:
    adviser = Adviser(tmp_path)
    high = Finding("grad-norm-high", "m", "set gradient_clipping to 0.5", 3)
    assert adviser.complete(high) == high
    adviser.gradient_clipping = 0.3
    assert "clipped at 0.3 already" in adviser.complete(high).advice


# ------------------------------------------------------------------ JSONs of the same purpose


@pytest.mark.parametrize(
    ("source", "kind", "name", "expected"),
    [
        ("ds_configs/sft_bf16.json", "sft", "fp32", "sft_fp32.json"),
        ("ds_configs/sft_bf16.json", "pretrain", "fp32", "sft_fp32.json"),
        ("ds_configs/bf16.json", "pretrain", "fp32", "fp32.json"),
        ("mine.json", "sft", "fp32", "sft_fp32.json"),
        ("ds_configs/demo_bf16.json", "sft", "fp32", "demo_fp32.json"),
        ("/elsewhere/sft_mine.json", "sft", "bf16", "sft_bf16.json"),
    ],
)
def test_advice_names_a_json_of_the_same_purpose(
    source: str, kind: str, name: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for directory in (ROOT, tmp_path):
        monkeypatch.chdir(directory)
        advised = Path(advised_config(source, kind, name))
        assert advised.name == expected and advised.is_file()
    assert shipped_config("ds_configs/sft_bf16.json", "sft", "bf16_zero2") is None


@pytest.mark.parametrize("path", sorted((ROOT / "ds_configs").glob("*.json")), ids=lambda path: path.stem)
def test_on_a_plain_cpu_every_shipped_json_is_answered_with_one_of_its_purpose(path: Path) -> None:
    plain = Hardware("cpu", fp16=False, bf16=False, name="Xeon")
    purpose = path.name.partition("_")[0] if path.name.startswith(("sft_", "demo_")) else ""
    resolved = resolve(path, load_run_config(None, ["emulate_fp16=true"]), 1, plain)
    for finding in resolved.findings:
        for word in finding.advice.split():
            if word.endswith(".json"):
                assert Path(word).is_file()
                assert Path(word).name == (f"{purpose}_fp32.json" if purpose else "fp32.json")


def test_a_line_is_quoted() -> None:
    assert shlex.split(typed("minimind", "chat", Path("a b/it's"))) == ["minimind", "chat", "a b/it's"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--train_fil", "a"], "unrecognized arguments: --train_fil a; --train_fil: did you mean --train-file?"),
        (["--learning_rate", "1"], "unrecognized arguments: --learning_rate 1; --learning_rate is a setting: --set"),
        (["--max-steps", "ten"], "argument --max-steps: invalid int value: 'ten'"),
    ],
)
def test_a_wrong_option_is_one_line(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        arguments.parse("pretrain", words)
    errors = capsys.readouterr().err
    assert ended.value.code == 2 and errors.startswith(f"error: {message}")
    assert errors.endswith(" (launch/pretrain.py --help)\n") and errors.count("\n") == 1
