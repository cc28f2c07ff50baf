"""Each file of a model, a run and a store with each of its values replaced: a command says what is wrong, or works.

Never another exception than UserError, whose text names the file or its directory.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from minimind.base.errors import UserError
from minimind.base.hardware import Hardware
from minimind.commands import report
from minimind.commands.models import samples_of_step
from minimind.config.deepspeed import resolve
from minimind.config.run import load_run_config
from minimind.data.store.prepare import prepare
from minimind.inference.loading import MODEL_STATES, load_model
from minimind.interop.huggingface import save_pretrained
from minimind.model.transformer import ModelConfig, Transformer
from minimind.text.tokenizer import Tokenizer, train_tokenizer
from minimind.training.checkpoint import directory as checkpoints
from minimind.training.run.resume import FIXED, agree, find_start
from tests.attacks.mutations import WRONG, as_json, as_yaml, mutations
from tests.support import DS_CONFIGS, save_steps, tiny_config

TEXTS = [f"the {a} {b} ran to {c}\n你好，世界{a}{c}" for a in range(9) for b in "xyz" for c in "pqrs"]
FEW = ("null", "text", "zero", "large", "deep")
GPU = Hardware("cuda", fp16=True, bf16=True)
RECORDS: list[dict[str, Any]] = [
    {
        "kind": "run",
        "step": 0,
        "task": "pretrain",
        "model": "tiny",
        "parameters": 1000,
        "total_steps": 3,
        "precision": "fp16",
        "zero_stage": 1,
        "resumed_step": 0,
        "time": 1.8e9,
        "nats_per_byte_floor": 0.3,
    },
    {"kind": "finding", "step": None, "code": "lr-high", "message": "m", "advice": "down"},
    {
        "kind": "train",
        "step": 1,
        "tokens": 100,
        "loss": 5.0,
        "grad_norm": 1.0,
        "lr": 1e-3,
        "loss_scale": 1024.0,
        "skipped": 1,
        "tokens_per_second": 10.0,
        "host_memory": 10,
        "time": 1.8e9,
    },
    {"kind": "source", "step": 1, "source": "a", "loss": 2.0, "tokens": 3},
    {"kind": "recovery", "step": 0, "to_step": 0, "trouble_step": 1, "rung": "rollback"},
    {"kind": "eval", "step": 1, "loss": 2.5, "ppl": 3.0, "bits_per_byte": 1.1},
    {"kind": "end", "step": 1, "reason": "finished", "seconds": 61.0},
]


def try_all(
    file: Path,
    value: Any,
    call: Callable[[], object],
    write: Callable[[Any], bytes] = as_json,
    names: Sequence[str] = tuple(WRONG),
) -> None:
    """``call`` with each mutation of ``value`` in ``file``; it works with the value itself."""
    file.write_bytes(write(value))
    call()
    for what, mutated in mutations(value, names):
        file.write_bytes(write(mutated))
        try:
            call()
        except UserError as error:
            told = str(error)
        except Exception as error:
            raise AssertionError(f"{file.name} with {what}: {error!r}") from error
        else:
            continue
        assert file.name in told or file.parent.name in told, f"{what}: {told}"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(train_tokenizer(TEXTS, tmp_path_factory.mktemp("tokenizer"), 300))


@pytest.fixture(scope="module")
def model() -> Transformer:
    sizes = {"vocab_size": 300, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 8}
    return Transformer(ModelConfig.preset("tiny", **sizes), seed=3).eval()


@pytest.fixture
def exported(tmp_path: Path, model: Transformer, tokenizer: Tokenizer) -> Path:
    save_pretrained(model.state_dict(), model.config, tokenizer, tmp_path / "exported")
    return tmp_path / "exported"


def test_config_json_of_a_model(exported: Path) -> None:
    value = json.loads((exported / "config.json").read_text())
    value["rope_parameters"] = {"rope_type": "default", "rope_theta": 1e6}
    try_all(exported / "config.json", value, lambda: load_model(exported))


def test_index_of_a_model_in_parts(exported: Path, model: Transformer) -> None:
    (exported / "model.safetensors").rename(exported / "model-1.safetensors")
    names = [name for name in model.state_dict() if name != "lm_head.weight"]
    value = {"metadata": {"total_size": 1}, "weight_map": dict.fromkeys(names[:2], "model-1.safetensors")}
    try_all(exported / "model.safetensors.index.json", value, lambda: load_model(exported))


def test_config_yaml_of_a_killed_run(tmp_path: Path, model: Transformer, tokenizer: Tokenizer) -> None:
    run = tmp_path / "run"
    directory = run / "checkpoints" / "step-00000007" / "deepspeed"
    directory.mkdir(parents=True)
    torch.save({"module": model.state_dict()}, directory / MODEL_STATES)
    (run / "latest").write_text("checkpoints/step-00000007\n")
    value = {
        "model": model.config.model_dump(),
        "tokenizer": str(tokenizer.path),
        "map": {"prompt": "a"},
        "train_file": [{"path": "a", "weight": 0.5}],
        "learning_rate": 1e-3,
        "health": {},
    }
    file = run / "config.yaml"
    try_all(file, value, lambda: load_run_config(file), as_yaml)
    try_all(file, {"model": value["model"], "tokenizer": value["tokenizer"]}, lambda: load_model(run), as_yaml, FEW)


@pytest.mark.parametrize("name", ["../../etc", "/etc", "a\0b", "x" * 5000, "\x1b[2J", "", "nothing"])
def test_latest_names_what_is_no_checkpoint(tmp_path: Path, name: str) -> None:
    (tmp_path / "latest").write_text(name)
    with pytest.raises(UserError, match=str(tmp_path)):
        load_model(tmp_path)


def test_what_a_report_reads(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    for number, record in enumerate(RECORDS):

        def write(mutated: Any, number: int = number) -> bytes:
            return b"".join(as_json(mutated if i == number else r) + b"\n" for i, r in enumerate(RECORDS))

        try_all(file, record, lambda: report.write_report([tmp_path]), write)
    file.write_bytes(b"".join(as_json(record) + b"\n" for record in RECORDS))
    environment = {"command": ["a", "b"], "versions": {"torch": "1"}, "git_diff": "x"}
    settings = {"learning_rate": 1, "model": {"a": [1]}}
    twice = [tmp_path, tmp_path]
    try_all(tmp_path / "environment.json", environment, lambda: report.write_report(twice))
    try_all(tmp_path / "ds_config.json", {"fp16": {"enabled": True}}, lambda: report.write_report(twice))
    try_all(tmp_path / "config.yaml", settings, lambda: report.write_report(twice), as_yaml, FEW)


def test_what_samples_reads(tmp_path: Path, tokenizer: Tokenizer) -> None:
    source, run = tmp_path / "a.jsonl", tmp_path / "run"
    source.write_text("\n".join(json.dumps({"text": text}) for text in TEXTS[:40]))
    store = Path(prepare([source], tokenizer, tmp_path / "store", "pretrain", 32))
    run.mkdir()
    record = {
        "kind": "run",
        "step": 0,
        "store": str(store),
        "seed": 1,
        "total_steps": 5,
        "micro_batch_size": 2,
        "accumulation": 1,
        "world_size": 1,
        "row_length": 32,
        "sources": [{"path": "a", "weight": 0.5, "files": 1}],
    }
    metrics = run / "metrics.jsonl"

    def samples() -> list[str]:
        try:
            return samples_of_step(run, 2)
        except UserError as error:  # where a record leads to a store, the message is about the store
            if str(store) in str(error):
                raise UserError(f"{error} ({metrics})") from None
            raise

    try_all(metrics, record, samples, lambda value: as_json(value) + b"\n")
    metrics.write_bytes(as_json(record) + b"\n")
    recovery = {
        "rollbacks": [
            {
                "number": 1,
                "rung": "rollback",
                "trouble": "nan",
                "message": "m",
                "onset": 3,
                "trouble_step": 4,
                "to_step": 2,
                "applied": 2,
                "skipped": [1, 2],
                "lr_factor": 0.5,
                "rewarmup_steps": 5,
                "samples": ["a:1"],
            }
        ]
    }
    try_all(run / "recovery.json", recovery, samples)
    (run / "recovery.json").unlink()
    manifest = json.loads((store / "manifest.json").read_text())
    try_all(store / "manifest.json", manifest, samples, names=(*FEW, "absent", "minus one", "a half"))


@pytest.mark.parametrize("column", ["offsets", "source_file", "source_line", "bytes"])
@pytest.mark.parametrize("shape", [b"(99999999999999, )", b"(4, 10)           ", b"()                "])
def test_columns_of_a_store_that_declare_what_is_not_there(
    tmp_path: Path, tokenizer: Tokenizer, column: str, shape: bytes
) -> None:
    from minimind.data.store.store import TokenStore

    source = tmp_path / "a.jsonl"
    source.write_text("\n".join(json.dumps({"text": text}) for text in TEXTS[:39]))
    store = Path(prepare([source], tokenizer, tmp_path / "store", "pretrain", 32))
    file = store / f"{column}.npy"
    content = file.read_bytes()
    start = content.index(b"(")
    file.write_bytes(content[:start] + shape + content[start + len(shape) :])
    with pytest.raises(UserError, match=column):
        TokenStore.open(store)


def test_what_resume_reads(tmp_path: Path) -> None:
    save_steps(tmp_path / "run", 3)
    (tmp_path / "run" / "checkpoints" / "step-x").mkdir()
    file = tmp_path / "run" / "checkpoints" / "step-00000003" / "manifest.json"

    def sealed(value: Any) -> bytes:
        try:
            return as_json({**value, "seal": checkpoints._seal(value)})
        except (TypeError, RecursionError):  # not an object, or too deep
            return as_json(value)

    def start() -> None:
        found = find_start("", tmp_path / "run")
        agree(found.checkpoint, checkpoints.read_about(file.parent) | dict.fromkeys(FIXED))

    value = json.loads(file.read_text())
    del value["seal"]
    value["about"] |= dict.fromkeys(FIXED)
    try_all(file, value, start, sealed)


@pytest.mark.parametrize("name", ["fp16.json", "bf16_zero2_offload.json", "muon.json"])
def test_a_deepspeed_json(tmp_path: Path, name: str) -> None:
    file, run = tmp_path / name, tiny_config()
    try_all(file, json.loads((DS_CONFIGS / name).read_text()), lambda: resolve(file, run, 1, GPU))


def test_a_model_without_heads_or_width(tmp_path: Path, model: Transformer, tokenizer: Tokenizer) -> None:
    shutil.copy(tokenizer.path, tmp_path / "tokenizer.model")
    for name in ("self_attn.q_proj", "self_attn.k_proj", "mlp.gate_proj"):
        torch.save({**model.state_dict(), f"model.layers.0.{name}.weight": torch.zeros(0, 32)}, tmp_path / "a.pth")
        with pytest.raises(UserError, match=r"a\.pth"):
            load_model(tmp_path / "a.pth")
