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
    for table in (paper.communication(model), paper.clusters(), paper.checkpoints(), paper.two_hours(model)):
        assert table in page


def test_an_all_reduce_is_a_scatter_and_a_gather() -> None:
    # so without accumulation every stage above 0 sends the same
    assert len({paper.step_bytes(stage, PARAMETERS, 64, accumulation=1) for stage in (1, 2, 3)}) == 1


def test_stage_3_gathers_twice_and_scatters_once_a_micro_batch() -> None:
    assert paper.step_bytes(3, PARAMETERS, 8, accumulation=4) == pytest.approx(4 * 3 * 2 * PARAMETERS * 7 / 8)


def test_a_node_alone_sends_over_nvlink_only() -> None:
    sent = paper.payloads(1, PARAMETERS, 1)
    alone = paper.cluster_seconds(sent, paper.NODE, link=1.0)
    assert alone == pytest.approx(paper.step_bytes(1, PARAMETERS, paper.NODE) / paper.NVLINK)


def test_a_nodes_link_carries_the_whole_tensor_twice_for_an_all_reduce() -> None:
    sent = {"all_reduce": 100.0}
    across = paper.cluster_seconds(sent, 4 * paper.NODE, link=10.0) - paper.cluster_seconds(sent, paper.NODE, 10.0)
    assert across == pytest.approx(2 * 100 * 3 / 4 / 10)


def test_hpz_spares_the_network_a_third() -> None:
    link = 1.0  # so slow that NVLink counts nothing
    whole = paper.cluster_seconds(paper.payloads(3, PARAMETERS, 1), 64, link)
    assert paper.hpz_seconds(PARAMETERS, 64, link) == pytest.approx(whole * 2 / 3)
