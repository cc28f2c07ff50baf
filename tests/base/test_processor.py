"""What this processor multiplies: asked of the operators, with the capabilities there, switched off and missing."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from minimind.base import hardware, processor
from minimind.base.hardware import choose_config, detect
from minimind.model import ops
from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[2]
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
AVX2 = {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}
OLDEST = {"ONEDNN_MAX_CPU_ISA": "SSE41", "ATEN_CPU_CAPABILITY": "default"}
ASKED = ("onednn_multiplies", "onednn_packs", "cpu_has_fast")


@pytest.fixture
def asked_anew(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The questions without their cache, on a processor that has every flag and an oneDNN without a ceiling."""
    for name in ASKED:
        monkeypatch.setattr(processor, name, getattr(processor, name).__wrapped__)
    for name in processor._CEILING_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    flags = {"avx512_bf16", "amx_bf16", "amx_fp16", "avx512_fp16"}
    monkeypatch.setattr(processor, "cpu_flags", lambda: flags)
    return monkeypatch


def refuse(*arguments: object) -> torch.Tensor:
    raise RuntimeError("could not create a primitive descriptor")


@pytest.mark.parametrize("dtype", [BF16, FP16])
def test_a_flag_is_not_enough(asked_anew: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    """The operator must run, and oneDNN must be allowed to use the instruction."""
    asked_anew.setattr(processor, "linear_pointwise", lambda x, weight: x)
    assert processor.cpu_has_fast(dtype)
    for ceiling in ("AVX2", "avx512_core", "AVX2_VNNI_2"):
        asked_anew.setenv("ONEDNN_MAX_CPU_ISA", ceiling)
        assert not processor.cpu_has_fast(dtype)
    asked_anew.setenv("ONEDNN_MAX_CPU_ISA", "DEFAULT")
    assert processor.cpu_has_fast(dtype)
    asked_anew.setattr(processor, "linear_pointwise", refuse)
    assert not processor.cpu_has_fast(dtype)


def test_an_operator_that_runs_is_not_enough(asked_anew: pytest.MonkeyPatch) -> None:
    """AVX-512 without AVX512-BF16 runs bf16 at a third of fp32's speed."""
    asked_anew.setattr(processor, "linear_pointwise", lambda x, weight: x)
    asked_anew.setattr(processor, "cpu_flags", lambda: {"avx512f", "avx512bw", "avx512vl"})
    assert not processor.cpu_has_fast(BF16) and not processor.cpu_has_fast(FP16)
    assert processor.cpu_has_fast(FP32)


def test_an_operator_that_is_not_in_this_torch_is_one_that_does_not_run(asked_anew: pytest.MonkeyPatch) -> None:
    asked_anew.setattr(torch.ops, "mkldnn", object())
    asked_anew.setattr(torch.ops, "quantized", object())
    assert not processor.onednn_multiplies(FP32) and not processor.onednn_packs(FP32)
    assert not processor.fbgemm_holds_half.__wrapped__()
    assert not processor.cpu_runs_fp16() and not processor.cpu_has_fast(BF16)


def test_products_do_without_onednn(asked_anew: pytest.MonkeyPatch) -> None:
    asked_anew.setattr(ops, "onednn_multiplies", lambda dtype: False)
    asked_anew.setattr(ops, "linear_pointwise", refuse)
    x, weight = torch.randn(3, 5, 16), torch.randn(4, 16)
    torch.testing.assert_close(ops.product(x, weight), F.linear(x, weight))


def test_fp16_that_is_only_converted_is_not_native(asked_anew: pytest.MonkeyPatch) -> None:
    """oneDNN says yes to AVX-NE-CONVERT; training there would go through fp32 at its price."""

    class Mkldnn:
        _is_mkldnn_fp16_supported = staticmethod(lambda: True)

    asked_anew.setattr(torch.ops, "mkldnn", Mkldnn)
    assert processor.cpu_runs_fp16()
    asked_anew.setattr(processor, "cpu_flags", lambda: {"avx2", "avx_ne_convert"})
    assert not processor.cpu_runs_fp16()


def test_detection_and_the_products_say_the_same() -> None:
    if detect().device_type == "cpu":
        assert detect().bf16 == ops.cpu_has_fast(BF16) == (not ops.through_fp32(torch.ones(2, 2, dtype=BF16)))


def test_detection_follows_what_the_operators_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for has, name in ((True, "bf16.json"), (False, "fp32.json")):
        monkeypatch.setattr(processor, "cpu_has_fast", lambda dtype, has=has: has)
        monkeypatch.setattr(processor, "cpu_runs_fp16", lambda: False)
        assert hardware.detect().bf16 is has
        assert choose_config()[0].name == name


@pytest.mark.parametrize("switches", [AVX2, OLDEST], ids=["avx2", "oldest"])
def test_with_capabilities_switched_off_nothing_is_native_and_everything_runs(switches: dict[str, str]) -> None:
    """In a process of its own: the libraries read the switches once."""
    code = textwrap.dedent(
        """
        import torch
        from minimind.base import processor
        from minimind.base.hardware import detect
        from minimind.inference.decoding import Decoder
        from minimind.model.transformer import ModelConfig, Transformer

        ids = torch.arange(16)[None]
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            model = Transformer(ModelConfig.preset("tiny", vocab_size=64)).to(dtype)
            model(ids, ids, ids, torch.zeros_like(ids)).backward()
            assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters())
            with torch.inference_mode():
                cache = model.eval().new_cache(1, 20, None)
                model.next_logits(ids, cache)
                assert Decoder(model, cache)(torch.tensor([7])).isfinite().all()
        print(detect().bf16, detect().fp16, *map(processor.cpu_has_fast, (torch.bfloat16, torch.float16)))
        """
    )
    environment = {**os.environ, **switches, "PYTHONPATH": str(ROOT), "DS_ACCELERATOR": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["False"] * 4


def test_a_compiled_model_takes_the_answers_for_constants() -> None:
    torch._dynamo.reset()
    x, weight = torch.ones(2, 8, dtype=FP16), torch.ones(4, 8, dtype=FP16)
    compiled = torch.compile(ops.linear, backend="eager", fullgraph=True)
    assert torch.equal(compiled(x, weight), torch.full((2, 4), 8.0, dtype=FP16))
