"""The whole command on tiny data: every shipped JSON runs, resumes bitwise, stops when asked, and refuses clearly."""

from __future__ import annotations

import errno
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import torch
from tokenizers import Tokenizer as Library
from tokenizers import decoders, models, pre_tokenizers, trainers

from minimind.base.errors import UserError
from minimind.config.model import ModelConfig
from minimind.inference.generation import load_model
from minimind.interop.huggingface import save_pretrained
from minimind.model.transformer import Transformer
from minimind.text.tokenizer import Tokenizer
from minimind.training.checkpoint import snapshot, space
from minimind.training.checkpoint import writer as saver
from minimind.training.checkpoint.directory import all_checkpoints, resolve_resume
from minimind.training.run import loop
from minimind.training.run.arguments import parse
from minimind.training.run.main import run
from tests.support import DS_CONFIGS
from tests.waiting import PATIENCE

CONFIGS = sorted(path.name for path in DS_CONFIGS.glob("*.json"))
MODEL = (
    "model={vocab_size: 400, hidden_size: 32, num_hidden_layers: 2, num_attention_heads: 4, "
    "num_key_value_heads: 2, head_dim: 8, intermediate_size: 64}"
)
SMALL = ["--set", MODEL, "--set", "max_seq_length=48", "--set", "logging_steps=1", "--set", "save_steps=2"]


@pytest.fixture(autouse=True)
def _one_rank_with_its_signals(one_rank: None) -> Iterator[None]:
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


def launch(kind: str, json_name: str, files: dict[str, Path], out: Path, *more: str) -> int:
    """Run launch/<kind>.py in this process."""
    arguments = ["--deepspeed_config", str(DS_CONFIGS / json_name), "--output-dir", str(out), "--emulate-fp16"]
    arguments += ["--train-file", str(files[kind]), "--eval-file", str(files[kind])]
    arguments += ["--tokenizer", str(files["tokenizer"])] if kind == "pretrain" else []
    return run(
        kind, parse(kind, [*arguments, *SMALL, *more] if kind == "pretrain" else [*arguments, *SMALL[2:], *more])
    )


def eager(tmp_path: Path) -> str:
    """A JSON with a learning rate that suits these tiny models."""
    path = tmp_path / "eager.json"
    params = {"lr": 1e-2, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0}
    optimizer = {"type": "AdamW", "params": params}
    path.write_text(json.dumps({"train_micro_batch_size_per_gpu": 8, "gradient_clipping": 1.0, "optimizer": optimizer}))
    return str(path)


def records(out: Path, kind: str = "train") -> list[dict[str, Any]]:
    lines = (out / "metrics.jsonl").read_text().splitlines()
    return [record for record in map(json.loads, lines) if record["kind"] == kind]


def evaluations(out: Path) -> list[dict[str, Any]]:
    """What must be equal between two runs of each evaluation."""
    return [{name: value for name, value in each.items() if name != "time"} for each in records(out, "eval")]


def curve(out: Path) -> list[tuple[Any, ...]]:
    """What must be equal between two runs: everything of a step but its timing."""
    names = ("step", "tokens", "loss", "grad_norm", "lr", "loss_scale", "skipped", "applied")
    return [tuple(record[name] for name in names) for record in records(out)]


@pytest.mark.parametrize("name", CONFIGS)
def test_every_shipped_json_runs_and_resumes_bitwise(name: str, files: dict[str, Path], tmp_path: Path) -> None:
    kind = "pretrain"
    assert launch(kind, name, files, tmp_path / "whole", "--max-steps", "5") == 0
    # the same run in two parts; the schedule is that of five steps in both
    whole = curve(tmp_path / "whole")
    assert [row[0] for row in whole] == [1, 2, 3, 4, 5]
    original = loop.save

    def stop_after_three(run: loop.Run, best: bool = False) -> None:
        original(run, best)
        if run.progress.step == 2:
            run.stop.requested = True

    loop.save = stop_after_three
    try:
        assert launch(kind, name, files, tmp_path / "parts", "--max-steps", "5") == 0
    finally:
        loop.save = original
    assert len(curve(tmp_path / "parts")) == 3 and not (tmp_path / "parts" / "final").exists()
    assert launch(kind, name, files, tmp_path / "parts", "--max-steps", "5", "--resume") == 0
    assert curve(tmp_path / "parts") == whole
    finals = [load_model(tmp_path / part)[0].state_dict() for part in ("whole", "parts")]
    assert all(torch.equal(finals[0][key], finals[1][key]) for key in finals[0])


