"""GGUF files: read back by the gguf package, and loaded by llama.cpp, which must say and read the same."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from minimind.base.errors import UserError
from minimind.inference.generation import Sampling, generate
from minimind.interop.gguf import gguf_name, save_gguf
from minimind.model.transformer import ModelConfig, Transformer
from minimind.text.chat import JINJA, Turn, prompt_ids
from minimind.text.tokenizer import Tokenizer, train_tokenizer
from tests.text.spelled import as_text
from tests.waiting import PATIENCE

gguf = pytest.importorskip("gguf")

WORDS = (
    "the quick brown fox jumps over a lazy dog while seven wizards banana anna aaa aa hello world "
    "你好 世界 学习 模型 训练"
)
TEXTS = [f"{a} {b}{i}，{b} {a}.\n    {a}aa{b}" for i, a in enumerate(WORDS.split()) for b in WORDS.split()]
SAMPLES = [
    "",
    " ",
    "  two  spaces ",
    "aaaaaaaaaa",
    "banananana",
    "hello world\n\n\tfox",
    "你好，世界！学习模型。",
    "１２３ 4567 \U0001f600 ﬁ é \r\n",
    "<s> </s> <unk> <|im_start|> <|bos|> <0x41>",
    "unseen: ξ漢𠮷",
]
TURNS = [Turn("system", "be brief"), Turn("user", "hello\n <s> fox 12")]
TORCH = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
# Of log probabilities of a model with large random weights; llama.cpp rounds activations to the weights' format.
TOLERANCE = {"f32": 2e-3, "f16": 2e-2, "bf16": 0.2}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(train_tokenizer(TEXTS, tmp_path_factory.mktemp("tokenizer"), 480))


def tiny(dtype: str = "f32", **more: Any) -> Transformer:
    """Weights that ``dtype`` holds exactly, and more rows in the vocabulary than the tokenizer has."""
    config = ModelConfig(
        **{
            "vocab_size": 512,
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "intermediate_size": 128,
            "initializer_range": 0.3,
            "max_position_embeddings": 512,
            **more,
        }
    )
    model = Transformer(config, seed=3).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_((parameter + 0.1 * (parameter.ndim == 1)).to(TORCH[dtype]))
    model.output_size = 480
    return model


def read(path: Path) -> dict[str, Tensor]:
    tensors = {}
    for tensor in gguf.GGUFReader(path).tensors:
        data = torch.from_numpy(np.array(tensor.data))
        tensors[tensor.name] = data.view(torch.bfloat16) if data.dtype == torch.uint8 else data
    return tensors


def half_rotation_order(weight: Tensor, head_dim: int) -> Tensor:
    """Undoes what llama.cpp wants: (x0, y0, x1, y1, ...) -> (x0, x1, ..., y0, y1, ...) within each head, row by row."""
    rows = [row for head in weight.split(head_dim) for row in (*head[0::2], *head[1::2])]
    return torch.stack(rows)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("dtype", list(TORCH))
def test_the_tensors_read_back_are_the_models(tmp_path: Path, tokenizer: Tokenizer, dtype: Any, tied: bool) -> None:
    model = tiny(dtype, tie_word_embeddings=tied)
    save_gguf(model.state_dict(), model.config, tokenizer, tmp_path / "m.gguf", dtype)
    tensors = read(tmp_path / "m.gguf")
    assert len(tensors) == len(model.state_dict()) and ("output.weight" in tensors) != tied
    for name, value in model.state_dict().items():
        written = tensors[gguf_name(name)]
        assert written.dtype == (torch.float32 if value.ndim == 1 else TORCH[dtype]), name
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            assert not torch.equal(written.float(), value)
            written = half_rotation_order(written, 16)
        assert torch.equal(written.float(), value[:480]), name
    assert [path.name for path in tmp_path.iterdir()] == ["m.gguf"]


def test_what_the_file_says_of_itself(tmp_path: Path, tokenizer: Tokenizer) -> None:
    model = tiny(rope_theta=5e5)
    save_gguf(model.state_dict(), model.config, tokenizer, tmp_path / "m.gguf", "f16", name="little")
    fields = {name: field.contents() for name, field in gguf.GGUFReader(tmp_path / "m.gguf").fields.items()}
    expected = {
        "GGUF.version": 3,
        "general.architecture": "llama",
        "general.name": "little",
        "general.file_type": 1,
        "llama.vocab_size": 480,
        "llama.context_length": 512,
        "llama.embedding_length": 64,
        "llama.block_count": 2,
        "llama.feed_forward_length": 128,
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 2,
        "llama.attention.key_length": 16,
        "llama.attention.value_length": 16,
        "llama.rope.dimension_count": 16,
        "llama.rope.freq_base": 5e5,
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.eot_token_id": tokenizer.im_end_id,
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.ggml.unknown_token_id": 3,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_eos_token": False,
        "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.chat_template": JINJA,
    }
    assert {name: fields.get(name) for name in expected} == expected
    assert fields["llama.attention.layer_norm_rms_epsilon"] == pytest.approx(1e-5)
    pieces, scores, types = (fields[f"tokenizer.ggml.{name}"] for name in ("tokens", "scores", "token_type"))
    assert len(pieces) == len(scores) == len(types) == 480
    assert pieces[:7] == ["<|pad|>", "<|bos|>", "<|eos|>", "<|unk|>", "<|im_start|>", "<|im_end|>", "<0x00>"]
    assert types[:7] == [3, 3, 3, 2, 3, 3, 6] and set(types[6:262]) == {6} and set(types[262:]) == {1}
    assert scores[262:] == sorted(scores[262:], reverse=True) and len(set(scores[262:])) == 480 - 262


LLAMA3 = {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4}
FAMILIES: dict[str, dict[str, Any]] = {
    "mistral": {"model_type": "mistral"},
    "qwen2": {"model_type": "qwen2"},
    "qwen2-untied": {"model_type": "qwen2", "tie_word_embeddings": False},
    "qwen3": {"model_type": "qwen3", "head_dim": 32},
    "linear": {"rope_scaling": {"rope_type": "linear", "factor": 4}},
    "llama3": {"rope_scaling": {**LLAMA3, "original_max_position_embeddings": 16}},
    "yarn": {
        "model_type": "qwen3",
        "rope_scaling": {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 128},
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", list(TORCH))
def test_llama_cpp_says_and_reads_the_same(tmp_path: Path, tokenizer: Tokenizer, dtype: Any) -> None:
    llama_cpp_agrees(tiny(dtype), tmp_path, tokenizer, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_llama_cpp_says_the_same_of_every_family(tmp_path: Path, tokenizer: Tokenizer, family: str) -> None:
    model = tiny(**FAMILIES[family])
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:  # gains and biases that differ from channel to channel
                parameter += 0.3 * torch.randn(len(parameter), generator=torch.Generator().manual_seed(len(parameter)))
        model.output_weight[:262] *= 0.01  # llama.cpp gives no probabilities with a byte that completes no character
    llama_cpp_agrees(model, tmp_path, tokenizer, "f32")


def test_yarn_that_llama_cpp_would_compute_otherwise_is_refused(tmp_path: Path, tokenizer: Tokenizer) -> None:
    model = tiny(rope_scaling={"rope_type": "yarn", "factor": 4, "attention_factor": 1.0})
    with pytest.raises(UserError, match=r"attention_factor.*--format hf"):
        save_gguf(model.state_dict(), model.config, tokenizer, tmp_path / "m.gguf")
    assert not list(tmp_path.iterdir())


def llama_cpp_agrees(model: Transformer, tmp_path: Path, tokenizer: Tokenizer, dtype: Any) -> None:
    pytest.importorskip("xllamacpp")
    save_gguf(model.state_dict(), model.config, tokenizer, tmp_path / "m.gguf", dtype)
    draw = random.Random(0)
    noise = ["".join(draw.choices("abno naquick  你好世界\n,.12aa<>s", k=draw.randint(1, 60))) for _ in range(50)]
    texts = SAMPLES + noise
    prompts = [[tokenizer.bos_id, *tokenizer.encode(text)] for text in ("hello world", "你好 the fox", "banana")]
    task = {
        "model": str(tmp_path / "m.gguf"),
        "texts": texts,
        "prompts": prompts,
        "patience": PATIENCE,
        "chat": [{"role": turn.role, "content": turn.content} for turn in TURNS],
    }
    script = [sys.executable, str(Path(__file__).with_name("llama_cpp.py"))]
    done = subprocess.run(script, input=json.dumps(task), capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr[-2000:]
    theirs = json.loads(done.stdout.splitlines()[-1])
    assert theirs["tokens"] == [tokenizer.encode(text) for text in texts]
    assert theirs["prompt"] == [as_text(TURNS, generation_prompt=True), prompt_ids(TURNS, tokenizer)]
    for ids, top in zip(prompts, theirs["top"], strict=True):
        with torch.no_grad():
            ours = model(torch.tensor([ids]))[0, -1, :480].log_softmax(-1)
        chosen, likely = zip(*top, strict=True)
        assert torch.allclose(ours[list(chosen)], torch.tensor(likely), rtol=0, atol=TOLERANCE[dtype])
    if dtype != "f32":  # rounded activations may turn a near tie
        return
    stops = [tokenizer.eos_id, tokenizer.im_end_id]
    answers = [list(generate(model, ids, Sampling(40, temperature=0), stop_ids=stops)) for ids in prompts]
    assert sum(map(len, answers)) > 40
    for mine, answer in zip(answers, theirs["answers"], strict=True):
        assert mine == (answer[:-1] if answer[-1] in stops else answer)


def test_a_weight_too_large_for_f16_is_named(tmp_path: Path, tokenizer: Tokenizer) -> None:
    model = tiny()
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight[0, 0] = 7e4
    with pytest.raises(UserError, match=r"layers\.1\.mlp\.down_proj\.weight.*--dtype bf16"):
        save_gguf(model.state_dict(), model.config, tokenizer, tmp_path / "m.gguf")
    save_gguf(model.state_dict(), model.config, tokenizer, tmp_path / "m.gguf", "bf16")
    assert read(tmp_path / "m.gguf")["blk.1.ffn_down.weight"][0, 0] == 70144.0  # the nearest bf16


def test_without_the_extra_one_line_says_what_to_install(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    model = tiny()
    with pytest.raises(UserError, match=r"pip install 'minimind-deepspeed\[gguf\]'"):
        save_gguf(model.state_dict(), model.config, tokenizer, tmp_path / "m.gguf")


def test_an_interrupted_export_leaves_no_file(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(gguf.GGUFWriter, "write_tensors_to_file", fail)
    model = tiny()
    with pytest.raises(OSError, match="No space"):
        save_gguf(model.state_dict(), model.config, tokenizer, tmp_path / "m.gguf")
    assert list(tmp_path.glob("*.gguf")) == []
