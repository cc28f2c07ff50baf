"""YAMLs as people have them: sections, Hugging Face's names, the articles' words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from minimind.base.errors import UserError
from minimind.base.hardware import Hardware
from minimind.config.deepspeed import resolve
from minimind.config.deepspeed.source import chosen_source
from minimind.config.run import RunConfig, load_run_config

GPU = Hardware("cuda", fp16=True, bf16=True)


def load(directory: Path, text: str, *settings: str) -> RunConfig:
    path = directory / "train.yaml"
    path.write_text(text, encoding="utf-8")
    return load_run_config(path, settings)


def test_sections_are_opened_and_lines_kept(tmp_path: Path) -> None:
    text = "data:\n  max_length: 128\ntraining:\n  learning_rate: 2.0e-4\n  max_steps: 5\noptimization:\n  bf16: true\n"
    run = load(tmp_path, text + "logging:\n  logging_steps: 3\n", "training.max_steps=7", "max_length=64")
    assert (run.max_seq_length, run.learning_rate, run.bf16, run.logging_steps) == (64, 2e-4, True, 3)
    assert run.max_steps == 7 and run.commanded("max_steps") and run.commanded("max_seq_length")
    assert run.place("learning_rate") == f"{tmp_path / 'train.yaml'}:4"


def test_a_name_twice_is_a_problem_with_both_places(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"train.yaml:3: duplicate key \"seed\" \(first at .*train.yaml:1\)"):
        load(tmp_path, "seed: 1\ntraining:\n  seed: 2\n")
    with pytest.raises(UserError, match=r"max_length: is max_seq_length, which is set in .*train.yaml:2 too"):
        load(tmp_path, "max_length: 64\nmax_seq_length: 128\n")
    assert load(tmp_path, "max_length: 64\nmax_seq_length: 64\n").max_seq_length == 64


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("optim: adamw_torch", "optim", "AdamW"),
        ("optim: adamw_torch_fused", "optim", "AdamW"),
        ("optimizer: adamw_bnb_8bit", "optim", "AdamW8bit"),
        ("optim: lion", "optim", "Lion"),
        ("evaluation_strategy: no", "eval_strategy", "no"),
        ("save_strategy: epoch", "save_strategy", "epoch"),
        ("model:\n  name_or_path: ./base", "model_name_or_path", Path("base")),
        ("model_name_or_path: ./base", "model_name_or_path", Path("base")),
        ("lr_scheduler_kwargs: {min_lr_rate: 0.2}", "min_lr_ratio", 0.2),
        ("learning_rate: 1e-3\nlr_scheduler_kwargs: {min_lr: 1e-4}", "min_lr_ratio", 0.1),
        ("lr_scheduler_type: cosine_with_min_lr\nmin_lr_ratio: 0.3", "lr_scheduler_type", "cosine"),
        ("max_steps: -1", "max_steps", None),
        ("warmup_steps: 0\nwarmup_ratio: 0.1", "warmup_ratio", 0.1),
        ("warmup_steps: 0.1", "warmup_ratio", 0.1),
        ("torch_compile: true", "compile", "on"),
        ("report_to: [wandb, tensorboard]", "report_to", ["wandb", "tensorboard"]),
        ("report_to: all", "report_to", []),
        ("init_scale: 65536", "initial_scale_power", 16),
        ("scale_init: 5000", "initial_scale_power", 12),
        ("growth_interval: 500", "loss_scale_window", 500),
        ("decr_every_n_nan_or_inf: 2", "hysteresis", 2),
        ("clip_norm: 0.5", "max_grad_norm", 0.5),
        ("deepspeed: ds.json", "deepspeed", Path("ds.json")),
        ("bf16: auto", "bf16", None),
        ("learning_rate: 1e-3\nlr_scheduler_type: polynomial", "min_lr_ratio", pytest.approx(1e-4)),
        ("lr_scheduler_type: polynomial\nmin_lr_ratio: 0.2", "min_lr_ratio", 0.2),
        ("lr_scheduler_type: linear", "min_lr_ratio", 0.0),
        (
            "lr_scheduler_type: polynomial\nlearning_rate: 2e-3\nlr_scheduler_kwargs: {lr_end: 1e-4, power: 1.0}",
            "min_lr_ratio",
            0.05,
        ),
        (
            "lr_scheduler_type: cosine_with_restarts\nlr_scheduler_kwargs: {num_cycles: 1}",
            "lr_scheduler_type",
            "cosine",
        ),
        ("lr_scheduler_type: cosine\nlr_scheduler_kwargs: {num_cycles: 0.5}", "min_lr_ratio", 0.0),
        ("base_model: ./base", "model_name_or_path", Path("base")),
        ("sequence_len: 64", "max_seq_length", 64),
        ("micro_batch_size: 3", "per_device_train_batch_size", 3),
        ("num_epochs: 2", "num_train_epochs", 2),
        ("lr_scheduler: linear", "lr_scheduler_type", "linear"),
        ("stage: sft\nfinetuning_type: full\nadapter:\nval_size: 0", "max_steps", None),
    ],
)
def test_other_names(text: str, name: str, value: Any, tmp_path: Path) -> None:
    run = load(tmp_path, text)
    assert getattr(run, name) == value
    dumped = tmp_path / "dumped.yaml"
    dumped.write_text(run.dump_yaml())
    assert getattr(load_run_config(dumped), name) == value


def test_a_scale_that_is_no_power_of_two_is_said(tmp_path: Path) -> None:
    (finding,) = load(tmp_path, "init_scale: 5000").remarks
    assert "5000 is no power of two" in finding.message and "4,096" in finding.message
    assert load(tmp_path, "init_scale: 4096").remarks == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("optim: galore_adamw", "optim: 'galore_adamw' is not here"),
        ("lr_scheduler_kwargs: {num_cycles: 2}", "one of min_lr and min_lr_rate"),
        ("lr_scheduler_kwargs: {min_lr: 1e-5}", "needs learning_rate"),
        (
            "learning_rate: 1e-3\nmin_lr_ratio: 0.5\nlr_scheduler_kwargs: {min_lr: 1e-5}",
            "is min_lr_ratio, which is set in",
        ),
        ("lr_scheduler_type: polynomial", "needs learning_rate"),
        ("lr_scheduler_type: polynomial\nlr_scheduler_kwargs: {power: 2.0}", "the shapes have no others"),
        ("lr_scheduler_type: cosine_with_restarts\nlr_scheduler_kwargs: {num_cycles: 3}", "the shapes have no others"),
        ("lr_scheduler_type: cosine_with_min_lr", "cosine_with_min_lr needs its end"),
        ("lr_scheduler_type: reduce_lr_on_plateau", "expected 'cosine', 'wsd', 'cooldown', 'linear' or 'constant'"),
        ("lr_scheduler_type: inverse_sqrt", "expected 'cosine', 'wsd', 'cooldown', 'linear' or 'constant'"),
        ("stage: dpo", "launch/sft.py` say what is done"),
        ("dataset: alpaca_en", "here it is `train_file`"),
        ("finetuning_type: lora", "without an adapter"),
        ("val_size: 0.1", "a file of their own: `eval_file`"),
        ("init_scale: many", "expected a loss scale"),
        ("backoff_factor: 0.25", "always halves"),
        ("label_smoothing_factor: 0.1", "plain cross-entropy"),
        ("resume_from_checkpoint: runs/a", "the option --resume"),
        ("eval_strategy: no\nearly_stopping_patience: 2", "needs evaluations"),
        ("stage: 2", r'belongs in the DeepSpeed JSON \(or the YAML\'s `deepspeed:`\), in "zero_optimization"'),
        ("gradient_clipping: 2", "belongs in the DeepSpeed JSON .* at the top level"),
        ("learning_rat: 2", 'did you mean "learning_rate"'),
    ],
)
def test_what_cannot_be_meant_here(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message) as caught:
        load(tmp_path, text)
    assert (
        any(f"train.yaml:{line}: " in str(caught.value) for line in (1, 2, 3))
        or "the run" in str(caught.value)
        or "train.yaml: " in str(caught.value)
    )


def test_the_scalers_words_fill_the_json_and_are_said_without_fp16(tmp_path: Path) -> None:
    run = load(tmp_path, "fp16: true\ninit_scale: 1024\ngrowth_interval: 50\n")
    fp16 = resolve({"zero_optimization": {"stage": 1}}, run, 1, GPU).config["fp16"]
    assert (fp16["initial_scale_power"], fp16["loss_scale_window"]) == (10, 50)
    with pytest.raises(UserError, match="initial_scale_power: 8 in the JSON but initial_scale_power is 10"):
        resolve({"fp16": {"enabled": True, "initial_scale_power": 8}}, run, 1, GPU)
    run = load(tmp_path, "bf16: true\ninit_scale: 1024\n")
    messages = [finding.message for finding in resolve({}, run, 1, GPU).findings]
    assert any("there is no loss scale" in message for message in messages)


def test_a_json_as_a_section_has_the_yamls_lines(tmp_path: Path) -> None:
    text = "bf16: true\ndeepspeed:\n  gradient_clipping: 0.5\n  zero_optimization:\n    stage: 2\n    stag: 2\n"
    run = load(tmp_path, text)
    with pytest.raises(UserError, match=r'train.yaml:6: zero_optimization.stag: unknown key \(did you mean "stage"'):
        resolve(chosen_source(None, run), run, 1, GPU)
    run = load(tmp_path, text.replace("    stag: 2\n", ""), "optim=adamw_torch")
    resolved = resolve(chosen_source(None, run), run, 1, GPU)
    assert (resolved.stage, resolved.precision, resolved.gradient_clipping) == (2, "bf16", 0.5)
    assert resolved.source == str(tmp_path / "train.yaml")
    assert "optimizer-default" not in {finding.code for finding in resolved.findings}
    assert chosen_source("other.json", run) == "other.json"
    with pytest.raises(UserError, match="no DeepSpeed config: pass --deepspeed_config"):
        chosen_source(None, load_run_config(None))


def test_the_optimizer_of_the_command_line_wins_over_the_jsons(tmp_path: Path) -> None:
    json = {"optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "eps": 1e-6}}}
    resolved = resolve(json, load_run_config(None, ["optim=sgd"]), 1, GPU)
    assert resolved.optimizer.type == "SGD"
    assert "command-line-wins" in {finding.code for finding in resolved.findings}
    with pytest.raises(UserError, match=r"AdamW in the JSON but optim is SGD in .*train.yaml:1"):
        resolve(json, load(tmp_path, "optim: sgd"), 1, GPU)
    assert resolve(json, load(tmp_path, "optim: adamw_torch"), 1, GPU).optimizer.params["eps"] == 1e-6


def test_a_json_is_looked_for_beside_the_yaml_after_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "yamls").mkdir()
    (tmp_path / "yamls" / "ds.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    assert load(tmp_path / "yamls", "deepspeed: ds.json").deepspeed == tmp_path / "yamls" / "ds.json"
    (tmp_path / "ds.json").write_text("{}")
    assert load(tmp_path / "yamls", "deepspeed: ds.json").deepspeed == Path("ds.json")
    assert load(tmp_path / "yamls", "seed: 1", "deepspeed=other.json").deepspeed == Path("other.json")


# What their readers paste, shortened: every line used, said or refused, and nothing about spelling
FACTORY = """
model_name_or_path: ./base
stage: sft
do_train: true
finetuning_type: full
cutoff_len: 128
max_samples:
overwrite_cache: true
preprocessing_num_workers: 2
logging_steps: 10
save_steps: 500
plot_loss: true
overwrite_output_dir: true
per_device_train_batch_size: 1
gradient_accumulation_steps: 2
learning_rate: 1.0e-5
num_train_epochs: 3.0
lr_scheduler_type: cosine
warmup_ratio: 0.1
bf16: true
ddp_timeout: 180000000
template: qwen
flash_attn: fa2
"""
AXOLOTL = """
base_model: ./base
sequence_len: 256
sample_packing: true
pad_to_sequence_len: true
micro_batch_size: 2
gradient_accumulation_steps: 4
num_epochs: 1
optimizer: adamw_torch_fused
lr_scheduler: cosine
learning_rate: 0.0002
bf16: auto
tf32: false
gradient_checkpointing: true
gradient_checkpointing_kwargs: {use_reentrant: false}
flash_attention: true
wandb_name:
warmup_steps: 10
weight_decay: 0.0
load_in_8bit: false
train_on_inputs: false
"""


@pytest.mark.parametrize(("text", "epochs", "row"), [(FACTORY, 3.0, 128), (AXOLOTL, 1.0, 256)])
def test_a_frameworks_yaml_is_read_whole(text: str, epochs: float, row: int, tmp_path: Path) -> None:
    run = load(tmp_path, text)
    assert (run.num_train_epochs, run.max_seq_length, run.lr_scheduler_type, run.min_lr_ratio) == (
        epochs,
        row,
        "cosine",
        0.0,
    )
    assert {finding.code for finding in run.remarks} == {"yaml-unused"}
