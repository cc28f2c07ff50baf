"""The real `deepspeed` launcher: two ranks, one line for a wrong command, a stop that loses nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from minimind.base.launcher import deepspeed_command
from minimind.inference.loading import load_model
from minimind.training.record.file import read_metrics
from minimind.training.run.arguments import parse
from minimind.training.run.main import run
from tests.support import DS_CONFIGS, run_ranks
from tests.waiting import PATIENCE, wait_for

ROOT = Path(__file__).parents[1]
MODEL = (
    "model={vocab_size: 400, hidden_size: 32, num_hidden_layers: 2, num_attention_heads: 4, "
    "num_key_value_heads: 2, head_dim: 8, intermediate_size: 64}"
)
SETTINGS = [MODEL, "max_seq_length=48", "logging_steps=1", "per_device_train_batch_size=4"]
CONFIGS = sorted(path.name for path in DS_CONFIGS.glob("*.json"))


def arguments(name: str, files: dict[str, Path], out: Path, *more: str) -> list[str]:
    words = ["--deepspeed_config", str(DS_CONFIGS / name), "--train-file", str(files["pretrain"])]
    words += ["--tokenizer", str(files["tokenizer"]), "--output-dir", str(out), "--emulate-fp16"]
    return words + [word for setting in SETTINGS for word in ("--set", setting)] + list(more)


def start(words: list[str], ranks: int = 1) -> subprocess.Popen[str]:
    command = deepspeed_command(ROOT / "launch" / "pretrain.py", words, num_processes=ranks)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def steps(out: Path) -> list[int]:
    return [record["step"] for record in read_metrics(out / "metrics.jsonl") if record["kind"] == "train"]


@pytest.mark.slow
def test_two_ranks_through_the_launcher_train_as_one_process_does(files: dict[str, Path], tmp_path: Path) -> None:
    two = start(arguments("fp32.json", files, tmp_path / "two", "--max-steps", "4"), ranks=2)
    output, _ = two.communicate(timeout=PATIENCE)
    assert two.returncode == 0, output
    halved = ["--max-steps", "4", "--set", "per_device_train_batch_size=8"]
    one = start(
        [
            word if word != SETTINGS[-1] else "save_steps=4"
            for word in arguments("fp32.json", files, tmp_path / "one", *halved)
        ]
    )
    output, _ = one.communicate(timeout=PATIENCE)
    assert one.returncode == 0, output
    curves = [
        [line["loss"] for line in read_metrics(tmp_path / name / "metrics.jsonl") if line["kind"] == "train"]
        for name in ("one", "two")
    ]
    assert curves[0] == pytest.approx(curves[1], rel=1e-5)
    assert (tmp_path / "two" / "final" / "model.safetensors").is_file()


def every_config(files: dict[str, Path], out: Path) -> dict[str, int]:
    codes = {}
    for name in CONFIGS:
        words = arguments(name, files, out / name, "--max-steps", "2", "--set", "save_steps=1", "--set", "eval_steps=1")
        words += ["--eval-file", str(files["pretrain"])]
        codes[name] = run("pretrain", parse("pretrain", words))
    return codes


@pytest.mark.slow
def test_every_shipped_json_runs_on_two_ranks(files: dict[str, Path], tmp_path: Path) -> None:
    first, second = run_ranks(2, every_config, files, tmp_path)
    assert first == second == dict.fromkeys(CONFIGS, 0)
    for name in CONFIGS:
        assert steps(tmp_path / name) == [1, 2], name
        exported, saved = (load_model(tmp_path / name / part)[0] for part in ("final", "checkpoints/step-00000002"))
        weights = exported.state_dict()
        assert all(torch.equal(value, weights[key]) for key, value in saved.state_dict().items()), name
        lines = [line for line in read_metrics(tmp_path / name / "metrics.jsonl") if line["kind"] == "eval"]
        assert [line["step"] for line in lines] == [1, 2], name


@pytest.mark.slow
def test_a_wrong_command_is_one_line_and_exit_code_2(files: dict[str, Path], tmp_path: Path) -> None:
    process = start(arguments("fp32.json", files, tmp_path, "--set", "learning_rat=1"), ranks=2)
    output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 2
    assert output.count("error: ") == 1 and 'did you mean "learning_rate"' in output
    assert "Traceback" not in output


@pytest.mark.slow
def test_sigterm_to_one_rank_ends_both_with_a_checkpoint_that_resumes(files: dict[str, Path], tmp_path: Path) -> None:
    words = arguments("bf16.json", files, tmp_path, "--max-steps", "5000", "--set", "save_steps=5000")
    process = start(words, ranks=2)
    wait_for_steps(process, tmp_path, 3)
    os.kill(rank_pid(process, rank=1), signal.SIGTERM)
    output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, output
    last = steps(tmp_path)[-1]
    assert (tmp_path / "latest").read_text().strip() == f"checkpoints/step-{last:08d}"
    resumed = start([*words[:-2], "--set", f"save_steps={last + 2}", "--max-steps", str(last + 2), "--resume"], ranks=2)
    output, _ = resumed.communicate(timeout=PATIENCE)
    assert resumed.returncode == 0, output
    assert steps(tmp_path) == list(range(1, last + 3))


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["runner", "launcher"])
def test_no_rank_outlives_its_launcher(victim: str, files: dict[str, Path], tmp_path: Path) -> None:
    import psutil

    words = arguments("fp32.json", files, tmp_path, "--max-steps", "50000", "--set", "save_steps=50000")
    process = start(words, ranks=2)
    wait_for_steps(process, tmp_path, 3)
    ranks = [psutil.Process(rank_pid(process, rank)) for rank in (0, 1)]
    if victim == "runner":
        process.terminate()  # DeepSpeed has no handler for it
    else:
        ranks[0].parent().kill()
    _, alive = psutil.wait_procs(ranks, timeout=PATIENCE)
    process.communicate(timeout=PATIENCE)
    assert not alive
    last = steps(tmp_path)[-1]
    assert (tmp_path / "latest").read_text().strip() == f"checkpoints/step-{last:08d}"


def wait_for_steps(process: subprocess.Popen[str], out: Path, count: int) -> None:
    wait_for(lambda: (out / "metrics.jsonl").exists() and len(steps(out)) >= count, process)


def rank_pid(process: subprocess.Popen[str], rank: int) -> int:
    """The pid of a rank, found among the launcher's descendants by its environment."""
    import psutil

    for child in psutil.Process(process.pid).children(recursive=True):
        if "pretrain.py" in " ".join(child.cmdline()[:4]) and child.environ().get("RANK") == str(rank):
            return int(child.pid)
    raise AssertionError(f"no rank {rank}")


def test_python_alone_is_one_rank(files: dict[str, Path], tmp_path: Path) -> None:
    environment = {
        name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    }
    command = [sys.executable, "launch/pretrain.py", *arguments("fp32.json", files, tmp_path, "--max-steps", "2")]
    result = subprocess.run(
        command, cwd=ROOT, env={**environment, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=PATIENCE
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert json.loads((tmp_path / "final" / "config.json").read_text())["vocab_size"] == 400