FAMILIES = [
    {"model_type": "qwen2"},
    {"model_type": "qwen3", "head_dim": 12},
    {"model_type": "mistral", "rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
]


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family["model_type"])
def test_pretraining_goes_on_from_a_given_model(family: dict[str, Any], files: dict[str, Path], tmp_path: Path) -> None:
    """Of another family, from a directory without a tokenizer: its shape, its weights, and resumed bitwise."""
    shape = {"vocab_size": 400, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    given = Transformer(ModelConfig(**{**shape, "num_key_value_heads": 2, **family}), seed=9)
    save_pretrained(given.state_dict(), given.config, None, tmp_path / "given")

    def train(out: Path, *more: str) -> int:
        words = ["--deepspeed_config", str(DS_CONFIGS / "fp32.json"), "--output-dir", str(out), *SMALL[2:]]
        words += ["--train-file", str(files["pretrain"]), "--tokenizer", str(files["tokenizer"]), *more]
        return run("pretrain", parse("pretrain", [*words, "--model", str(tmp_path / "given"), "--max-steps", "4"]))

    assert train(tmp_path / "whole") == 0
    trained, _ = load_model(tmp_path / "whole")
    assert trained.config == given.config
    before, after = given.state_dict(), trained.state_dict()
    assert all(not torch.equal(before[name], after[name]) for name in before)
    assert all((before[name] - after[name]).abs().max() < 0.05 for name in before)  # not a new model's
    original = loop.save

    def stop_after_three(run: loop.Run, best: bool = False) -> None:
        original(run, best)
        if run.progress.step == 2:
            run.stop.requested = True

    loop.save = stop_after_three
    try:
        assert train(tmp_path / "parts") == 0
    finally:
        loop.save = original
    assert train(tmp_path / "parts", "--resume") == 0
    assert curve(tmp_path / "parts") == curve(tmp_path / "whole")


def test_a_tokenizer_json_trains_both_kinds_and_stays_with_the_run(files: dict[str, Path], tmp_path: Path) -> None:
    """Pretraining, resumed, and SFT from that run, which brings its tokenizer along."""
    library = Library(models.BPE())
    library.pre_tokenizer, library.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=390, special_tokens=special, initial_alphabet=alphabet)
    library.train([str(files["pretrain"])], trainer)
    library.save(str(tmp_path / "tokenizer.json"))
    files = {**files, "tokenizer": tmp_path / "tokenizer.json"}
    for more in ([], ["--resume"]):
        assert launch("pretrain", "fp32.json", files, tmp_path / "pretrained", "--max-steps", "3", *more) == 0
    assert (
        launch(
            "sft",
            "sft_fp32.json",
            files,
            tmp_path / "tuned",
            "--max-steps",
            "3",
            "--model",
            str(tmp_path / "pretrained"),
        )
        == 0
    )
    (tmp_path / "tokenizer.json").unlink()
    for run_dir in ("pretrained", "tuned"):
        model, tokenizer = load_model(tmp_path / run_dir)
        assert tokenizer.vocab_size == model.output_size == len(library.get_vocab())
        assert tokenizer.encode("the sea is calm") == library.encode("the sea is calm").ids
        assert (tmp_path / run_dir / "tokenizer.json").is_file()


def test_a_run_directory_holds_what_the_readme_names(files: dict[str, Path], tmp_path: Path) -> None:
    assert launch("pretrain", "fp32.json", files, tmp_path, "--max-steps", "4", "--set", "eval_steps=2") == 0
    for name in (
        "config.yaml",
        "ds_config.json",
        "environment.json",
        "metrics.jsonl",
        "latest",
        "best",
        "tokenizer.model",
        "final",
    ):
        assert (tmp_path / name).exists(), name
    assert (tmp_path / "latest").read_text().strip() == "checkpoints/step-00000004"
    assert [record["step"] for record in records(tmp_path, "eval")] == [2, 4]
    assert json.loads((tmp_path / "environment.json").read_text())["packages"]["deepspeed"]
    first = records(tmp_path)[0]
    assert first["loss"] == pytest.approx(torch.log(torch.tensor(400.0)).item(), abs=0.3)
    assert first["grad_norm"] > 0 and first["loss_scale"] is None


