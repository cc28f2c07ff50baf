"""Freed memory is kept: the next time, its pages are there. In processes of their own, for it can't be undone."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import pytest

from minimind.model.cpu import allocator

FAULTS = """
import resource, sys, torch
from minimind.model.cpu.allocator import keep_freed_memory
kept = keep_freed_memory()
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [torch.ones(2**22) for _ in range(8)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(kept, min(faults() for _ in range(3)))
"""
PAGES = 8 * 2**24 // os.sysconf("SC_PAGE_SIZE")  # of the eight blocks of 16 MiB


def has_mallopt() -> bool:
    return sys.platform == "linux" and hasattr(ctypes.CDLL(None), "mallopt")


def second_round(**settings: str) -> tuple[str, int]:
    """What keep_freed_memory said, and page faults when the blocks are made again."""
    environment = {name: value for name, value in os.environ.items() if name not in allocator._SETTINGS}
    code = [sys.executable, "-c", FAULTS]
    done = subprocess.run(code, env=environment | settings, capture_output=True, text=True, check=True)
    kept, count = done.stdout.split()
    return kept, int(count)


@pytest.mark.skipif(not has_mallopt(), reason="no glibc")
def test_what_a_step_frees_is_there_for_the_next_one() -> None:
    kept, faults = second_round()
    assert kept == "True" and faults < PAGES / 8


@pytest.mark.skipif(not has_mallopt(), reason="no glibc")
def test_what_somebody_has_set_stays() -> None:
    assert second_round(MALLOC_MMAP_THRESHOLD_="1048576")[0] == "False"


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    assert not allocator.keep_freed_memory({})
