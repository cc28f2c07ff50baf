"""The exported directory: transformers gets the same logits, ids and chat strings; foreign ones are read or refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from minimind.base.errors import UserError
from minimind.inference.loading import load_model
from minimind.interop.gguf import save_gguf
from minimind.interop.huggingface import load_pretrained, read_config, save_pretrained
from minimind.interop.huggingface_config import transformers_config
from minimind.model.transformer import ModelConfig, Transformer
from minimind.text.chat import Turn, prompt_ids, render
from minimind.text.tokenizer import Tokenizer, train_tokenizer
from tests.text.spelled import as_text

transformers = pytest.importorskip("transformers")

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
    "１２３ 4567 \U0001f600 ﬁ é \x00\r\n",
    "a\u2581b \u2581",
    "<s> </s> <unk> <pad>",
    "unseen: ξ漢𠮷",
]
TURNS = [Turn("system", "be brief"), Turn("user", "hello\nfox 12"), Turn("assistant", "你好 aaa"), Turn("user", "")]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(train_tokenizer(TEXTS, tmp_path_factory.mktemp("tokenizer"), 480))


@pytest.fixture(scope="module")
def model() -> Transformer:
    return Transformer(ModelConfig.preset("tiny", vocab_size=480, num_hidden_layers=2), seed=3)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory, model: Transformer, tokenizer: Tokenizer) -> Path:
    directory = tmp_path_factory.mktemp("run") / "final"
    save_pretrained(model.state_dict(), model.config, tokenizer, directory)
    return directory


@pytest.fixture(scope="module")
def theirs(exported: Path) -> Any:
    return transformers.AutoTokenizer.from_pretrained(exported)


def test_equal_models_are_equal_files(tmp_path: Path, model: Transformer, tokenizer: Tokenizer) -> None:
    """safetensors writes its metadata in the order of a hash map, another one in each map."""
    files = [tmp_path / str(n) / "model.safetensors" for n in range(8)]
    for file in files:
        save_pretrained(model.state_dict(), model.config, tokenizer, file.parent)
    assert len({file.read_bytes() for file in files}) == 1
    with safe_open(files[0], "pt") as weights:
        assert weights.metadata().keys() == {"format", "made_by", "tokenizer"}
        assert all(torch.equal(weights.get_tensor(name), model.state_dict()[name]) for name in model.state_dict())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_transformers_loads_the_same_model(
    tmp_path: Path, model: Transformer, tokenizer: Tokenizer, dtype: torch.dtype
) -> None:
    state = {name: value.to(dtype) for name, value in model.state_dict().items()}
    save_pretrained(state, model.config, tokenizer, tmp_path)
    llama = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(llama).__name__ == "LlamaForCausalLM"
    assert llama.dtype == dtype
    ids = torch.randint(0, 480, (2, 40), generator=torch.Generator().manual_seed(0))
    ours = Transformer(model.config, seed=None)
    ours.load_state_dict(state)
    with torch.no_grad():
        torch.testing.assert_close(ours(ids), llama.float()(ids).logits, rtol=0, atol=1e-5)


def test_generation_config_ends_answers(exported: Path, tokenizer: Tokenizer) -> None:
    config = transformers.GenerationConfig.from_pretrained(exported)
    assert set(config.eos_token_id) == {tokenizer.eos_id, tokenizer.im_end_id}
    assert (config.bos_token_id, config.pad_token_id) == (tokenizer.bos_id, tokenizer.pad_id)


@pytest.mark.parametrize("text", [*SAMPLES, *TEXTS[::40]])
def test_same_ids_and_text(theirs: Any, tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert theirs(text)["input_ids"] == [tokenizer.bos_id, *ids]  # as in training
    assert theirs(text, add_special_tokens=False)["input_ids"] == ids
    assert theirs.decode(ids) == text


def test_same_chat(theirs: Any, tokenizer: Tokenizer) -> None:
    messages = [{"role": turn.role, "content": turn.content} for turn in TURNS]
    assert theirs.apply_chat_template(messages, tokenize=False) == theirs.bos_token + as_text(TURNS)
    assert theirs.apply_chat_template(messages)["input_ids"] == render(TURNS, tokenizer).ids
    prompted = theirs.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
    assert prompted == prompt_ids(TURNS, tokenizer)


def test_same_special_tokens(theirs: Any, tokenizer: Tokenizer) -> None:
    assert len(theirs) == tokenizer.vocab_size
    ids = (theirs.pad_token_id, theirs.bos_token_id, theirs.eos_token_id)
    assert ids == (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id)
    assert theirs.convert_tokens_to_ids("<|im_start|>") == tokenizer.im_start_id
    assert theirs.convert_tokens_to_ids("<|im_end|>") == tokenizer.im_end_id


def test_round_trip(exported: Path, model: Transformer, tokenizer: Tokenizer) -> None:
    state, config = load_pretrained(exported)
    assert config == model.config
    assert Tokenizer.load(exported).fingerprint == tokenizer.fingerprint
    assert state.keys() == model.state_dict().keys()
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


def test_what_transformers_saves_again_needs_no_sentencepiece_file(
    tmp_path: Path, exported: Path, model: Transformer, tokenizer: Tokenizer
) -> None:
    transformers.AutoModelForCausalLM.from_pretrained(exported).save_pretrained(tmp_path / "theirs")
    transformers.AutoTokenizer.from_pretrained(exported).save_pretrained(tmp_path / "theirs")
    assert not (tmp_path / "theirs" / "tokenizer.model").exists()
    loaded, again = load_model(tmp_path / "theirs")
    assert not again.is_sentencepiece and again.vocab_size == tokenizer.vocab_size
    assert [again.pad_id, again.bos_id, again.eos_id] == [tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id]
    for text in [*SAMPLES, *TEXTS[::60]]:
        assert again.encode(text) == tokenizer.encode(text) or "\u2581" in text, text
    assert render(TURNS, again) == render(TURNS, tokenizer) and prompt_ids(TURNS, again) == prompt_ids(TURNS, tokenizer)
    save_pretrained(loaded.state_dict(), loaded.config, again, tmp_path / "back")  # and is exported with what it has
    back, kept = load_model(tmp_path / "back")
    assert kept.fingerprint == again.fingerprint
    ids = transformers.AutoTokenizer.from_pretrained(tmp_path / "back")("hello fox")["input_ids"]
    assert ids == [kept.bos_id, *kept.encode("hello fox")]
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in back.state_dict().items())
    files = [tmp_path / "ours.gguf", tmp_path / "back.gguf"]
    for file, each in zip(files, (tokenizer, kept), strict=True):
        save_gguf(back.state_dict(), back.config, each, file)
    ours, theirs = (pytest.importorskip("gguf").GGUFReader(file).fields for file in files)
    for name in (name for name in ours if name.startswith("tokenizer") and name != "tokenizer.ggml.scores"):
        assert theirs[name].contents() == ours[name].contents(), name


def test_reads_what_transformers_writes_sharded_and_untied(tmp_path: Path) -> None:
    config = ModelConfig.preset("tiny", vocab_size=480, num_hidden_layers=2, tie_word_embeddings=False)
    llama = transformers.LlamaForCausalLM(transformers.LlamaConfig(**config.model_dump()))
    llama.save_pretrained(tmp_path, max_shard_size="300KB")
    assert (tmp_path / "model.safetensors.index.json").is_file()
    state, read = load_pretrained(tmp_path)
    assert read == config
    ours = Transformer(read, seed=None)
    ours.load_state_dict(state)
    ids = torch.arange(30)[None]
    with torch.no_grad():
        torch.testing.assert_close(ours(ids), llama.eval()(ids).logits, rtol=0, atol=1e-5)


def test_an_interrupted_export_is_not_taken_for_a_model(
    tmp_path: Path, model: Transformer, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_pretrained(model.state_dict(), model.config, tokenizer, tmp_path)

    def fail(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("minimind.interop.huggingface.save_file", fail)
    with pytest.raises(OSError, match="No space"):
        save_pretrained(model.state_dict(), model.config, tokenizer, tmp_path)
    assert not (tmp_path / "config.json").exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "gemma3"}, "gemma3"),
        ({"model_type": "qwen3_moe", "num_experts": 8}, "qwen3_moe.*mixture of experts"),
        ({"model_type": "minimind", "use_moe": True}, "mixture of experts"),
        ({"model_type": "minimind", "rope_scaling": {"type": "yarn", "factor": 16}}, "yarn"),
        ({"attention_bias": True}, "attention biases"),
        ({"model_type": "qwen3", "attention_bias": True}, "attention biases"),
        ({"model_type": "mistral"}, r"sliding window \(4096\)"),
        ({"model_type": "mistral", "sliding_window": 64}, r"sliding window \(64\)"),
        ({"model_type": "qwen2", "use_sliding_window": True}, "sliding window"),
        ({"model_type": "qwen3", "layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
        ({"partial_rotary_factor": 0.5}, "part of each head"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantized"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2}}, "dynamic"),
        ({"rope_scaling": {"type": "llama3", "factor": 8}}, "llama3 needs high_freq_factor, low_freq_factor"),
        ({"rope_scaling": {"type": "yarn"}}, r"rope_scaling\.factor"),
        ({"mlp_bias": True}, "MLP biases"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}}, "longrope"),
        ({"use_moe": True}, "mixture of experts"),
        ({"num_key_value_heads": 3}, "multiple"),
    ],
)
def test_other_architectures_are_refused(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    raw = transformers_config(ModelConfig.preset("tiny"), torch.float32) | changes
    (tmp_path / "config.json").write_text(json.dumps(raw))
    with pytest.raises(UserError, match=words):
        read_config(tmp_path / "config.json")


def test_defaults_of_a_foreign_llama(tmp_path: Path) -> None:
    """What a config.json leaves out has Llama's defaults, not ours."""
    raw = {
        "model_type": "llama",
        "vocab_size": 64,
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "intermediate_size": 64,
    }
    (tmp_path / "config.json").write_text(json.dumps(raw))
    config, reference = read_config(tmp_path / "config.json"), transformers.LlamaConfig(**raw)
    assert config.num_key_value_heads == reference.num_key_value_heads == 4
    assert config.rms_norm_eps == reference.rms_norm_eps
    assert config.tie_word_embeddings == reference.tie_word_embeddings
    assert config.rope_theta == reference.rope_parameters["rope_theta"]
    assert config.head_dim == reference.head_dim


