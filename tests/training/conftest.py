"""One process group for all tests of a worker that use real DeepSpeed on one rank."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def one_rank() -> None:
    from minimind.training.engine.engine import start_processes

    start_processes(emulate_fp16=True)
