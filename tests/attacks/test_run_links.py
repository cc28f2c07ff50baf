"""launch/pretrain.py and launch/lr_sweep.py into a directory in which each name of a run is a link of a stranger's."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from minimind.base.errors import UserError
from minimind.inference.loading import load_model
from minimind.training.run.arguments import parse
from minimind.training.run.main import run
from minimind.training.sweep.options import parse as parse_sweep
from minimind.training.sweep.sweep import run as run_sweep
from tests.attacks.traps import Victim
from tests.support import DS_CONFIGS

FILES = (
    "config.yaml",
    "ds_config.json",
    "environment.json",
    "metrics.jsonl",
    "tokenizer.model",
    "latest",
    "best",
    "recovery.json",
    "post_mortem.json",
    ".config.yaml.tmp",
    "metrics.jsonl.tmp",
)
DIRECTORIES = ("checkpoints", "final", "earlier-1", "wandb")
MODEL = (
    "model={vocab_size: 400, hidden_size: 32, num_hidden_layers: 1, num_attention_heads: 4, "
    "num_key_value_heads: 2, head_dim: 8, intermediate_size: 64}"
)


@pytest.fixture(autouse=True)
def _one_rank_with_its_signals(one_rank: None) -> Iterator[None]:
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


def words(files: dict[str, Path], out: Path, *more: str) -> list[str]:
    given = ["--deepspeed_config", str(DS_CONFIGS / "fp32.json"), "--train-file", str(files["pretrain"])]
    given += ["--tokenizer", str(files["tokenizer"]), "--output-dir", str(out)]
    return [*given, "--set", MODEL, "--set", "max_seq_length=48", *more]


def launch(files: dict[str, Path], out: Path, *more: str) -> int:
    steps = ["--set", "save_steps=1", "--eval-file", str(files["pretrain"])]
    return run("pretrain", parse("pretrain", words(files, out, *steps, *more)))


def test_a_run_writes_and_reads_through_no_link(
    files: dict[str, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    victim, out = Victim.make(tmp_path / "mine"), tmp_path / "run"
    victim.plant(out, FILES, DIRECTORIES)
    assert launch(files, out, "--max-steps", "2") == 0
    links = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_symlink()}
    # set aside as they are, or names that nothing has any more
    assert {Path(link).name for link in links} >= {"checkpoints", "final", "latest", "metrics.1.jsonl"}
    assert not links & {"config.yaml", "environment.json", "metrics.jsonl", "checkpoints", "final", "latest", "best"}
    load_model(out)
    victim.assert_unharmed(out, said="".join(capfd.readouterr()))

    (out / "checkpoints" / "step-00000007").symlink_to(victim.directory)
    (out / "checkpoints" / ".incomplete-step-00000003").symlink_to(victim.directory)
    victim.plant(out, ["config.yaml", "environment.json", "ds_config.json", "tokenizer.model"])
    assert launch(files, out, "--max-steps", "4", "--resume") == 0
    victim.assert_unharmed(out, said="".join(capfd.readouterr()))

    for name in ("metrics.jsonl", "latest", "recovery.json", "final", "checkpoints"):
        target = out / name
        kept = target.rename(out / f"kept-{name}") if target.exists() else None
        victim.plant(out, [name])
        with pytest.raises(UserError, match=name):
            launch(files, out, "--max-steps", "5", "--resume")
        target.unlink()
        if kept is not None:
            kept.rename(target)
    victim.assert_unharmed(out, said="".join(capfd.readouterr()))


def test_a_sweep_writes_through_no_link(files: dict[str, Path], tmp_path: Path) -> None:
    victim, out = Victim.make(tmp_path / "mine"), tmp_path / "sweep"
    victim.plant(out, [*FILES, "lr_sweep.json", "lr_sweep.png"])
    sweep = [*words(files, out), "--learning-rates", "1e-3,1e-2", "--steps", "10"]
    assert run_sweep(parse_sweep(sweep)) in (0, 1)
    assert not (out / "lr_sweep.png").is_symlink() and not (out / "lr_sweep.json").is_symlink()
    victim.assert_unharmed(out)


def test_a_directory_of_something_else_is_not_written_to(files: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("port: 80\n")
    with pytest.raises(UserError, match=r"holds a config\.yaml that no run of this program wrote"):
        launch(files, tmp_path, "--max-steps", "1")
    assert (tmp_path / "config.yaml").read_text() == "port: 80\n"
