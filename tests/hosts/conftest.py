"""Two hosts for the tests of this folder; skipped, with what is missing, where the machine does not let us."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts.bed import Bed, Missing


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Bed]:
    """Two joined hosts; their files are in ``tmp_path/hosts``, and all of ``tmp_path`` is a disk that they share."""
    try:
        with Bed(tmp_path / "hosts") as bed:
            yield bed
    except Missing as missing:
        pytest.skip(str(missing))


@pytest.fixture
def ssh_bed(bed: Bed) -> Bed:
    """Two hosts that reach each other by ssh."""
    try:
        bed.serve_ssh()
    except Missing as missing:
        pytest.skip(str(missing))
    return bed
