"""The computed tables: the formulas, and that docs/performance.md holds what the script prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import paper
from minimind.model.transformer import ModelConfig, Transformer

PARAMETERS = 25_829_888
PAGE = Path(__file__).parents[2] / "docs" / "performance.md"


@pytest.fixture(scope="module")
def model() -> Transformer:
    return Transformer(ModelConfig.preset("26m"), seed=None)


def test_one_gpu_sends_nothing() -> None:
    assert [paper.step_bytes(stage, PARAMETERS, 1) for stage in (0, 1, 2)] == [0, 0, 0]


def test_accumulation_costs_at_stage_2_only() -> None:
    once = [paper.step_bytes(stage, PARAMETERS, 8, accumulation=1) for stage in (0, 1, 2)]
    four = [paper.step_bytes(stage, PARAMETERS, 8, accumulation=4) for stage in (0, 1, 2)]
    assert four[:2] == once[:2]
    assert once[1] == once[2] == pytest.approx(3 * 2 * PARAMETERS * 7 / 8)
    assert four[2] == pytest.approx(9 * 2 * PARAMETERS * 7 / 8)


def test_time_is_flops_over_used_peak() -> None:
    assert paper.seconds(71e12, 0.5, "RTX 3090", 0.5) == pytest.approx(1.0)


def test_the_page_holds_what_the_script_prints(model: Transformer) -> None:
    page = PAGE.read_text(encoding="utf-8")
    for table in (paper.communication(model), paper.two_hours(model)):
        assert table in page
