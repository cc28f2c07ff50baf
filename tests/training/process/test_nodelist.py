"""SLURM's lists of hosts: expanded as `scontrol show hostnames` does, or refused."""

from __future__ import annotations

import pytest

from minimind.base.errors import UserError
from minimind.training.process.nodelist import MOST, expand


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("node1", ["node1"]),
        ("node[01-03,7]", ["node01", "node02", "node03", "node7"]),
        ("node[1-2],login,gpu-a.cluster.org", ["node1", "node2", "login", "gpu-a.cluster.org"]),
        ("node[08-11]", ["node08", "node09", "node10", "node11"]),
        ("node[098-101]", ["node098", "node099", "node100", "node101"]),
        ("node[9-10]", ["node9", "node10"]),
        ("rack[1-2]n[01-02]x", ["rack1n01x", "rack1n02x", "rack2n01x", "rack2n02x"]),
        ("10.0.0.[3,1]", ["10.0.0.3", "10.0.0.1"]),
    ],
)
def test_a_list_is_expanded_in_its_order(text: str, names: list[str]) -> None:
    assert expand(text) == names


@pytest.mark.parametrize(
    "text",
    [
        *("", ",", "a,", ",a", "a,,b", "a b", "node[", "node[]", "node]1[", "node[1", "node[3-1]", "node[1-2-3]"),
        *("node[a-b]", "node[-1]", "node[1-]", "node[1,]", "node[[1]]", "node$(id)", "node\n", "ü1", "node[1-99999]"),
        "n[1-9999999999]",
    ],
)
def test_what_is_no_list_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(UserError) as refused:
        expand(text)
    assert "\n" not in str(refused.value)


def test_a_short_text_can_not_become_a_long_list() -> None:
    with pytest.raises(UserError, match=f"more than {MOST:,} hosts"):
        expand("n" + "[1-1000]" * 3)
