"""Compiling for absent cards: what needs no CUDA build here; the whole where CUDA_PYTHON names an environment with one.

CUDA_PYTHON=../cudavenv/bin/python .venv/bin/python -m pytest tests/benchmarks/test_cuda_without_gpu.py
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks import absent_card, cuda_without_gpu
from benchmarks.cuda_without_gpu import Case, graphs_of, in_process, launches_in, packed_differently, parse, table
from minimind.base.errors import UserError
from minimind.model.transformer import ModelConfig

SMALL = ModelConfig.preset("tiny", num_hidden_layers=1)
ANSWER = {"error": "", "eager": [3, 4], "graphs": 2, "breaks": 0, "kernels": 5, "configurations": 7, "launches": [2, 3]}
WRAPPER = """
def call(self, args):
    triton_poi_fused_0.run(arg0_1, buf0, 512, stream=stream0)
    buf1 = empty_strided_cuda((4, 4), (4, 1), torch.float32)
    extern_kernels.mm(buf0, reinterpret_tensor(arg1_1, (4, 4), (1, 4), 0), out=buf1)
    buf2 = torch.ops.aten._scaled_dot_product_efficient_attention.default(buf1, buf1, buf1, None, True)
    buf3 = buf2[0]
    assert_size_stride(buf3, (4, 4), (4, 1))
    triton_red_fused_1.run(buf3, 4, 4, stream=stream0)
    return (buf3, )
"""


def test_rows_packed_differently_are_one_graph_of_each_kind() -> None:
    """Real values: a shape, a count or a branch that depends on where documents begin would make another graph."""
    assert graphs_of(SMALL, packed_differently(3)) == {"training": 1, "by source": 1, "held out": 1}


def test_another_shape_would_be_noticed() -> None:
    shapes = [*packed_differently(1), *packed_differently(1, rows=3)]
    assert graphs_of(SMALL, shapes)["training"] == 2


def test_launches_are_the_calls_of_kernels() -> None:
    assert launches_in(WRAPPER) == 4


def test_a_line_says_what_was_built_or_what_failed() -> None:
    built, failed = {"card": 86, "precision": "bf16", "form": "flex", **ANSWER, "seconds": 61.2}, {"error": "no ptxas"}
    lines = table([built, {"card": 90, "precision": "fp16", "form": "mask", **failed}]).splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    assert cells[0] == ["sm_86", "bf16", "flex", "3 + 4 = 7", "2", "0", "5", "7", "2 + 3 = 5", "61", "no"]
    assert cells[1] == ["sm_90", "fp16", "mask", *["n/a"] * 7, "no ptxas"]


def test_options_know_their_cards(capsys: pytest.CaptureFixture[str]) -> None:
    assert parse(["--cards", "86", "--forms", "flex,varlen"]).forms == ["flex", "varlen"]
    with pytest.raises(SystemExit):
        parse(["--cards", "75"])
    assert "75 is none of 80, 86, 90" in capsys.readouterr().err


def test_a_python_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--python .*nowhere: No such file"):
        in_process(tmp_path / "nowhere", Case(86, "bf16", "flex"))


def test_what_ends_a_process_is_in_its_line(tmp_path: Path) -> None:
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\necho 'Fatal: no such thing' >&2\nexit 3\n", encoding="utf-8")
    script.chmod(0o755)
    assert in_process(script, Case(86, "bf16", "flex")) == {"error": "Fatal: no such thing"}


def test_cases_go_on_after_one_that_failed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[Case] = []

    def answer(_: Path, case: Case) -> dict[str, Any]:
        asked.append(case)
        return {"error": "fell over"} if len(asked) == 1 else ANSWER

    monkeypatch.setattr(cuda_without_gpu, "in_process", answer)
    monkeypatch.setattr(cuda_without_gpu, "graphs_of", lambda *_: {"training": 1})
    cuda_without_gpu.main(["--cards", "80,90", "--forms", "flex", "--precisions", "bf16"])
    assert [case.card for case in asked] == [80, 90]
    assert "training 1" in (out := capsys.readouterr().out) and "fell over" in out


def test_a_card_has_the_numbers_of_its_compute_capability() -> None:
    card = absent_card.CARDS[86]
    assert card.version == (8, 6)
    assert card.properties().shared_memory_per_multiprocessor == 100 * 2**10


@pytest.mark.skipif(torch.version.cuda is not None, reason="a CUDA build of torch")
def test_without_a_cuda_build_it_says_so() -> None:
    with pytest.raises(RuntimeError, match="is no CUDA build"):
        absent_card.pretend(absent_card.CARDS[86])


def test_a_real_card_is_not_pretended_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(absent_card, "torch", SimpleNamespace(version=SimpleNamespace(cuda="13.0"), cuda=torch.cuda))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(RuntimeError, match="a real card here"):
        absent_card.pretend(absent_card.CARDS[86])


def cuda_python() -> Path:
    """An interpreter with a CUDA build of torch, or the test is skipped."""
    if named := os.environ.get("CUDA_PYTHON"):
        return Path(named)
    if torch.version.cuda is None or torch.cuda.is_available():
        pytest.skip("needs a CUDA build of torch and no GPU: CUDA_PYTHON names its interpreter (cuda_without_gpu.py)")
    return Path(sys.executable)


@pytest.mark.parametrize("card", list(absent_card.CARDS))
def test_a_step_compiles_for_a_card_that_is_not_here(card: int) -> None:
    answer = in_process(cuda_python(), Case(card, "bf16", "flex", preset="tiny", rows=2))
    assert not answer["error"], answer
    assert answer["graphs"] == 2 and answer["breaks"] == 0 and answer["kernels"] > 5
