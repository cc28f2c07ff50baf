"""Memory of one rank, counted from the shapes: model states as DeepSpeed 0.19.8 allocates them, activations as the
model keeps them.

The states equal what real engines hold (``tests/commands/test_plan.py`` counts their tensors). Weakness: activations
are within a few percent on a CPU and unchecked on GPUs, where a compiler may keep fewer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from minimind.base.defaults import loss_chunk
from minimind.base.hardware import Hardware
from minimind.config.deepspeed import OptimizerSpec, Resolved
from minimind.config.deepspeed.optimizers import OPTIMIZERS
from minimind.config.model import ModelConfig
from minimind.config.run import RunConfig

ANY_GPU = Hardware("cuda", fp16=True, bf16=True)
RESERVE = 2**30  # bytes, by guess: the CUDA context, the libraries and fragmentation


@dataclass(frozen=True)
class Memory:
    """Bytes on one rank. ``host`` is CPU memory that offload uses in place of device memory."""

    weights: int
    masters: int
    optimizer: int
    gradients: int
    update_copy: int  # fp32 gradients of this rank's part, only while the update runs
    buckets: int
    activations: int
    logits: int
    host: int
    gathered: int = 0  # whole weights of other ranks' parts, in a forward or backward pass (stage 3)
    stays: int = 0  # of gradients and buckets, what DeepSpeed keeps between steps too (stage 3)

    @property
    def states(self) -> int:
        """Device bytes that stay for the whole run."""
        return self.weights + self.masters + self.optimizer + self.stays

    @property
    def peak(self) -> int:
        """Device bytes at the worst moment: the end of a forward pass, or the update."""
        in_passes = self.activations + self.logits + self.gathered
        if self.stays:
            return self.states + max(in_passes, self.update_copy)
        return self.states + self.gradients + max(in_passes + self.buckets, self.update_copy)


def body_parameters(model: ModelConfig) -> int:
    """Parameters in the 2-D weights of the layers (the ones that get weight decay)."""
    return model.num_hidden_layers * model.layer_matrices()


def estimate_memory(
    run: RunConfig,
    resolved: Resolved,
    micro_batch_size: int | None = None,
    state_bytes: float | None = None,
    hardware: Hardware = ANY_GPU,
) -> Memory:
    """Memory of one rank. ``state_bytes``: measured bytes of optimizer state by parameter (default: the table)."""
    if resolved.stage == 3:
        return _partitioned(run, resolved, micro_batch_size, state_bytes, hardware)
    count, world = run.model.num_parameters(), resolved.world_size
    share = count / world if resolved.stage else float(count)  # this rank's part of what ZeRO splits
    half = resolved.precision != "fp32"
    own_master = half or resolved.stage > 0  # DeepSpeed's ZeRO clones fp32 weights too
    masters = 4 * share if own_master else 0.0
    optimizer = share * (table_state_bytes(resolved.optimizer, run.model) if state_bytes is None else state_bytes)
    update_copy = 4 * share if own_master else 0.0
    moved = masters + optimizer + update_copy if resolved.offload else 0.0
    tokens = (micro_batch_size or resolved.micro_batch_size) * run.max_seq_length
    bucket = resolved.config["zero_optimization"]["reduce_bucket_size"] if resolved.stage else 0
    return Memory(
        weights=(2 if half else 4) * count,
        masters=0 if resolved.offload else round(masters),
        optimizer=0 if resolved.offload else round(optimizer),
        gradients=round(_gradient_bytes(resolved, count, share)),
        update_copy=0 if resolved.offload else round(update_copy),
        buckets=(2 if half else 4) * min(bucket, count),
        activations=tokens
        * activation_bytes_per_token(run.model, resolved.precision, run.gradient_checkpointing, hardware),
        logits=_logits_bytes(run.model, tokens, hardware.device_type),
        host=round(moved),
    )


def largest_micro_batch(
    run: RunConfig, resolved: Resolved, memory: int, state_bytes: float, hardware: Hardware = ANY_GPU
) -> int:
    """The largest micro-batch whose peak, with the reserve, stays within ``memory``; 0 if not even one row
    does.
    """

    def fits(rows: int) -> bool:
        return estimate_memory(run, resolved, rows, state_bytes, hardware).peak + RESERVE <= memory

    low, high = 0, 1
    while high < 2**20 and fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _partitioned(
    run: RunConfig, resolved: Resolved, micro_batch_size: int | None, state_bytes: float | None, hardware: Hardware
) -> Memory:
    """Stage 3 (runtime/zero/stage3.py ``_setup_for_real_optimizer``): each rank has a part of every parameter, of its
    master and moments, and a buffer for its part of the gradients and one bucket that stay."""
    model, zero = run.model, resolved.config["zero_optimization"]
    count, world = model.num_parameters(), resolved.world_size
    share, size = count / world, 2 if resolved.precision != "fp32" else 4
    each = table_state_bytes(resolved.optimizer, model) if state_bytes is None else state_bytes
    accumulate = 4 if resolved.config.get("data_types", {}).get("grad_accum_dtype") in ("fp32", "float32") else size
    whole = size * whole_parameters(model, stage_3_number(zero, "param_persistence_threshold", 100_000)) * (world > 1)
    bucket = size * min(int(zero["reduce_bucket_size"]), count)
    masters, optimizer, gradients, copy = 4 * share, each * share, accumulate * share, 4 * share
    moved = masters + optimizer + gradients + copy if resolved.offload else 0.0
    moved += size * share if resolved.offload_param else 0.0
    tokens = (micro_batch_size or resolved.micro_batch_size) * run.max_seq_length
    on_device = 0 if resolved.offload else 1
    return Memory(
        weights=round(size * share * (not resolved.offload_param) + whole),
        masters=round(masters) * on_device,
        optimizer=round(optimizer) * on_device,
        gradients=round(gradients) * on_device,
        update_copy=round(copy) * on_device,
        buckets=bucket,
        activations=tokens
        * activation_bytes_per_token(model, resolved.precision, run.gradient_checkpointing, hardware),
        logits=_logits_bytes(model, tokens, hardware.device_type),
        host=round(moved),
        gathered=_gathered_bytes(model, zero, size) if world > 1 or resolved.offload_param else 0,
        stays=round(gradients) * on_device + bucket,
    )


def stage_3_number(zero: Mapping[str, Any], name: str, default: int) -> int:
    """A number of the ``zero_optimization`` section under either of its names."""
    return int(zero.get(f"stage3_{name}", zero.get(name, default)))


def whole_parameters(model: ModelConfig, threshold: int) -> int:
    """Parameters in the tensors that stage 3 keeps whole on every rank: those of at most ``threshold`` elements."""
    hidden = model.hidden_size
    queries, keys = _widths(model)
    layer = [hidden, hidden, hidden * queries, hidden * keys, hidden * keys, queries * hidden]
    layer += [hidden * model.intermediate_size] * 3
    outside = [hidden, *[model.vocab_size * hidden] * (1 if model.tie_word_embeddings else 2)]
    return model.num_hidden_layers * sum(n for n in layer if n <= threshold) + sum(n for n in outside if n <= threshold)


def _gathered_bytes(model: ModelConfig, zero: Mapping[str, Any], size: int) -> int:
    """What is whole at once: one module's weights, the output matrix, and what is fetched ahead; with a reuse distance
    (DeepSpeed's default is 1e9) as much of the model as lies within it."""
    hidden = model.hidden_size
    queries, keys = _widths(model)
    module = max(2 * hidden * (queries + keys), 3 * hidden * model.intermediate_size)
    ahead = stage_3_number(zero, "prefetch_bucket_size", 50_000_000)
    live = stage_3_number(zero, "max_live_parameters", 10**9)
    reuse = stage_3_number(zero, "max_reuse_distance", 10**9)
    wanted = module + model.vocab_size * hidden + max(ahead, reuse)
    return size * min(model.num_parameters(), wanted, max(live, module))


def checkpoint_bytes(run: RunConfig, resolved: Resolved) -> int:
    """Bytes of one checkpoint, all ranks' files together: weights once (not at stage 3, where the masters do), fp32
    masters and optimizer state."""
    half = resolved.precision != "fp32"
    masters = 4.0 if half or resolved.stage > 0 else 0.0
    each = (2 if half else 4) * (resolved.stage != 3) + masters + table_state_bytes(resolved.optimizer, run.model)
    return round(each * run.model.num_parameters())


def _gradient_bytes(resolved: Resolved, count: int, share: float) -> float:
    """Gradients at the end of a backward pass, by DeepSpeed's wrapper (DEEPSPEED.md 1.3)."""
    size = 4 if resolved.precision == "fp32" else 2
    accumulate = 4 if resolved.config.get("data_types", {}).get("grad_accum_dtype") in ("fp32", "float32") else size
    if resolved.stage == 2:
        return 0.0 if resolved.offload else accumulate * share
    if resolved.stage == 1 and accumulate > size and not resolved.offload:
        return (accumulate + size) * count  # BF16_Optimizer keeps whole fp32 gradients beside the bf16 ones
    return size * count


def activation_bytes_per_token(
    model: ModelConfig, precision: str, checkpointing: bool = False, hardware: Hardware = ANY_GPU
) -> int:
    """What a forward pass in ``precision`` keeps for one token. With checkpointing: one input by layer and one whole
    layer.
    """
    cpu = hardware.device_type == "cpu"
    layer = _layer_numbers_cpu(model, precision, hardware.bf16) if cpu else _layer_numbers(model)
    size = 4 if precision == "fp32" else 2
    if checkpointing:
        return size * (model.num_hidden_layers * model.hidden_size + layer)
    return size * model.num_hidden_layers * layer


def _widths(model: ModelConfig) -> tuple[int, int]:
    """Numbers of a token in all query heads, and in all key heads."""
    return model.num_attention_heads * model.head_dim, model.num_key_value_heads * model.head_dim


def _layer_numbers(model: ModelConfig) -> int:
    """Of an uncompiled layer: two norms' inputs and outputs, queries, keys and values before and after rotation, the
    attention's output, and gate, up and their product; normed heads once more."""
    queries, keys = _widths(model)
    normed = queries + keys if model.qk_norm else 0
    return 4 * model.hidden_size + 3 * queries + 3 * keys + normed + 3 * model.intermediate_size


def _layer_numbers_cpu(model: ModelConfig, precision: str, native_bf16: bool) -> int:
    """As recompute.py leaves it: two norms' inputs, queries, keys and values after rotation, the attention's output,
    gate and up. The attention that ``attention.fastest`` chooses: in native bf16 it keeps its inputs alone, not its
    output; otherwise it is in fp32, so that in half precision its three inputs take the room of two numbers each, and
    keeps its own output. Where heads are normed, their norms' inputs besides."""
    queries, keys = _widths(model)
    inputs, outputs = queries + 2 * keys, queries
    normed = queries + keys if model.qk_norm else 0
    if precision == "fp32":
        outputs += queries
    elif precision == "fp16" or not native_bf16:
        inputs, outputs = 2 * inputs, outputs + 2 * queries
    else:
        outputs = 0
    return 2 * model.hidden_size + inputs + outputs + normed + 2 * model.intermediate_size


def _logits_bytes(model: ModelConfig, tokens: int, device_type: str) -> int:
    """Chunked loss: three fp32 tensors of a chunk's logits, and the fp32 gradient of the output matrix."""
    chunk = min(tokens, loss_chunk(device_type, model.vocab_size))
    return 3 * 4 * model.vocab_size * chunk + 4 * model.vocab_size * model.hidden_size


def table_state_bytes(optimizer: OptimizerSpec, model: ModelConfig) -> float:
    """Bytes of optimizer state by parameter as ``OPTIMIZERS`` has them, weighted by this model's share of body
    matrices.
    """
    body, rest = OPTIMIZERS[optimizer.type].state_bytes
    if optimizer.type in ("SGD", "RMSprop"):
        moments = (optimizer.type == "RMSprop") + bool(optimizer.params.get("momentum"))
        return 4.0 * (moments + bool(optimizer.params.get("centered")))
    part = body_parameters(model) / model.num_parameters()
    return body * part + rest * (1 - part)
