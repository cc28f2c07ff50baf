"""``compile: auto``: whether torch.compile gains more time in this run than compiling takes.

Decided from the device and from sizes alone, never from a clock: a resumed run must take the same form, to the bit.
On a CPU it never pays: there a compiled step of the 26M model, whose static shapes need the dense mask, took 1.3 times
the eager one's time (bf16, docs/performance.md).

Weakness: the numbers below are guesses for a GPU, on the side of compiling; benchmarks/gpu.py measures both forms.
"""

from __future__ import annotations

from minimind.base.hardware import Hardware
from minimind.base.peaks import peak_flops

COMPILE_SECONDS = 60.0
EAGER_UTILISATION = 0.1  # of the device's peak
GAIN = 0.25  # share of an eager step's time


def pays(hardware: Hardware, precision: str, flops: float) -> bool:
    """``flops``: what each device computes in the whole run. A GPU that the table doesn't know: yes."""
    if hardware.device_type != "cuda":
        return False
    peak = peak_flops(hardware.name, precision)
    return peak is None or GAIN * flops / (EAGER_UTILISATION * peak) > COMPILE_SECONDS
