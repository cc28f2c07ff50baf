"""What Linux says of the processor: its name and its instruction sets. Empty where unknown; no torch."""

from __future__ import annotations

from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")


def cpu_name() -> str:
    """The first core's model name, or "CPU"."""
    return _first_core().get("model name", "CPU")


def cpu_flags() -> set[str]:
    """Instruction-set flags of the first core (``flags`` on x86, ``Features`` on Arm); empty where unknown."""
    core = _first_core()
    return set((core.get("flags") or core.get("Features") or "").split())


def _first_core() -> dict[str, str]:
    try:
        text = CPUINFO.read_text(encoding="utf-8", errors="replace")
    except OSError:  # not Linux
        return {}
    pairs = (line.partition(":") for line in text.split("\n\n", 1)[0].splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}
