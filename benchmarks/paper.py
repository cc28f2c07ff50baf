"""Two tables computed, not measured: communication for 1 to 64 GPUs, and MiniMind's two hours on an RTX 3090.

    python benchmarks/paper.py

Assumptions are the constants below; docs/performance.md holds what this prints and says what they mean. The collectives
of a step are those that tests/training/engine/test_traffic.py counts on real ranks; a ring is assumed.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.figures import markdown
from benchmarks.traffic import ring_bytes
from minimind.base.peaks import peak_flops
from minimind.model.transformer import ModelConfig, Transformer

GPUS = (1, 2, 4, 8, 16, 32, 64)
ACCUMULATION = 4
TOKENS = ACCUMULATION * 64 * 512  # by GPU and optimizer step
H200_MFU = 0.25
NVLINK, NETWORK = 360e9, 10e9  # bytes/s each way by GPU: 80% of NVLink 4 (450 GB/s) and of 100 Gb/s

PRETRAIN_TOKENS, SFT_TOKENS = (330e6, 250e6)  # an epoch of MiniMind's 1.6 GB and 1.2 GB sets at 1.6 characters a token
MFUS = (0.20, 0.25, 0.30, 0.35, 0.40, 0.50)


def step_bytes(stage: int, parameters: int, gpus: int, accumulation: int = ACCUMULATION) -> float:
    """Bytes that each GPU sends in one optimizer step; fp32 gradients at stage 0, half at stages 1 and 2."""
    if stage == 0:
        return ring_bytes("all_reduce", 4 * parameters, gpus)
    reductions = accumulation if stage == 2 else 1
    gradients = reductions * ring_bytes("all_reduce", 2 * parameters, gpus)
    return gradients + ring_bytes("all_gather_into_tensor", 2 * parameters, gpus)


def seconds(tokens: float, flops_per_token: float, device: str, mfu: float) -> float:
    """Time to train on ``tokens`` at ``mfu`` of the device's half-precision peak."""
    peak = peak_flops(device, "bf16")
    assert peak is not None
    return tokens * flops_per_token / (peak * mfu)


def communication(model: Transformer) -> str:
    """Bytes by GPU and step at each ZeRO stage, and what they take of a step if nothing overlaps."""
    compute = seconds(TOKENS, model.flops_per_token(512), "H200", H200_MFU)
    parameters, rows = model.config.num_parameters(), []
    for gpus in GPUS:
        sent = [step_bytes(stage, parameters, gpus) for stage in (0, 1, 2)]
        inside = [_share(size / NVLINK, compute) if gpus <= 8 else "" for size in sent[1:]]
        across = [_share(size / NETWORK, compute) if gpus > 1 else "" for size in sent[1:]]
        rows.append([str(gpus), *(f"{size / 1e6:.0f} MB" for size in sent), *inside, *across])
    header = [
        "GPUs",
        "stage 0, fp32",
        "stage 1",
        "stage 2",
        "stage 1, NVLink",
        "stage 2, NVLink",
        "stage 1, 100 Gb/s",
        "stage 2, 100 Gb/s",
    ]
    return markdown(header, rows)


def _share(sending: float, compute: float) -> str:
    return f"{sending / (sending + compute):.1%}"


def two_hours(model: Transformer) -> str:
    """Minutes on an RTX 3090 by MFU."""
    flops, rows = model.flops_per_token(512), []
    for mfu in MFUS:
        parts = [seconds(tokens, flops, "RTX 3090", mfu) / 60 for tokens in (PRETRAIN_TOKENS, SFT_TOKENS)]
        speed = 1.0 / seconds(1.0, flops, "RTX 3090", mfu)
        rows.append([f"{mfu:.0%}", f"{speed:,.0f}", *(f"{part:.0f} min" for part in (*parts, sum(parts)))])
    return markdown(["MFU of 71 TFLOP/s", "tokens/s", "330M pretraining", "250M SFT", "together"], rows)


def main() -> None:
    model = Transformer(ModelConfig.preset("26m"), seed=None)
    print(communication(model), two_hours(model), sep="\n\n")


if __name__ == "__main__":
    main()
