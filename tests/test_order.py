"""The order of the tests: a function of the seed and of each test's name alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[1]
FILES = [f"tests/data/{name}.py" for name in ("store/test_packing", "records/test_texts", "store/test_mixture")]


def collected(*options: str) -> tuple[list[str], str]:
    """Names of the tests in their order, and the header."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-p", "no:cacheprovider", *options]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTEST_ADDOPTS": "-v"}, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    (header,) = [line for line in lines if line.startswith("order of the tests: ")]
    return [line.strip() for line in lines if "<Module" in line or "<Function" in line], header


def test_a_seed_gives_an_order_that_a_part_of_the_tests_keeps() -> None:
    whole, header = collected("--order-seed", "7", *FILES)
    assert header == "order of the tests: --order-seed 7"
    assert collected("--order-seed", "7", *reversed(FILES))[0] == whole
    part, _ = collected("--order-seed", "7", *FILES[:2])
    assert part == [name for name in whole if name in part] and 0 < len(part) < len(whole)
    written, _ = collected("--order-seed", "off", *FILES)
    assert sorted(written) == sorted(whole) and written != whole
    assert {collected(*FILES[1:2])[1] for _ in range(2)} != {header}


def test_two_workers_get_one_seed() -> None:
    """Else xdist finds that they have collected different tests."""
    command = [sys.executable, "-m", "pytest", "-n", "2", "-p", "no:cacheprovider", *FILES[1:2]]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
