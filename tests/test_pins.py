"""Lower bounds and pins agree, and the audit of the pins finds what is published and fails offline by a line only."""

from __future__ import annotations

import configparser
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests import audit_pins

ROOT = Path(__file__).parents[1]
# What is known to be unsafe in what strangers hand over: the first version that is not.
SAFE_FROM = {"torch": "2.10", "sentencepiece": "0.2.1"}
UNPINNED = {"modelscope"}  # an alternative of `fetch` that no test installs


def requirements() -> list[Requirement]:
    """All of setup.cfg, those of the extras too."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    texts = [setup["options"]["install_requires"], *setup["options.extras_require"].values()]
    lines = [line.strip() for text in texts for line in text.splitlines()]
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


def pinned() -> dict[str, str]:
    pairs = audit_pins.pins((ROOT / "constraints.txt").read_text(encoding="utf-8"))
    return {canonicalize_name(name): version for name, version in pairs}


def test_every_requirement_has_a_lower_bound_that_its_pin_satisfies() -> None:
    pins = pinned()
    for requirement in requirements():
        assert any(part.operator in (">=", "==") for part in requirement.specifier), requirement
        name = canonicalize_name(requirement.name)
        if name not in UNPINNED:
            assert Version(pins[name]) in requirement.specifier, requirement


def test_one_package_has_one_bound() -> None:
    bounds: dict[str, set[str]] = {}
    for requirement in requirements():
        bounds.setdefault(canonicalize_name(requirement.name), set()).add(str(requirement.specifier))
    assert {name: found for name, found in bounds.items() if len(found) > 1} == {}


@pytest.mark.parametrize(("name", "version"), SAFE_FROM.items())
def test_no_bound_admits_a_version_that_is_known_to_be_unsafe(name: str, version: str) -> None:
    bound = next(requirement for requirement in requirements() if requirement.name == name)
    lowest = next(part.version for part in bound.specifier if part.operator == ">=")
    assert Version(lowest) >= Version(version)


def test_a_published_hole_fails_the_audit(capsys: pytest.CaptureFixture[str]) -> None:
    def answer(queries: list[dict[str, Any]]) -> dict[str, Any]:
        return {"results": [{"vulns": [{"id": "X-1"}]} if q["package"]["name"] == "torch" else {} for q in queries]}

    assert audit_pins.main(answer) == 1
    assert capsys.readouterr().out == f"torch=={pinned()['torch']}: https://osv.dev/X-1\n"


def test_no_hole_and_no_network_pass_with_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def offline(queries: list[dict[str, Any]]) -> dict[str, Any]:
        raise OSError("no route to host")

    assert audit_pins.main(lambda queries: {"results": [{}] * len(queries)}) == 0
    assert capsys.readouterr().out.startswith("no published hole in ")
    for question in (offline, lambda queries: {}, lambda queries: {"results": [None] * len(queries)}):
        assert audit_pins.main(question) == 0
        assert capsys.readouterr().out.count("\n") == 1
