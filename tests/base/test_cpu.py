"""The processor by /proc/cpuinfo, on x86, on Arm and where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from minimind.base import cpu


@pytest.mark.parametrize(
    ("text", "name", "flags"),
    [
        ("model name\t: Xeon: Gold\nflags\t\t: avx2 fma\n\nmodel name\t: second\n", "Xeon: Gold", {"avx2", "fma"}),
        ("processor\t: 0\nFeatures\t: fphp bf16\n", "CPU", {"fphp", "bf16"}),
        (None, "CPU", set()),
    ],
)
def test_the_first_core_tells(
    text: str | None, name: str, flags: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "CPUINFO", tmp_path / "cpuinfo")
    if text is not None:
        cpu.CPUINFO.write_text(text)
    assert (cpu.cpu_name(), cpu.cpu_flags()) == (name, flags)
