"""What a processor without AVX-512 does, on one that has it: the tests of everything that depends on its instructions,
and a short run in bf16 and in fp32, once more in a process that may not use them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from minimind.base.processor import onednn_packs
from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[1]
SWITCHES = {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}
RUN = "tests/training/run/test_main.py::test_every_shipped_json_runs_and_resumes_bitwise"
CHOSEN = [
    *(f"tests/model/test_{name}.py" for name in ("ops", "attention", "loss")),
    *(f"tests/model/cpu/test_{name}.py" for name in ("blocks", "recompute")),
    "tests/commands/test_plan.py",
    *(f"tests/inference/test_{name}.py" for name in ("decoding", "generation")),
    f"{RUN}[bf16.json]",
    f"{RUN}[fp32.json]",
]
# Of this test's own process, or set by another test: the second pytest is neither a worker nor a rank.
NOT_INHERITED = ("PYTEST_", "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_")


@pytest.mark.slow
@pytest.mark.skipif(not onednn_packs(torch.bfloat16), reason="no AVX-512 here: these tests have run like that already")
def test_everything_holds_without_avx512(request: pytest.FixtureRequest) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(NOT_INHERITED)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += ["--order-seed", request.config.option.order_seed, *CHOSEN]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**kept, **SWITCHES, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, f"with {SWITCHES}:\n{done.stdout[-6000:]}{done.stderr[-2000:]}"
