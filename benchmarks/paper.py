"""Tables computed, not measured: communication for 1 to 64 GPUs, and for clusters of 64 to 4,096 with what a
checkpoint moves there, and MiniMind's two hours on an RTX 3090.

    python benchmarks/paper.py

Assumptions are the constants below; docs/performance.md holds what this prints and says what they mean. The collectives
of a step are those that step_traffic.py counts on real ranks; a ring is assumed, and in a cluster one in which a node's
GPUs are neighbours, so that each ring enters and leaves a node once.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from benchmarks.figures import markdown
from benchmarks.traffic import ring_bytes
from minimind.base.peaks import peak_flops
from minimind.model.transformer import ModelConfig, Transformer

GPUS = (1, 2, 4, 8, 16, 32, 64)
ACCUMULATION = 4
TOKENS = ACCUMULATION * 64 * 512  # by GPU and optimizer step
H200_MFU = 0.25
NVLINK, NETWORK = 360e9, 10e9  # bytes/s each way by GPU: 80% of NVLink 4 (450 GB/s) and of 100 Gb/s

# Clusters of eight-GPU nodes. A step of 4M tokens in all (Llama's, arXiv:2302.13971) at any number of GPUs, so that
# nothing is left to accumulate
CLUSTERS, NODE, LINKS = (64, 256, 1024, 4096), 8, (25, 100, 400)  # GPUs; GPUs a node; Gb/s each way of a node
LINK_BYTES = 1e8  # bytes/s of a Gb/s, at 80%
CLUSTER_TOKENS, CLUSTER_LENGTH, CLUSTER_MFU = 4 * 2**20, 2048, 0.40
LLAMA_7B = {"vocab_size": 32000, "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32}
LLAMA_7B |= {"num_key_value_heads": 32, "intermediate_size": 11008}
MODELS = {name: ModelConfig.preset(name) for name in ("26m", "306m", "1.1b")}
MODELS |= {"7b": ModelConfig(**LLAMA_7B, tie_word_embeddings=False)}
WEIGHT_BYTES, STATE_BYTES = 2, 12  # a parameter in a checkpoint: weight in half; master and two moments in fp32

PRETRAIN_TOKENS, SFT_TOKENS = (330e6, 250e6)  # an epoch of MiniMind's 1.6 GB and 1.2 GB sets at 1.6 characters a token
MFUS = (0.20, 0.25, 0.30, 0.35, 0.40, 0.50)


def payloads(stage: int, parameters: int, accumulation: int = ACCUMULATION) -> dict[str, float]:
    """Bytes of the tensors that one optimizer step puts into each kind of collective; fp32 at stage 0, half above.

    Stage 3 gathers for the forward and again for the backward pass; DeepSpeed keeps some weights in between (4% to 15%
    of them, step_traffic.py), so its gathers are an upper bound.
    """
    half = 2.0 * parameters
    return {
        0: {"all_reduce": 2 * half},
        1: {"all_reduce": half, "all_gather": half},
        2: {"all_reduce": accumulation * half, "all_gather": half},
        3: {"all_gather": 2 * accumulation * half, "reduce_scatter": accumulation * half},
    }[stage]


def step_bytes(stage: int, parameters: int, gpus: int, accumulation: int = ACCUMULATION) -> float:
    """Bytes that each GPU sends in one optimizer step."""
    return sum(ring_bytes(name, size, gpus) for name, size in payloads(stage, parameters, accumulation).items())


def cluster_seconds(sent: Mapping[str, float], gpus: int, link: float) -> float:
    """Time that the collectives of ``payloads`` take over nodes with ``link`` bytes/s each way, in two levels.

    Inside a node each GPU's share goes over NVLink; between nodes, a ring of nodes moves the whole tensor through each
    node's link once for a gather or scatter, twice for an all-reduce, whether one GPU sends it or each an eighth.
    """
    inside = sum(ring_bytes(name, size, NODE) for name, size in sent.items())
    across = sum(ring_bytes(name, size, gpus // NODE) for name, size in sent.items())
    return inside / NVLINK + across / link


def hpz_seconds(parameters: int, gpus: int, link: float) -> float:
    """Stage 3 with ``zero_hpz_partition_size`` of a node: each node holds the weights once more, so that the backward
    pass gathers over NVLink; the forward's gather and the gradients cross the network."""
    half = 2.0 * parameters
    return cluster_seconds({"all_gather": half, "reduce_scatter": half}, gpus, link) + half * (NODE - 1) / NODE / NVLINK


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


def clusters() -> str:
    """Share of a step that sending takes in a cluster, by model, number of GPUs and the node's link.

    Without accumulation stages 1, 2 and 3 send the same: an all-reduce is a reduce-scatter and an all-gather.
    """
    rows = []
    for name, config in MODELS.items():
        for gpus in CLUSTERS:
            compute = seconds(CLUSTER_TOKENS / gpus, _flops(config), "H200", CLUSTER_MFU)
            sent = payloads(1, config.num_parameters(), 1)
            forms = [
                [cluster_seconds(sent, gpus, rate * LINK_BYTES) for rate in LINKS],
                [hpz_seconds(config.num_parameters(), gpus, rate * LINK_BYTES) for rate in LINKS],
            ]
            shares = [" / ".join(f"{sending / (sending + compute):.0%}" for sending in form) for form in forms]
            rows.append([name, f"{gpus:,}", f"{compute * 1e3:,.1f} ms", *shares])
    rates = " / ".join(map(str, LINKS))
    forms_named = [f"{form}: {rates} Gb/s" for form in ("stages 1 to 3", "stage 3 with hpZ")]
    return markdown(["model", "GPUs", "computing", *forms_named], rows)


def _flops(config: ModelConfig) -> float:
    with torch.device("meta"):
        return Transformer(config, seed=None).flops_per_token(CLUSTER_LENGTH)


def checkpoints() -> str:
    """What a checkpoint of stage 1 or 2 moves at 100 Gb/s a node: the first node's part of a save on shared disks (all
    weights, its ranks' masters and moments), a save on separate disks into the first host, and a resume out of it."""
    rows = []
    for name, config in MODELS.items():
        weights, states = WEIGHT_BYTES * config.num_parameters(), STATE_BYTES * config.num_parameters()
        for gpus in (CLUSTERS[0], CLUSTERS[-1]):
            nodes = gpus // NODE
            moved = (weights + states / nodes, states * (nodes - 1) / nodes, (weights + states) * (nodes - 1))
            cells = [f"{_bytes(part)}, {_time(part / NETWORK)}" for part in moved]
            rows.append([name, f"{gpus:,}", _bytes(weights + states), *cells])
    header = ["model", "GPUs", "checkpoint", "save, shared disks: the first node", "save, separate: to the first host"]
    return markdown([*header, "resume, separate: from the first host"], rows)


def _bytes(size: float) -> str:
    scale, unit = (1e9, "GB") if size < 1e12 else (1e12, "TB")
    return f"{size / scale:.2f} {unit}"


def _time(duration: float) -> str:
    return f"{duration / 60:.0f} min" if duration >= 120 else f"{duration:.2f} s"


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
    print(communication(model), clusters(), checkpoints(), two_hours(model), sep="\n\n")


if __name__ == "__main__":
    main()
