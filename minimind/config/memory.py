"""Memory of one rank, counted from the shapes: model states as DeepSpeed 0.19.8 allocates them, activations as the
model keeps them.

The states equal what real engines hold (``tests/commands/test_plan.py`` counts their tensors). Weakness: activations
are within a few percent on a CPU and unchecked on GPUs, where a compiler may keep fewer.
"""

from __future__ import annotations

from dataclasses import dataclass

from minimind.base.defaults import loss_chunk
from minimind.base.hardware import Hardware
from minimind.config.deepspeed import OptimizerSpec, Resolved
from minimind.config.model import ModelConfig
from minimind.config.run import RunConfig

# Bytes of optimizer state by parameter, for (body matrices, the rest); tested against the optimizers themselves
STATE_BYTES = {
    "AdamW": (8.0, 8.0),
    "Adam": (8.0, 8.0),
    "AdamW8bit": (2 + 8 / 256, 2 + 8 / 256),  # one byte each, and one fp32 scale each by block of 256
    "Lion": (4.0, 4.0),
    "Muon": (4.0, 8.0),  # momentum; AdamW for embeddings and norms
}


ANY_GPU = Hardware("cuda", fp16=True, bf16=True)


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

    @property
    def states(self) -> int:
        """Device bytes that stay for the whole run."""
        return self.weights + self.masters + self.optimizer

    @property
    def peak(self) -> int:
        """Device bytes at the worst moment: the end of a forward pass, or the update."""
        return self.states + self.gradients + max(self.activations + self.logits + self.buckets, self.update_copy)


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


def checkpoint_bytes(run: RunConfig, resolved: Resolved) -> int:
    """Bytes of one checkpoint, all ranks' files together: weights once, fp32 masters and optimizer state."""
    half = resolved.precision != "fp32"
    masters = 4.0 if half or resolved.stage > 0 else 0.0
    each = (2 if half else 4) + masters + table_state_bytes(resolved.optimizer, run.model)
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
    gate and up. The attention that ``attention.fastest`` chooses: in native bf16 it keeps nothing else; otherwise it is
    in fp32, so that in half precision its three inputs take the room of two numbers each, and keeps its own output.
    Where heads are normed, their norms' inputs besides."""
    queries, keys = _widths(model)
    inputs, outputs = queries + 2 * keys, queries
    normed = queries + keys if model.qk_norm else 0
    if precision == "fp32":
        outputs += queries
    elif precision == "fp16" or not native_bf16:
        inputs, outputs = 2 * inputs, outputs + 2 * queries
    return 2 * model.hidden_size + inputs + outputs + normed + 2 * model.intermediate_size


def _logits_bytes(model: ModelConfig, tokens: int, device_type: str) -> int:
    """Chunked loss: three fp32 tensors of a chunk's logits, and the fp32 gradient of the output matrix."""
    chunk = min(tokens, loss_chunk(device_type, model.vocab_size))
    return 3 * 4 * model.vocab_size * chunk + 4 * model.vocab_size * model.hidden_size


def table_state_bytes(optimizer: OptimizerSpec, model: ModelConfig) -> float:
    """Bytes of optimizer state by parameter from ``STATE_BYTES``, weighted by this model's share of body
    matrices.
    """
    body, rest = STATE_BYTES[optimizer.type]
    part = body_parameters(model) / model.num_parameters()
    return body * part + rest * (1 - part)
