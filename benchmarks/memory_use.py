"""Peak memory of a process since a moment: of the device with CUDA, else resident memory (Linux)."""

from __future__ import annotations

from pathlib import Path

import torch


class Peak:
    """Remembers how much was in use when it was made; ``bytes`` is the peak since then, above that."""

    def __init__(self) -> None:
        self.on_gpu = torch.cuda.is_available()
        if self.on_gpu:
            torch.cuda.reset_peak_memory_stats()
            self._base = torch.cuda.memory_allocated()
        else:
            Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts again from the present size
            self._base = _status("VmRSS")

    def bytes(self) -> int:
        """Bytes at the worst moment so far, beyond those at the start."""
        worst = torch.cuda.max_memory_allocated() if self.on_gpu else _status("VmHWM")
        return int(worst - self._base)


def _status(field: str) -> int:
    text = Path("/proc/self/status").read_text(encoding="ascii")
    return 1024 * int(text.split(f"{field}:")[1].split()[0])