@pytest.mark.parametrize("content", ["{", "[]", "\xff"])
def test_malformed_config(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(UserError, match=r"config\.json"):
        load_pretrained(tmp_path)


ODD: list[object] = [None, True, -1, 0, 0.5, 3, 10**9, float("inf"), "", "yarn", [], [1], {}, {"rope_type": "yarn"}]
NAMES = [
    *sorted(ModelConfig.model_fields),
    *("model_type", "hidden_act", "layer_types", "sliding_window", "use_sliding_window", "attention_bias", "mlp_bias"),
    *("rope_parameters", "partial_rotary_factor", "quantization_config", "num_experts", "type", "rope_type", "factor"),
    *("original_max_position_embeddings", "low_freq_factor", "high_freq_factor", "use_moe", "beta_fast"),
]
SCALED = {"rope_type": "yarn", "original_max_position_embeddings": 8, "rope_theta": 1e4}
odd = st.sampled_from(ODD)


@settings(
    derandomize=True, deadline=None, max_examples=500, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.sampled_from(["llama", "mistral", "qwen2", "qwen3", "minimind"]),
    st.dictionaries(st.sampled_from(NAMES), odd, max_size=3),
    st.dictionaries(st.sampled_from(NAMES), odd, max_size=2),
    st.sampled_from(["rope_scaling", "rope_parameters", "unused"]),
)
def test_any_config_is_a_shape_or_one_line(
    tmp_path: Path, kind: str, changes: dict[str, object], scaled: dict[str, object], name: str
) -> None:
    content = {"model_type": kind, "sliding_window": None, "hidden_size": 32, name: {**SCALED, **scaled}, **changes}
    (tmp_path / "config.json").write_text(json.dumps(content))
    try:
        read_config(tmp_path / "config.json")
    except UserError as error:
        said = str(error)
    else:
        said = ""
    assert "\n" not in said


def test_sharded_pickles_are_read_as_weights_only(tmp_path: Path, exported: Path, model: Transformer) -> None:
    """As transformers wrote models before safetensors."""
    state, config = load_pretrained(exported)
    names = sorted(state)
    for number, part in enumerate((names[::2], names[1::2])):
        torch.save({name: state[name] for name in part}, tmp_path / f"pytorch_model-{number}.bin")
    places = {name: f"pytorch_model-{number % 2}.bin" for number, name in enumerate(names)}
    index = tmp_path / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": places}))
    (tmp_path / "config.json").write_bytes((exported / "config.json").read_bytes())
    read, same = load_pretrained(tmp_path)
    assert same == config and read.keys() == state.keys()
    assert all(torch.equal(read[name], state[name]) for name in names)
    index.write_text(json.dumps({"weight_map": {**places, names[0]: "model-0.safetensors"}}))
    with pytest.raises(UserError, match=r"names .*model-0.safetensors.*, which is no \.bin file"):
        load_pretrained(tmp_path)
    torch.save({"model.norm.weight": [1.0]}, tmp_path / "pytorch_model-0.bin")
    index.write_text(json.dumps({"weight_map": places}))
    with pytest.raises(UserError, match="holds more than named tensors"):
        load_pretrained(tmp_path)


def test_an_adapter_without_its_model_is_named(tmp_path: Path) -> None:
    """What PEFT saves of a model that was not merged."""
    (tmp_path / "adapter_config.json").write_text("{}")
    (tmp_path / "adapter_model.safetensors").write_bytes(b"")
    with pytest.raises(UserError, match="a PEFT adapter without its model; merge it"):
        load_model(tmp_path)
