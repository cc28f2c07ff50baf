"""Every form of MODEL, and a clear refusal of everything else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from minimind.base.errors import UserError
from minimind.inference.loading import MODEL_STATES, load_model
from minimind.interop.huggingface import save_pretrained
from minimind.interop.upstream import save_pth
from minimind.model.transformer import ModelConfig, Transformer
from minimind.text.tokenizer import Tokenizer, train_tokenizer

TEXTS = [f"the {a} {b} ran to {c}\n你好，世界{a}{c}" for a in range(9) for b in "xyz" for c in "pqrs"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(train_tokenizer(TEXTS, tmp_path_factory.mktemp("tokenizer"), 300))


@pytest.fixture(scope="module")
def model() -> Transformer:
    config = ModelConfig.preset("tiny", vocab_size=300, hidden_size=32, num_hidden_layers=2, num_attention_heads=8)
    return Transformer(config, seed=3).eval()


@pytest.fixture
def exported(tmp_path: Path, model: Transformer, tokenizer: Tokenizer) -> Path:
    save_pretrained(model.state_dict(), model.config, tokenizer, tmp_path / "run" / "final")
    return tmp_path / "run" / "final"


def assert_same(
    loaded: tuple[Transformer, Tokenizer], model: Transformer, tokenizer: Tokenizer, atol: float = 0
) -> None:
    ids = torch.tensor([tokenizer.encode("the 3 x ran")])
    assert loaded[1].fingerprint == tokenizer.fingerprint
    assert not loaded[0].training
    with torch.no_grad():
        torch.testing.assert_close(loaded[0](ids), model(ids), rtol=0, atol=atol)


def checkpoint(run: Path, model: Transformer, tokenizer: Tokenizer, tag: str = "deepspeed") -> Path:
    """A run directory as the trainer leaves it when it is killed: config.yaml, latest and DeepSpeed's module states."""
    fields = model.config.model_dump()
    directory = run / "checkpoints" / "step-00000007"
    (directory / tag).mkdir(parents=True)
    torch.save({"module": model.state_dict(), "trainer": {"step": 7}}, directory / tag / MODEL_STATES)
    lines = ["model:", *(f"  {name}: {value}".replace("True", "true") for name, value in fields.items())]
    (run / "config.yaml").write_text("\n".join([*lines, f"tokenizer: {tokenizer.path}"]) + "\n")
    (run / "latest").write_text("checkpoints/step-00000007\n")
    return directory


def test_exported_directory_and_run_directory(exported: Path, model: Transformer, tokenizer: Tokenizer) -> None:
    assert_same(load_model(exported), model, tokenizer)
    assert_same(load_model(exported.parent), model, tokenizer)


def test_checkpoint_and_run_without_final(tmp_path: Path, model: Transformer, tokenizer: Tokenizer) -> None:
    directory = checkpoint(tmp_path / "run", model, tokenizer)
    assert_same(load_model(directory), model, tokenizer)
    assert_same(load_model(tmp_path / "run"), model, tokenizer)


def test_pth_with_tokenizer_beside_it_or_named(tmp_path: Path, model: Transformer, tokenizer: Tokenizer) -> None:
    file = tmp_path / "pretrain_32.pth"
    save_pth(model.state_dict(), model.config, file)
    with pytest.raises(UserError, match=r"no tokenizer\.model"):
        load_model(file)
    assert_same(load_model(file, tokenizer=tokenizer.path), model, tokenizer, atol=2e-3)
    (tmp_path / "tokenizer.model").write_bytes(tokenizer.model_bytes)
    assert_same(load_model(file), model, tokenizer, atol=2e-3)


def test_dtype(exported: Path, model: Transformer, tokenizer: Tokenizer) -> None:
    half = {name: value.bfloat16() for name, value in model.state_dict().items()}
    save_pretrained(half, model.config, tokenizer, exported)
    assert load_model(exported)[0].output_weight.dtype == torch.float32
    assert load_model(exported, dtype=torch.bfloat16)[0].output_weight.dtype == torch.bfloat16


def test_loaded_model_can_be_trained(exported: Path) -> None:
    """Fine-tuning starts from a loaded model."""
    model, _ = load_model(exported)
    ids = torch.arange(12)[None]
    model(ids, ids).backward()
    assert all(p.grad is not None for p in model.parameters())


def break_missing(d: Path, state: dict[str, Any], config: ModelConfig, tok: Tokenizer) -> Path:
    return d / "nowhere"


