"""MiniMind's own .pth files. The 2024 layout is checked against its formula, written here from its definition."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from minimind.base.errors import UserError
from minimind.interop.upstream import check_exportable, load_pth, save_pth
from minimind.model.transformer import ModelConfig, Transformer

CONFIG = ModelConfig(
    vocab_size=50,
    hidden_size=64,
    num_hidden_layers=2,
    num_attention_heads=8,
    num_key_value_heads=2,
    initializer_range=0.2,
)
OF_2024 = {"num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 4, "rope_theta": 1e4}
OLD = {
    "self_attn.q_proj": "attention.wq",
    "self_attn.k_proj": "attention.wk",
    "self_attn.v_proj": "attention.wv",
    "self_attn.o_proj": "attention.wo",
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.down_proj": "feed_forward.w2",
    "mlp.up_proj": "feed_forward.w3",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm",
    "embed_tokens": "tok_embeddings",
}


def old_state(config: ModelConfig) -> dict[str, Tensor]:
    """A file of 2024: its names, its buffers, the tied output under its own name."""
    state = {}
    for name, value in Transformer(config, seed=4).state_dict().items():
        name = name.removeprefix("model.")
        for new, old in OLD.items():
            name = name.replace(new, old)
        state[name] = value
    mask = torch.zeros(1, 1, 8, 8)
    buffers = {"pos_cis": torch.ones(8, 4, dtype=torch.complex64), "layers.0.attention.mask": mask}
    return state | {"output.weight": state["tok_embeddings.weight"]} | buffers


def norm(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * weight


def turn_neighbours(x: Tensor, theta: float) -> Tensor:
    """Rotary positions on neighbouring channels as complex numbers; ``x`` [T, heads, D]."""
    length, _, size = x.shape
    angles = torch.outer(torch.arange(length).float(), theta ** (-torch.arange(0, size, 2).float() / size))
    turned = (
        torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2)) * torch.polar(torch.ones_like(angles), angles)[:, None]
    )
    return torch.view_as_real(turned).flatten(2)


def old_logits(state: dict[str, Tensor], ids: Tensor, config: ModelConfig) -> Tensor:
    x = state["tok_embeddings.weight"][ids]  # [T, H]
    group = config.num_attention_heads // config.num_key_value_heads
    for i in range(config.num_hidden_layers):
        layer = {k.removeprefix(f"layers.{i}.").removesuffix(".weight"): v for k, v in state.items()}
        y = norm(x, layer["attention_norm"])
        q, k, v = ((y @ layer[f"attention.{n}"].t()).view(len(ids), -1, config.head_dim) for n in ("wq", "wk", "wv"))
        q, k = turn_neighbours(q, config.rope_theta), turn_neighbours(k, config.rope_theta)
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        scores = torch.einsum("qhd,khd->hqk", q, k) / config.head_dim**0.5
        scores = scores.masked_fill(torch.ones(len(ids), len(ids)).triu(1).bool(), -torch.inf)
        mixed = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).flatten(1)
        x = x + mixed @ layer["attention.wo"].t()
        y = norm(x, layer["ffn_norm"])
        wide = F.silu(y @ layer["feed_forward.w1"].t()) * (y @ layer["feed_forward.w3"].t())
        x = x + wide @ layer["feed_forward.w2"].t()
    return norm(x, state["norm.weight"]) @ state["output.weight"].t()


@pytest.mark.parametrize("config", [CONFIG, CONFIG.model_copy(update=OF_2024)], ids=["early 2025", "2024"])
def test_2024_layout_gives_its_own_logits(tmp_path: Path, config: ModelConfig) -> None:
    raw, ids = old_state(config), torch.arange(20) * 7 % 50
    torch.save(raw, tmp_path / "full_sft_64.pth")
    state, inferred = load_pth(tmp_path / "full_sft_64.pth")
    assert inferred == config.model_copy(update={"initializer_range": 0.02})
    model = Transformer(inferred, seed=None)
    model.load_state_dict(state)
    with torch.no_grad():
        torch.testing.assert_close(model(ids[None])[0], old_logits(raw, ids, config), rtol=0, atol=2e-5)


def test_2025_layout_round_trips(tmp_path: Path) -> None:
    model = Transformer(CONFIG, seed=4)
    save_pth(model.state_dict(), CONFIG, tmp_path / "pretrain_64.pth")
    raw = torch.load(tmp_path / "pretrain_64.pth", weights_only=True)
    assert raw["lm_head.weight"].dtype == torch.float16
    assert torch.equal(raw["lm_head.weight"], raw["model.embed_tokens.weight"])
    state, config = load_pth(tmp_path / "pretrain_64.pth")
    assert config == CONFIG.model_copy(update={"initializer_range": 0.02})
    assert state.keys() == model.state_dict().keys()
    assert all(torch.equal(value, model.state_dict()[name].half()) for name, value in state.items())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rope_theta": 5e5}, "rope_theta 500000.0 as 1000000.0"),
        ({"rms_norm_eps": 1e-6}, "rms_norm_eps 1e-06 as 1e-05"),
        ({"num_attention_heads": 4, "num_key_value_heads": 2}, "num_attention_heads 4 as 16"),
        ({"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 8}, "not one of MiniMind's"),
    ],
)
def test_a_shape_that_a_file_does_not_tell_is_not_exported(changes: dict[str, float], words: str) -> None:
    config = ModelConfig(**{**CONFIG.model_dump(), **changes})
    with pytest.raises(UserError, match=words):
        check_exportable(Transformer(config).state_dict(), config, Path("m"))
    check_exportable(Transformer(CONFIG).state_dict(), CONFIG, Path("m"))


def test_a_weight_too_large_for_fp16_is_not_exported() -> None:
    model = Transformer(CONFIG)
    with torch.no_grad():
        model.model.norm.weight[3] = 7e4
    with pytest.raises(UserError, match="too large"):
        check_exportable(model.state_dict(), CONFIG, Path("m"))


def test_compiled_prefix_is_dropped(tmp_path: Path) -> None:
    model = Transformer(CONFIG)
    torch.save({f"_orig_mod.{name}": value for name, value in model.state_dict().items()}, tmp_path / "a.pth")
    assert load_pth(tmp_path / "a.pth")[0].keys() == model.state_dict().keys()


def test_a_given_shape_is_used(tmp_path: Path) -> None:
    given = CONFIG.model_copy(update={"rope_theta": 5e5})
    save_pth(Transformer(CONFIG).state_dict(), CONFIG, tmp_path / "a.pth")
    assert load_pth(tmp_path / "a.pth", given)[1] == given


def state_with(**extra: Tensor) -> dict[str, Tensor]:
    names = {name.replace("__", "."): value for name, value in extra.items()}
    return Transformer(CONFIG).state_dict() | names


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (state_with(model__layers__0__mlp__experts__0__up_proj__weight=torch.ones(1)), "mixture of experts"),
        ({"weight": torch.ones(2)}, "no token embedding"),
        ({}, "not a MiniMind weight file"),
        ({"model.embed_tokens.weight": "text"}, "more than named tensors"),
        ([1, 2], "list"),
        ({"model.embed_tokens.weight": torch.ones(5, 4)}, "not one of MiniMind's"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: object, words: str) -> None:
    torch.save(content, tmp_path / "x.pth")
    with pytest.raises(UserError, match=words):
        load_pth(tmp_path / "x.pth")


def test_a_file_that_is_no_pickle(tmp_path: Path) -> None:
    (tmp_path / "x.pth").write_text("hello")
    with pytest.raises(UserError, match="can't be read"):
        load_pth(tmp_path / "x.pth")
