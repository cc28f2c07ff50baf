"""The order of the tests: a function of the seed and of each test's name alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[1]
FILES = ["test_packing.py", "test_texts.py", "test_mixture.py"]


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three files of six tests, which import nothing."""
    directory = tmp_path_factory.mktemp("suite")
    for file in FILES:
        (directory / file).write_text("".join(f"def test_{n}(): pass\n\n" for n in range(6)))
    return directory


def run(suite: Path, *options: str) -> str:
    """pytest's output for the suite, under the plugin alone (others are slow to import)."""
    command = [sys.executable, "-m", "pytest", "-p", "tests.order", "-p", "no:cacheprovider", *options]
    alone = {"PYTEST_ADDOPTS": "-v", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **alone}
    done = subprocess.run(command, cwd=suite, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def collected(suite: Path, *options: str) -> tuple[list[str], str]:
    """Names of the tests in their order, and the header."""
    lines = run(suite, "--collect-only", *options).splitlines()
    (header,) = [line for line in lines if line.startswith("order of the tests: ")]
    return [line.strip() for line in lines if "<Module" in line or "<Function" in line], header


def test_a_seed_gives_an_order_that_a_part_of_the_tests_keeps(suite: Path) -> None:
    whole, header = collected(suite, "--order-seed", "7", *FILES)
    assert header == "order of the tests: --order-seed 7"
    assert collected(suite, "--order-seed", "7", *reversed(FILES))[0] == whole
    part, _ = collected(suite, "--order-seed", "7", *FILES[:1])
    start = whole.index(part[0])
    assert part == whole[start : start + 7] and len(part) == 7 < len(whole)
    written, _ = collected(suite, "--order-seed", "off", *FILES)
    assert sorted(written) == sorted(whole) and written != whole
    assert {collected(suite, *FILES[1:2])[1] for _ in range(2)} != {header}


def test_two_workers_get_one_seed(suite: Path) -> None:
    """Else xdist finds that they have collected different tests."""
    assert "18 passed" in run(suite, "-p", "xdist", "-n", "2", "--dist", "loadfile")


def test_the_suite_itself_is_in_this_order(request: pytest.FixtureRequest) -> None:
    assert request.config.pluginmanager.has_plugin("tests.order")