def break_empty(d: Path, state: dict[str, Any], config: ModelConfig, tok: Tokenizer) -> Path:
    return d


def break_weights(d: Path, state: dict[str, Any], config: ModelConfig, tok: Tokenizer) -> Path:
    state = {name: value for name, value in state.items() if "q_proj" not in name}
    save_pretrained(state | {"extra": torch.ones(1)}, config, tok, d)
    return d


def break_shape(d: Path, state: dict[str, Any], config: ModelConfig, tok: Tokenizer) -> Path:
    save_pretrained(state | {"model.norm.weight": torch.ones(5)}, config, tok, d)
    return d


def break_truncated(d: Path, state: dict[str, Any], config: ModelConfig, tok: Tokenizer) -> Path:
    save_pretrained(state, config, tok, d)
    data = (d / "model.safetensors").read_bytes()
    (d / "model.safetensors").write_bytes(data[: len(data) // 2])
    return d


def break_no_tokenizer(d: Path, state: dict[str, Any], config: ModelConfig, tok: Tokenizer) -> Path:
    save_pretrained(state, config, None, d)
    return d


def break_vocabulary(d: Path, state: dict[str, Any], config: ModelConfig, tok: Tokenizer) -> Path:
    small = Transformer(config.model_copy(update={"vocab_size": 100}))
    save_pretrained(small.state_dict(), small.config, tok, d)
    return d


def break_pickle(d: Path, state: dict[str, Any], config: ModelConfig, tok: Tokenizer) -> Path:
    torch.save({"model.embed_tokens.weight": Transformer(config)}, d / "evil.pth")
    return d / "evil.pth"


def break_orphan(d: Path, state: dict[str, Any], config: ModelConfig, tok: Tokenizer) -> Path:
    torch.save({"module": state}, d / MODEL_STATES)
    return d


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (break_missing, "no such model"),
        (break_empty, "no model in it"),
        (break_weights, r"missing model\.layers.*unknown extra"),
        (break_shape, r"model\.norm\.weight is \(5,\) instead of \(32,\)"),
        (break_truncated, "can't be read as safetensors"),
        (break_no_tokenizer, r"no tokenizer\.model"),
        (break_vocabulary, "300 pieces do not fit"),
        (break_pickle, "weights only"),
        (break_orphan, r"config\.yaml"),
    ],
)
def test_refusals_are_one_line(make: Any, words: str, tmp_path: Path, model: Transformer, tokenizer: Tokenizer) -> None:
    path = make(tmp_path, model.state_dict(), model.config, tokenizer)
    with pytest.raises(UserError, match=words) as error:
        load_model(path)
    assert "\n" not in str(error.value)


def test_a_tokenizer_that_is_not_the_models_is_refused(
    exported: Path, model: Transformer, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    """As large as the model's or smaller, given or lying beside the weights: its ids would mean other pieces."""
    backwards = [text[::-1] for text in TEXTS]
    others = [train_tokenizer(backwards, tmp_path / str(size), size) for size in (295, 300)]
    run = checkpoint(tmp_path / "stopped", model, tokenizer).parents[1]
    (run / "tokenizer.model").write_bytes(tokenizer.model_bytes)
    for other in others:
        for path in (exported, run):
            with pytest.raises(UserError, match=re.escape(f"{other}: not the tokenizer that {path}")):
                load_model(path, tokenizer=other)
    same = tmp_path / "same.model"
    same.write_bytes(tokenizer.model_bytes)
    assert_same(load_model(exported, tokenizer=same), model, tokenizer)
    (exported / "tokenizer.model").write_bytes(others[0].read_bytes())
    with pytest.raises(UserError, match="not the tokenizer that"):
        load_model(exported)
    assert_same(load_model(exported, tokenizer=same), model, tokenizer)


def test_a_directory_of_runs_is_answered_with_the_runs_in_it(exported: Path, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    with pytest.raises(
        UserError, match=re.escape(f"{tmp_path}: no model in it") + f".*; there is one in {exported.parent}$"
    ):
        load_model(tmp_path)
    for number in range(6):
        (tmp_path / f"later{number}").mkdir()
        (tmp_path / f"later{number}" / "latest").write_text("checkpoints/step-00000007\n")
    with pytest.raises(UserError, match=r"later3, \.\.\.$|later4, \.\.\.$"):
        load_model(tmp_path)
    with pytest.raises(UserError, match=r"safetensors\)$"):
        load_model(tmp_path / "data")
