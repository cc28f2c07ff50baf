"""What is measured before a run and not counted: an optimizer's states on one layer, the speed of this machine.

Both make a model of their own and leave nothing behind. DeepSpeed has no part in it.
"""

from __future__ import annotations

import time

import torch

from minimind.base.hardware import Hardware
from minimind.config.deepspeed import OptimizerSpec, Resolved
from minimind.config.memory import body_parameters
from minimind.config.model import ModelConfig
from minimind.config.run import RunConfig
from minimind.model.transformer import Transformer
from minimind.training.engine.optimizers import build_optimizer, is_body_matrix

MEASURE_SECONDS, MEASURE_ROUNDS = 2.0, 20


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
    run: RunConfig, resolved: Resolved, hardware: Hardware, budget: float = MEASURE_SECONDS
) -> float:
    """Forward and backward of one micro-batch (one row on a CPU) in the run's precision; no optimizer, no data.

    ``budget``: no further repetition after so many seconds; there are two at least.
    """
    dtypes = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    device = torch.device(hardware.device_type)
    model = Transformer(run.model).to(device=device, dtype=dtypes[resolved.precision])
    rows = resolved.micro_batch_size if device.type == "cuda" else 1
    ids = torch.randint(run.model.vocab_size, (rows, run.max_seq_length), device=device)
    positions = torch.arange(run.max_seq_length, device=device).expand_as(ids)
    seconds: list[float] = []
    # The best of several: a busy machine can only make one slower. Small models give many in the same time.
    while len(seconds) < 2 or (sum(seconds) < budget and len(seconds) < MEASURE_ROUNDS):
        start = time.perf_counter()
        loss: torch.Tensor = model(ids, ids, positions, torch.zeros_like(ids))
        loss.backward()
        if device.type == "cuda":  # gpu
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return ids.numel() / min(seconds[1:])


def peak_memory(device: torch.device) -> int | None:
    """The most bytes that torch has had allocated on a GPU so far; None for a CPU."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
