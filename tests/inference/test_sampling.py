"""How tokens are chosen is one value with the defaults of the command, valid once it exists."""

from __future__ import annotations

import subprocess
import sys

import pytest

from minimind.base.defaults import TEXT_TEMPERATURE, TEXT_TOKENS, TEXT_TOP_P
from minimind.base.errors import UserError
from minimind.inference.sampling import USUAL, Sampling


def test_the_defaults_are_those_of_the_command() -> None:
    assert Sampling(TEXT_TOKENS, TEXT_TEMPERATURE, TEXT_TOP_P, top_k=0, seed=0, repetition_penalty=1.0) == USUAL


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_new_tokens", -1),
        ("temperature", -1),
        ("temperature", float("nan")),
        ("top_p", 0),
        ("top_p", 1.1),
        ("top_k", -1),
        ("repetition_penalty", 0),
    ],
)
def test_what_is_out_of_range_is_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(UserError, match=f"{name} is {value}: it must be"):
        Sampling(**{name: value})  # type: ignore[arg-type]


def test_declaring_it_loads_nothing_heavy() -> None:
    code = "import sys, minimind.inference.sampling; print({'numpy', 'torch', 'pydantic'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "set()"
