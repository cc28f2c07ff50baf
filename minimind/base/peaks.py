"""Model FLOP utilisation: convention, and the peaks that it is measured against.

Convention (Transformer.flops_per_token): 6 FLOPs a parameter and trained token, plus the causal half of attention at
the row length; recomputation doesn't count. Peak: the data sheet's dense tensor-core rate for half precision with fp32
accumulation, the plain fp32 rate (no TF32, which this trainer leaves off) for fp32. Packed rows hold several documents
and attend within each, so the attention term is an upper bound (a tenth of the whole at 512).
"""

from __future__ import annotations

# (part of torch.cuda.get_device_name, half, fp32) in TFLOP/s; the first that is found counts.
PEAKS = (
    ("H200", 989.4, 66.9),
    ("H100 PCIe", 756.0, 51.2),
    ("H100 NVL", 835.0, 60.0),
    ("H100", 989.4, 66.9),
    ("A100", 312.0, 19.5),
    ("L40S", 362.0, 91.6),
    ("A10G", 70.0, 35.0),
    ("L4", 121.0, 30.3),
    ("RTX 4090", 165.2, 82.6),
    ("RTX 3090", 71.0, 35.6),
    ("V100", 125.0, 15.7),
    ("T4", 65.0, 8.1),
)


def peak_flops(device: str, precision: str) -> float | None:
    """FLOP/s of the named GPU in "fp16", "bf16" or "fp32"; None where the table has no such card."""
    for name, half, single in PEAKS:
        if name in device:
            return 1e12 * (single if precision == "fp32" else half)
    return None


def mfu(tokens_per_second: float, flops_per_token: float, peak: float | None) -> float | None:
    """Share of ``peak`` that training uses; None without a peak."""
    return tokens_per_second * flops_per_token / peak if peak else None