def test_the_header_names_the_files_and_what_is_held_out_twice(
    files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    half = tmp_path / "half.jsonl"
    half.write_text("".join(files["pretrain"].read_text("utf-8").splitlines(keepends=True)[:60]), "utf-8")
    more = ("--dry-run", "--eval-file", str(half), "--max-steps", "11", "--set", "warmup_steps=500")
    assert launch("pretrain", "fp32.json", files, tmp_path / "out", *more) == 0
    said = capsys.readouterr().out
    assert f"from {files['pretrain']}" in said and f"{half}, 60 documents" in said
    assert "all 60 held-out documents (100.0%) are also training documents" in said
    command = next(line for line in said.splitlines() if "minimind check" in line).split("by file: ")[1]
    assert command == f"minimind check {files['pretrain']} {half}"
    assert "the run ends inside its warmup: 11 steps, warmup 500 (warmup_steps by --set warmup_steps=500)" in said


def full_at(step: int) -> Callable[[Path], BinaryIO]:
    """``snapshot.open_file`` on a disk that is full while the checkpoint of ``step`` is written."""
    original = snapshot.open_file

    def open_or_fail(path: Path) -> BinaryIO:
        if f"step-{step:08d}" in str(path):
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return original(path)

    return open_or_fail


def test_a_save_that_fails_is_reported_and_training_goes_on_unchanged(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("--max-steps", "6", "--set", "eval_steps=6")
    launch("pretrain", "bf16.json", files, tmp_path / "whole", *arguments)
    monkeypatch.setattr(saver, "PAUSES", (0.0, 0.0))
    monkeypatch.setattr(snapshot, "open_file", full_at(4))
    assert launch("pretrain", "bf16.json", files, tmp_path / "full", *arguments) == 0
    assert curve(tmp_path / "full") == curve(tmp_path / "whole")
    (finding,) = (f for f in records(tmp_path / "full", "finding") if f["code"].startswith("checkpoint"))
    assert finding["code"] == "checkpoint-not-saved" and finding["step"] == 4
    assert "No space left on device" in finding["message"] and "step-00000002" in finding["message"]
    found = [checkpoint.step for checkpoint in all_checkpoints(tmp_path / "full")]
    assert found == [6, 2]


@pytest.mark.parametrize("stop", [False, True])
def test_a_run_whose_last_save_fails_says_so_and_ends_with_1(
    stop: bool, files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saver, "PAUSES", (0.0, 0.0))
    monkeypatch.setattr(snapshot, "open_file", full_at(3))
    original = loop.save

    def stop_after_two(run: loop.Run, best: bool = False) -> None:
        original(run, best)
        run.stop.requested = stop

    monkeypatch.setattr(loop, "save", stop_after_two)
    code = launch("pretrain", "bf16.json", files, tmp_path, "--max-steps", "3", "--set", "eval_steps=9")
    assert code == 1
    assert [f["code"] for f in records(tmp_path, "finding")][-1] == "checkpoint-not-saved"
    assert records(tmp_path, "end")[0]["reason"] == ("failed" if stop else "finished")
    assert (tmp_path / "final").exists() != stop  # the weights are written if there is room
    assert [checkpoint.step for checkpoint in all_checkpoints(tmp_path)] == [2]


def test_a_run_that_can_not_keep_one_checkpoint_does_not_start(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(space, "free_bytes", lambda directory: 1_000_000)
    with pytest.raises(UserError, match="a checkpoint takes about 2 MB and 1 MB are free"):
        launch("pretrain", "bf16.json", files, tmp_path, "--max-steps", "2")
    assert not (tmp_path / "checkpoints").exists()


def test_an_error_in_training_does_not_cut_the_save_in_flight(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, step, failed = snapshot.open_file, loop.train_step, threading.Event()

    def slow(path: Path) -> BinaryIO:
        assert failed.wait(PATIENCE)
        return original(path)

    def broken(engine: Any, *arguments: Any, **options: Any) -> Any:
        if engine.ds.global_steps == 2:
            failed.set()
            raise ValueError("a bug")
        return step(engine, *arguments, **options)

    monkeypatch.setattr(snapshot, "open_file", slow)
    monkeypatch.setattr(loop, "train_step", broken)
    with pytest.raises(ValueError, match="a bug"):
        launch("pretrain", "bf16.json", files, tmp_path, "--max-steps", "4")
    assert resolve_resume(tmp_path)[0].step == 2


def test_evaluation_changes_nothing_in_training(files: dict[str, Path], tmp_path: Path) -> None:
    common = ("--max-steps", "6")
    launch("pretrain", "bf16.json", files, tmp_path / "with", *common, "--set", "eval_steps=1")
    launch("pretrain", "bf16.json", files, tmp_path / "without", *common, "--set", "eval_steps=6")
    assert curve(tmp_path / "with") == curve(tmp_path / "without")


def test_a_stop_during_an_evaluation_is_made_up_for_at_the_resume(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def go(out: Path, *more: str) -> int:
        settings = ("--set", "eval_steps=3", "--set", "save_steps=50")
        return launch("pretrain", "fp32.json", files, out, "--max-steps", "6", *settings, *more)

    assert go(tmp_path / "whole") == 0
    original = loop.until_stop

    def stopping(run: loop.Run) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return original(run)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "until_stop", stopping)
        assert go(tmp_path / "parts") == 0
    assert (tmp_path / "parts" / "latest").read_text().strip() == "checkpoints/step-00000003"
    assert not records(tmp_path / "parts", "eval")
    assert go(tmp_path / "parts", "--resume") == 0
    assert curve(tmp_path / "parts") == curve(tmp_path / "whole")
    assert evaluations(tmp_path / "parts") == evaluations(tmp_path / "whole") != []
    assert (tmp_path / "parts" / "best").read_text() == (tmp_path / "whole" / "best").read_text()


def test_sft_starts_from_the_pretrained_model_and_trains_answers_only(files: dict[str, Path], tmp_path: Path) -> None:
    launch("pretrain", "fp32.json", files, tmp_path / "base", "--max-steps", "4")
    chat = tmp_path / "chat"
    code = launch("sft", eager(tmp_path), files, chat, "--model", str(tmp_path / "base"), "--max-steps", "30")
    assert code == 0
    losses = [record["loss"] for record in records(tmp_path / "chat")]
    assert losses[-1] < losses[0] - 0.3
    header = records(tmp_path / "chat", "run")[0]
    # every conversation is: bos, user turn, assistant turn with the answer and its end token as the only targets
    tokenizer = Tokenizer.load(files["tokenizer"])
    answers = [json.loads(line)["conversations"][1]["content"] for line in files["sft"].read_text().splitlines()]
    assert header["epoch_tokens"] == sum(len(tokenizer.encode(answer)) + 1 for answer in answers)


# The second article's configuration, with other paths and sizes (and without offload, which must be compiled)
ARTICLE = """
model:
  name_or_path: "{base}"
data:
  train_file: "{train}"
  eval_file: "{train}"
  max_length: 64
training:
  output_dir: "{out}"
  num_train_epochs: 3
  per_device_train_batch_size: 2
  gradient_accumulation_steps: 2
  learning_rate: 2.0e-4
  lr_scheduler_type: "cosine"
  warmup_ratio: 0.05
  weight_decay: 0.01
  max_grad_norm: 1.0
optimization:
  bf16: true
  optimizer: "adamw_torch"
logging:
  logging_steps: 10
  eval_strategy: "epoch"
  save_strategy: "steps"
  save_steps: 200
  save_total_limit: 3
  report_to: "none"
  run_name: "finetune-exp1"
deepspeed:
  zero_optimization:
    stage: 2
"""


def test_a_yaml_with_the_json_and_the_model_in_it_is_enough(files: dict[str, Path], tmp_path: Path) -> None:
    launch("pretrain", "fp32.json", files, tmp_path / "base", "--max-steps", "2")
    yaml, out = tmp_path / "train.yaml", tmp_path / "out"
    yaml.write_text(ARTICLE.format(base=tmp_path / "base", train=files["sft"], out=out))
    assert run("sft", parse("sft", ["--config", str(yaml)])) == 0
    about = records(out, "run")[0]
    assert (about["precision"], about["micro_batch_size"], about["accumulation"]) == ("bf16", 2, 2)
    assert len(records(out, "eval")) == 3
    assert (out / "final" / "model.safetensors").is_file()


def test_what_starts_a_fine_tuning_is_named(tmp_path: Path) -> None:
    yaml = tmp_path / "train.yaml"
    for text, message in (
        ("seed: 1", "no model to start from: pass --model"),
        ("model_name_or_path: nowhere/llama", r"train.yaml:1: model_name_or_path nowhere/llama: no such directory"),
    ):
        yaml.write_text(text)
        with pytest.raises(UserError, match=message):
            run("sft", parse("sft", ["--config", str(yaml), "--deepspeed_config", str(DS_CONFIGS / "fp32.json")]))
    with pytest.raises(UserError, match="no such directory"):  # pretraining goes on from it, too
        run("pretrain", parse("pretrain", ["--config", str(yaml)]))


def test_weighted_sources_are_recorded_resumed_and_found_again(files: dict[str, Path], tmp_path: Path) -> None:
    from minimind.commands.models import samples_of_step

    extra, out = tmp_path / "extra.jsonl", tmp_path / "run"
    extra.write_text('{"text": "bright house sings"}\n{"text": "little stone walks"}\n')
    yaml = tmp_path / "run.yaml"
    sources = [{"path": str(extra), "weight": 20}, {"path": str(files["pretrain"]), "weight": 0.25}]
    yaml.write_text(json.dumps({"train_file": sources}))

    def go(*more: str) -> int:
        words = ["--deepspeed_config", str(DS_CONFIGS / "fp32.json"), "--output-dir", str(out), "--config", str(yaml)]
        return run("pretrain", parse("pretrain", [*words, "--tokenizer", str(files["tokenizer"]), *SMALL, *more]))

    assert go("--max-steps", "2") == 0
    about = records(out, "run")[0]
    first, second = about["sources"]
    assert (first["path"], first["documents"], first["epoch_rows"]) == (str(extra), 2, 20 * first["rows"])
    assert second["epoch_rows"] == round(second["rows"] / 4)
    assert about["rows"] == first["epoch_rows"] + second["epoch_rows"]
    trained = {line.rpartition(":")[0] for step in (1, 2) for line in samples_of_step(out, step)}
    assert trained == {str(extra), str(files["pretrain"])}
    for train in records(out):  # step 1 and the last step are reported each on its own
        parts = [part for part in records(out, "source") if part["step"] == train["step"]]
        assert {part["source"] for part in parts} <= trained
        tokens = sum(part["tokens"] for part in parts)
        assert sum(part["loss"] * part["tokens"] for part in parts) / tokens == pytest.approx(train["loss"])
    assert {part["source"] for part in records(out, "source")} == trained
    yaml.write_text(json.dumps({"train_file": [{**sources[0], "weight": 19}, sources[1]]}))
    with pytest.raises(UserError, match="these differ: sources"):
        go("--max-steps", "2", "--resume")


def test_overfit_one_batch_drives_the_loss_down(files: dict[str, Path], tmp_path: Path) -> None:
    launch(
        "pretrain",
        eager(tmp_path),
        files,
        tmp_path,
        "--max-steps",
        "300",
        "--overfit-one-batch",
        "--set",
        "lr_scheduler_type=constant",
        "--set",
        "save_steps=1000",
        "--set",
        "eval_steps=1000",
    )
    losses = [record["loss"] for record in records(tmp_path)]
    assert min(losses[-50:]) < 0.1  # at this rate a single step may jump


def test_early_stopping_ends_the_run_with_a_model(files: dict[str, Path], tmp_path: Path) -> None:
    settings = ["eval_steps=1", "early_stopping_patience=2", "lr_scheduler_type=constant"]
    # the held-out loss is made to rise
    original = loop.evaluate

    def rising(*arguments: Any, **options: Any) -> Any:
        result = original(*arguments, **options)
        return type(result)(result.step, 5.0 + result.step, result.num_tokens, result.bits_per_byte)

    loop.evaluate = rising
    try:
        more = [word for setting in settings for word in ("--set", setting)]
        assert launch("pretrain", "fp32.json", files, tmp_path, "--max-steps", "20", *more) == 0
    finally:
        loop.evaluate = original
    assert [record["step"] for record in records(tmp_path)] == [1, 2, 3]
    assert (tmp_path / "best").read_text().strip().endswith("step-00000001")
    assert (tmp_path / "final").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--set", "seed=1"], "seed"),
        (["--set", "max_seq_length=32"], "row_length"),
        (["--set", "per_device_train_batch_size=4"], "rows_per_step"),
    ],
)
def test_resuming_another_run_is_refused_with_the_differences(
    change: list[str], message: str, files: dict[str, Path], tmp_path: Path
) -> None:
    automatic = tmp_path / "auto.json"
    automatic.write_text('{"train_micro_batch_size_per_gpu": "auto", "gradient_clipping": 1.0}')
    start = ["--max-steps", "2"]
    name = str(automatic)
    launch("pretrain", name, files, tmp_path / "run", *start, "--set", "per_device_train_batch_size=2")
    base = [] if "per_device" in change[1] else ["--set", "per_device_train_batch_size=2"]
    with pytest.raises(UserError, match=message):
        launch("pretrain", name, files, tmp_path / "run", *start, *base, *change, "--resume")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--resume"], "no complete checkpoint"),
        (["--train-file", "no/such.jsonl"], "no/such.jsonl"),
        (["--set", "modle=26m"], 'unknown key "modle".*did you mean "model"'),
        (["--set", "model=27m"], "26m"),
        (["--tokenizer", "nowhere"], "no tokenizer at nowhere"),
        (["--output-dir", "/dev/null/run"], "/dev/null/run: can't write there"),
    ],
)
def test_wrong_use_is_one_clear_error(
    arguments: list[str], message: str, files: dict[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message):
        launch("pretrain", "fp32.json", files, tmp_path, "--max-steps", "2", *arguments)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_scheduler_in_the_json_runs_as_deepspeed_runs_it(
    precision: str, files: dict[str, Path], tmp_path: Path
) -> None:
    config = json.loads((DS_CONFIGS / f"{precision}.json").read_text())
    params = {"total_num_steps": 12, "warmup_num_steps": 4, "warmup_type": "linear"}
    config["scheduler"] = {"type": "WarmupCosineLR", "params": params}
    path = tmp_path / "scheduled.json"
    path.write_text(json.dumps(config))
    launch("pretrain", str(path), files, tmp_path / "run", "--max-steps", "12", "--set", "eval_steps=12")
    rates = [record["lr"] / 2e-3 for record in records(tmp_path / "run")][:6]
    assert rates == pytest.approx([0, 0, 0.25, 0.5, 0.75, 0.9619], abs=1e-4)  # the table of real runs for 0.19.8
    codes = {finding["code"]: finding["message"] for finding in records(tmp_path / "run", "finding")}
    assert "step" in codes["scheduler-deepspeed"]
    # and a resumed run goes on at the rate that DeepSpeed had set for the coming step, not at the first one's
    whole = curve(tmp_path / "run")
    again = str(tmp_path / "run" / "checkpoints" / "step-00000010")
    launch(
        "pretrain", str(path), files, tmp_path / "run", "--max-steps", "12", "--set", "eval_steps=12", "--resume", again
    )
    assert curve(tmp_path / "run") == whole


@pytest.mark.parametrize("name", ["fp32.json", "bf16.json", "fp16.json", "muon.json"])
def test_the_same_seed_gives_the_same_run_bitwise(name: str, files: dict[str, Path], tmp_path: Path) -> None:
    for part in ("one", "two"):
        launch("pretrain", name, files, tmp_path / part, "--max-steps", "4")
    assert curve(tmp_path / "one") == curve(tmp_path / "two")
    weights = [load_model(tmp_path / part)[0].state_dict() for part in ("one", "two")]
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])
