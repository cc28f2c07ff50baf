"""Every family that the transformer builds: transformers' logits, training, export to the same family."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from minimind.base.errors import UserError
from minimind.config.model import ModelConfig
from minimind.inference.decoding import Decoder
from minimind.inference.loading import build
from minimind.interop.huggingface import load_pretrained, save_pretrained
from minimind.interop.upstream import check_exportable, load_pth, save_pth
from minimind.model.transformer import Transformer

transformers = pytest.importorskip("transformers")
from tests.interop import families  # noqa: E402  (it needs transformers)


def loaded(directory: Path) -> Transformer:
    state, config = load_pretrained(directory)
    return build(state, config, directory).eval()


@pytest.mark.parametrize("case", families.CASES)
def test_logits_are_transformers_and_the_export_is_the_same_model(case: str, tmp_path: Path) -> None:
    theirs = families.save(case, tmp_path / "theirs", "20KB")
    assert (tmp_path / "theirs" / "model.safetensors.index.json").is_file()
    model, ids = loaded(tmp_path / "theirs"), families.ids()
    with torch.no_grad():
        expected = theirs(ids).logits
        assert expected.std() > 0.3
        torch.testing.assert_close(model(ids), expected, rtol=0, atol=1e-5)
    assert sum(parameter.numel() for parameter in model.parameters()) == model.config.num_parameters()
    save_pretrained(model.state_dict(), model.config, None, tmp_path / "ours")
    back = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours")
    assert type(back) is type(theirs)
    with torch.no_grad():
        torch.testing.assert_close(back(ids).logits, expected, rtol=0, atol=1e-5)
    assert loaded(tmp_path / "ours").config == model.config
    save_pretrained(model.state_dict(), model.config, None, tmp_path / "ours")  # over an export of ours
    with pytest.raises(UserError, match="no export of this program"):
        save_pretrained(model.state_dict(), model.config, None, tmp_path / "theirs")


@pytest.mark.parametrize("case", ["qwen2", "qwen3", "llama-yarn"])
def test_gradients_are_transformers(case: str, tmp_path: Path) -> None:
    theirs = families.save(case, tmp_path)
    model, ids = loaded(tmp_path), families.ids(2, 30)
    model(ids, torch.nn.functional.pad(ids[:, 1:], (0, 1), value=-100)).div(2 * 29).backward()
    theirs(ids, labels=ids).loss.backward()
    reference = dict(theirs.named_parameters())
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, reference[name].grad, rtol=1e-3, atol=1e-5, msg=name)


@torch.inference_mode()
@pytest.mark.parametrize("case", ["qwen2", "qwen3-tied", "qwen3-yarn", "llama-llama3"])
def test_the_decode_step_gives_the_models_own_logits(case: str, tmp_path: Path) -> None:
    families.save(case, tmp_path)
    model, ids = loaded(tmp_path), families.ids(2, 20)
    cache = model.new_cache(2, 24)
    model.next_logits(ids[:, :16], cache)
    decoder = Decoder(model, cache)
    for column in range(16, 20):
        expected = model(ids[:, : column + 1])[:, -1]
        torch.testing.assert_close(decoder(ids[:, column]).float(), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("family", ["Llama", "Qwen3"])
def test_an_output_projection_that_is_not_the_embedding_is_used(family: str, tmp_path: Path) -> None:
    """Though the config says that they are tied: transformers 5 is the judge."""
    families.make(family).save_pretrained(tmp_path)
    content = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**content, "tie_word_embeddings": True}))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    model, ids = loaded(tmp_path), families.ids(1, 20)
    assert not model.config.tie_word_embeddings
    with torch.no_grad():
        torch.testing.assert_close(model(ids), theirs(ids).logits, rtol=0, atol=1e-5)


def test_what_a_file_leaves_out_has_its_familys_default(tmp_path: Path) -> None:
    for family in ("Llama", "Qwen2", "Qwen3"):
        theirs = getattr(transformers, f"{family}Config")()
        (tmp_path / "config.json").write_text(json.dumps({"model_type": theirs.model_type}))
        from minimind.interop.huggingface import read_config

        ours = read_config(tmp_path / "config.json")
        for name in set(ModelConfig.model_fields) - {"rope_scaling", "rope_theta", "head_dim"}:
            assert getattr(ours, name) == getattr(theirs, name), (family, name)
        assert ours.head_dim == (getattr(theirs, "head_dim", None) or theirs.hidden_size // theirs.num_attention_heads)
        assert ours.rope_theta == theirs.rope_parameters["rope_theta"]


OF_2026 = {"hidden_size": 64, "num_attention_heads": 8, "num_key_value_heads": 4, "rms_norm_eps": 1e-6}


def minimind_3(**more: object) -> Transformer:
    fields = {"model_type": "qwen3", "vocab_size": 96, "num_hidden_layers": 2, "initializer_range": 0.2, **OF_2026}
    return Transformer(ModelConfig(**{**fields, **more}), seed=2).eval()  # type: ignore[arg-type]


def test_minimind_of_2026_is_read_and_written(tmp_path: Path) -> None:
    """Its own exporter writes the same weights as Qwen3ForCausalLM: transformers is the judge."""
    model = minimind_3()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.half())
    check_exportable(model.state_dict(), model.config, tmp_path)
    save_pth(model.state_dict(), model.config, tmp_path / "full_sft_64.pth")
    raw = torch.load(tmp_path / "full_sft_64.pth", weights_only=True)
    theirs = transformers.Qwen3ForCausalLM(
        transformers.Qwen3Config(**{**model.config.model_dump(), "hidden_act": "silu"})
    ).eval()
    theirs.load_state_dict({name: value.float() for name, value in raw.items()})
    state, config = load_pth(tmp_path / "full_sft_64.pth")
    assert config == model.config.model_copy(update={"initializer_range": 0.02})
    read = build({name: value.float() for name, value in state.items()}, config, tmp_path).eval()
    with torch.no_grad():
        torch.testing.assert_close(read(families.ids()), theirs(families.ids()).logits, rtol=0, atol=1e-5)


@pytest.mark.parametrize("safe", [True, False])
def test_a_directory_of_miniminds_own_type_is_told_by_its_weights(tmp_path: Path, safe: bool) -> None:
    model = minimind_3()
    raw = {**model.config.model_dump(), "model_type": "minimind", "num_experts": 4, "use_moe": False}
    raw = {name: value for name, value in raw.items() if name != "tie_word_embeddings"}  # transformers leaves it out
    save_pretrained(model.state_dict(), model.config, None, tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(raw))
    if not safe:
        (tmp_path / "model.safetensors").unlink()
        torch.save({**model.state_dict(), "lm_head.weight": model.output_weight}, tmp_path / "pytorch_model.bin")
    read = loaded(tmp_path)
    assert read.config == model.config
    with torch.no_grad():
        assert torch.equal(read(families.ids()), model(families.ids()))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_key_value_heads": 2}, "num_key_value_heads 2 as 4"),
        ({"intermediate_size": 128}, "intermediate_size 128 as 256"),
        ({"head_dim": 16}, "head_dim 16 as 8"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings False as True"),
        ({"model_type": "qwen2", "num_key_value_heads": 2, "rms_norm_eps": 1e-5}, "model_type qwen2 as llama"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2}}, r"scaled \(linear\)"),
    ],
)
def test_a_pth_of_a_shape_that_minimind_lacks_is_refused(changes: dict[str, object], words: str) -> None:
    model = minimind_3(**changes)
    with pytest.raises(UserError, match=words):
        check_exportable(model.state_dict(), model.config, Path("m"))
