"""The GPU's forms of attention, without a GPU: their logic on a CPU, the real operators' shape rules on "meta"."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import flex_attention

from minimind.base.errors import UserError
from minimind.model import attention
from minimind.model import cuda as attention_cuda
from minimind.model.transformer import ModelConfig, Transformer

CUDA = torch.device("cuda")
DOCUMENTS = torch.tensor([[0] * 5 + [1] + [2] * 10, [2] * 16])  # a row's last document never goes on in the next row
SMALL = ModelConfig.preset(
    "tiny", vocab_size=64, hidden_size=32, num_hidden_layers=2, head_dim=16, initializer_range=0.3
)


def inputs(device: str = "cpu", dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """q, k, v [2, 16, heads, 8] with 4 query and 2 key heads."""
    generator = torch.Generator().manual_seed(0)
    values = [torch.randn((2, 16, heads, 8), generator=generator) for heads in (4, 2, 2)]
    return [value.to(device, dtype).requires_grad_() for value in values]


def documents_by_offsets(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    starts: Tensor,
    _: Tensor,
    longest: int,
    __: int,
    *,
    window_size: tuple[int, int],
    enable_gqa: bool,
) -> Tensor:
    """What varlen_attn's documentation says, in plain PyTorch: [tokens, heads, D]."""
    assert starts.dtype == torch.int32 and window_size == (-1, 0) and int(starts.diff().max()) <= longest
    pieces = []
    for start, end in pairwise(starts.tolist()):
        heads_first = (x[start:end].transpose(0, 1)[None] for x in (q, k, v))
        pieces.append(F.scaled_dot_product_attention(*heads_first, is_causal=True, enable_gqa=enable_gqa)[0])
    return torch.cat(pieces, 1).transpose(0, 1)


def test_varlen_sees_the_documents_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_cuda, "varlen_kernel", lambda: documents_by_offsets)
    outputs, grads = [], []
    for backend in ("varlen", "mask"):
        qkv = inputs()
        out = attention.plan(DOCUMENTS, backend).attend(*qkv)
        outputs.append(out)
        grads.append(torch.autograd.grad(out, qkv, torch.linspace(-1, 1, out.numel()).view_as(out)))
    torch.testing.assert_close(*outputs)
    torch.testing.assert_close(*grads)


def test_torchs_varlen_takes_what_it_is_given() -> None:
    """The real operator, forward and backward, by its rules for shapes: a change of torch's interface shows here."""
    kernel = attention_cuda.varlen_kernel()
    assert kernel is not None
    q, k, v = inputs("meta", torch.bfloat16)
    out = attention_cuda.Varlen(torch.zeros(5, dtype=torch.int32, device="meta"), 16, kernel).attend(q, k, v)
    assert out.shape == q.shape and out.dtype == torch.bfloat16
    for grad, source in zip(torch.autograd.grad(out.sum(), (q, k, v)), (q, k, v), strict=True):
        assert grad.shape == source.shape


