"""What is measured before a run and not counted: an optimizer's states on one layer, the speed of this machine.

Both make a model of their own and leave nothing behind. DeepSpeed has no part in it.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from minimind.base.hardware import Hardware
from minimind.config.deepspeed import OptimizerSpec, Resolved
from minimind.config.memory import body_parameters
from minimind.config.model import ModelConfig
from minimind.config.run import RunConfig
from minimind.model.transformer import Transformer
from minimind.training.engine.optimizers import build_optimizer, is_body_matrix

MEASURE_SECONDS, MEASURE_ROUNDS = 2.0, 20
LONG_FLOPS = 3e11  # of a pass on a CPU, from which it may take seconds: how long is looked at on one layer first
CPU_TOKENS = 512  # of a pass on a CPU, or one row: fewer measure its overhead, more change little
NEARLY = 0.95  # of the fastest: more rows at a time are not worth their memory
UPDATED = 2**23  # parameters that an update is measured on: no cache holds them


def measure_state_bytes(optimizer: OptimizerSpec, model: ModelConfig) -> float:
    """Optimizer state, bytes a parameter: one update of a one-layer model, its state tensors counted, scaled to all."""
    small = Transformer(model.model_copy(update={"num_hidden_layers": 1}))
    built = build_optimizer(small, optimizer.type, optimizer.params)
    body = {id(p) for name, p in small.named_parameters() if is_body_matrix(name, p)}
    for parameter in small.parameters():
        parameter.grad = torch.zeros_like(parameter)
    built.step()
    counts, sizes = [0, 0], [0, 0]
    for parameter in small.parameters():
        kind = 0 if id(parameter) in body else 1
        counts[kind] += parameter.numel()
        tensors = [value for value in built.state[parameter].values() if isinstance(value, torch.Tensor)]
        sizes[kind] += sum(t.numel() * t.element_size() for t in tensors if t.dim() > 0)
    part = body_parameters(model) / model.num_parameters()
    return sizes[0] / counts[0] * part + sizes[1] / counts[1] * (1 - part)


def measure_tokens_per_second(
    run: RunConfig,
    resolved: Resolved,
    hardware: Hardware,
    budget: float = MEASURE_SECONDS,
    rows: int | None = None,
) -> float:
    """Forward and backward of ``rows`` (None: a micro-batch, on a CPU its first rows of ``CPU_TOKENS``) in the run's
    precision; no optimizer, no data.

    ``budget``: no further repetition after so many seconds; there are two at least. Of a model that would take longer
    than that on a CPU so many layers are measured as take about as long, and the rest is counted by its FLOPs.
    """
    some = max(1, CPU_TOKENS // run.max_seq_length) if hardware.device_type == "cpu" else resolved.micro_batch_size
    rows = rows or min(some, resolved.micro_batch_size)
    tokens, layers, flops = rows * run.max_seq_length, run.model.num_hidden_layers, _flops(run.model, run)
    if hardware.device_type == "cpu" and tokens * flops > LONG_FLOPS:
        one, two = (_flops(_cut(run.model, count), run) for count in (1, 2))
        first = _seconds(run, resolved, hardware, rows, model=_cut(run.model, 1))
        layers = min(layers, 1 + max(0, int((max(budget, MEASURE_SECONDS) / 2 - first) / (first * (two / one - 1)))))
    model = _cut(run.model, layers)
    seconds = _seconds(run, resolved, hardware, rows, model=model, budget=budget)
    return tokens / seconds * _flops(model, run) / flops


def _cut(model: ModelConfig, layers: int) -> ModelConfig:
    return model.model_copy(update={"num_hidden_layers": layers})


def _flops(model: ModelConfig, run: RunConfig) -> float:
    """Training FLOPs of a token in the run's rows."""
    with torch.device("meta"):
        return Transformer(model, seed=None).flops_per_token(run.max_seq_length)


def _seconds(
    run: RunConfig, resolved: Resolved, hardware: Hardware, rows: int, model: ModelConfig, budget: float = 0.0
) -> float:
    """The fastest of several passes of ``model`` over ``rows``, the first one left out."""
    dtypes = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    device = torch.device(hardware.device_type)
    made = Transformer(model).to(device=device, dtype=dtypes[resolved.precision])
    ids = torch.randint(run.model.vocab_size, (rows, run.max_seq_length), device=device)
    positions = torch.arange(run.max_seq_length, device=device).expand_as(ids)
    seconds: list[float] = []
    # The best of several: a busy machine can only make one slower. Small models give many in the same time.
    while len(seconds) < 2 or (sum(seconds) < budget and len(seconds) < MEASURE_ROUNDS):
        start = time.perf_counter()
        loss: torch.Tensor = made(ids, ids, positions, torch.zeros_like(ids))
        loss.backward()
        if device.type == "cuda":  # gpu
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return min(seconds[1:])


def best_rows(run: RunConfig, resolved: Resolved, hardware: Hardware, budget: float, most: int) -> tuple[int, float]:
    """The fewest rows at a time, a power of two up to ``most``, with which this machine is nearly as fast as with any
    that was tried, and that speed in tokens/s. ``budget``: seconds for all; one row is always tried."""
    speeds: dict[int, float] = {}
    begun, took, rows = time.perf_counter(), 0.0, 1
    while rows <= most and (not speeds or time.perf_counter() - begun + 2 * took <= budget):
        start = time.perf_counter()
        speeds[rows] = measure_tokens_per_second(run, resolved, hardware, budget=budget / 8, rows=rows)
        took = time.perf_counter() - start
        rows *= 2
    enough = min(rows for rows, speed in speeds.items() if speed >= NEARLY * max(speeds.values()))
    return enough, speeds[enough]


def measure_update_seconds(model: ModelConfig) -> float:
    """Seconds that fused AdamW takes on this CPU to update the fp32 masters of ``model``: measured on a part of them,
    scaled."""
    count = min(model.num_parameters(), UPDATED)
    weight = torch.nn.Parameter(torch.zeros(count))
    weight.grad = torch.ones(count)
    optimizer = torch.optim.AdamW([weight], fused=True)
    seconds = []
    for _ in range(4):
        start = time.perf_counter()
        optimizer.step()
        seconds.append(time.perf_counter() - start)
    return min(seconds[1:]) * model.num_parameters() / count


class _Counted(TorchDispatchMode):
    """Counts the operations that compute; a view launches nothing."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        returns = func._schema.returns
        view = any(one.alias_info is not None and not one.alias_info.is_write for one in returns)
        self.count += bool(returns) and not view
        return func(*args, **(kwargs or {}))


def count_launches(model: ModelConfig) -> int:
    """Operations of an eager forward and backward pass, about as many as a GPU launches kernels: counted on a narrow
    model of as many layers, on the CPU, whose own forms of norms and attention are others."""
    narrow = {"hidden_size": 8 * model.num_attention_heads, "head_dim": 8, "intermediate_size": 16, "vocab_size": 16}
    small = Transformer(model.model_copy(update=narrow))
    small.attention_backend = "mask"
    ids = torch.zeros((1, 4), dtype=torch.long)
    for _ in range(2):  # the first pass prepares what later ones find
        counted = _Counted()
        with counted:
            loss: torch.Tensor = small(ids, ids, torch.arange(4)[None], ids)
            loss.backward()
    return counted.count


def peak_memory(device: torch.device) -> int | None:
    """The most bytes that torch has had allocated on a GPU so far; None for a CPU."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