@pytest.mark.parametrize("missing", ["module", "enable_gqa"])
def test_an_older_torch_has_no_varlen(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch.nn.attention.varlen as theirs

    def older(query: Tensor, key: Tensor, is_causal: bool = False) -> Tensor: ...

    monkeypatch.setattr(theirs, "varlen_attn", older)
    if missing == "module":
        monkeypatch.delattr(theirs, "varlen_attn")
    attention_cuda.varlen_kernel.cache_clear()
    try:
        assert attention_cuda.varlen_kernel() is None
    finally:
        attention_cuda.varlen_kernel.cache_clear()


@pytest.mark.parametrize("recompute", [False, True])
def test_flex_in_a_compiled_model_has_the_eager_gradient(recompute: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced forward and backward as on a GPU, without a graph break; only the code generator is left out."""
    monkeypatch.setattr(flex_attention, "_validate_device", lambda *_: None)  # a CPU has no kernel for the backward
    documents = torch.cat((DOCUMENTS, DOCUMENTS + 3), 1)
    tokens = torch.randint(0, 64, documents.shape, generator=torch.Generator().manual_seed(2))
    grads, losses = [], []
    for backend in ("runs", "flex"):
        model = Transformer(SMALL, seed=1)
        model.attention_backend, model.gradient_checkpointing = backend, recompute  # type: ignore[assignment]
        if backend == "flex":
            torch._dynamo.reset()
            model.hidden_states = torch.compile(model.hidden_states, backend="aot_eager", fullgraph=True)  # type: ignore[method-assign]
        loss = model(tokens, tokens, document_ids=documents)
        loss.backward()
        losses.append(loss.detach())
        grads.append([parameter.grad for parameter in model.parameters()])
    torch.testing.assert_close(*losses)
    torch.testing.assert_close(*grads, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("device", "dtype", "capability", "compiling", "head_dim", "expected"),
    [
        ("cuda", torch.bfloat16, (8, 6), False, 64, "varlen"),
        ("cuda", torch.float16, (9, 0), False, 64, "varlen"),
        ("cuda", torch.float32, (9, 0), False, 64, "mask"),
        ("cuda", torch.float16, (7, 5), False, 64, "mask"),  # Turing
        ("cuda", torch.float16, (9, 0), False, 20, "mask"),
        ("cuda", torch.bfloat16, (8, 6), True, 64, "flex"),
        ("cuda", torch.float32, (7, 5), True, 64, "flex"),
        ("cuda", torch.bfloat16, (8, 6), True, 8, "mask"),
        ("cpu", torch.float32, None, False, 64, "runs"),
        ("cpu", torch.float32, None, True, 64, "mask"),
    ],
)
def test_auto(
    device: str,
    dtype: torch.dtype,
    capability: tuple[int, int] | None,
    compiling: bool,
    head_dim: int,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: compiling)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    assert attention.fastest(torch.device(device), dtype, head_dim) == expected


def test_a_form_that_cannot_run_is_refused_before_the_first_step() -> None:
    cpu = torch.device("cpu")
    with pytest.raises(UserError, match="varlen needs an NVIDIA GPU"):
        attention.check_backend("varlen", cpu, torch.bfloat16, 64)
    for device, head_dim in ((cpu, 64), (CUDA, 8)):
        with pytest.raises(UserError, match=r"flex needs a GPU.* heads of 16"):
            attention.check_backend("flex", device, torch.bfloat16, head_dim)
    attention.check_backend("flex", CUDA, torch.float32, 64)
    for backend in ("auto", "mask"):
        attention.check_backend(backend, cpu, torch.bfloat16, 64)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("dtype", "masked", "key_heads"),
    [(torch.bfloat16, False, 2), (torch.bfloat16, True, 4), (torch.float32, False, 4), (torch.float32, True, 4)],
)
def test_a_gpus_fused_kernel_gets_as_many_key_heads_as_it_wants(
    dtype: torch.dtype, masked: bool, key_heads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, bool]] = []

    def record(q: Tensor, k: Tensor, v: Tensor, *, enable_gqa: bool, **_: Any) -> Tensor:
        assert k.shape == v.shape
        seen.append((k.shape[1], enable_gqa))
        return q

    monkeypatch.setattr(F, "scaled_dot_product_attention", record)
    documents = DOCUMENTS.to("meta")
    plan = attention.DenseMask(attention.document_mask(documents)) if masked else attention.Causal()
    plan.attend(*inputs("meta", dtype))
    assert seen == [(key_heads, key_heads == 2)]


def test_repeated_key_heads_are_the_same_attention() -> None:
    """The order in which heads share keys: torch's own grouping is the reference."""
    q, k, v = (x.transpose(1, 2) for x in inputs())
    repeated = F.scaled_dot_product_attention(q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1), is_causal=True)
    torch.testing.assert_close(repeated, F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True))
