"""What DeepSpeed knows and this trainer refuses, each with the true reason, and what is legal but without
effect here.

A reason is either what DeepSpeed 0.19.8 does with the value, or what this trainer would have to prove and does
not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from minimind.config.deepspeed.lint import AUTO, Draft

# path: why a true (or "on") value is refused
_REFUSED_SWITCHES = {
    "torch_autocast.enabled": "DeepSpeed 0.19.8 clips and reports gradients that are still multiplied by the "
    "loss scale under torch_autocast; use the fp16 or bf16 section",
    "hybrid_engine.enabled": "it is for reinforcement learning with generation inside training",
    "compile.deepcompile": "DeepCompile rewrites the backward pass, which this trainer has not proven; "
    "set `compile: on` in the YAML for torch.compile",
    "data_efficiency.enabled": "it reorders or drops samples, and here the order is a function of seed and epoch alone",
    "expert_parallel.enabled": "the model has no experts",
    "weight_quantization.enabled": "it is for inference",
    "fp16.fp16_master_weights_and_grads": "without fp32 master weights updates below fp16's spacing are lost",
    "bf16.bf16_master_weights_and_grads": "without fp32 master weights updates below bf16's spacing (1/256) are lost",
    "bf16.bf16_optimizer_states": "Adam's second moment changes by 1/1000 a step, which bf16 rounds to nothing",
    "bf16.immediate_grad_update": "it accumulates inside the backward hooks, which this trainer has not proven",
    "checkpoint.load_universal": "use --resume: this trainer's checkpoints carry data order, RNG and schedule as well",
    "checkpoint.use_node_local_storage": "a checkpoint here is complete only with all shards in one directory",
    "zero_optimization.legacy_stage1": "DeepSpeed itself refuses it (removed in 0.5.9): delete it",
    "zero_optimization.elastic_checkpoint": "this trainer's verified checkpoints do not cover it: delete it",
    "zero_optimization.offload_optimizer.super_offload": "it exists only for ZeRO stage 3 on CUDA, where this trainer "
    "has not proven it",
}
_REFUSED_OFF = {
    "managed_gradient_accumulation": "this trainer relies on DeepSpeed stepping once a window: delete it",
    "zero_optimization.compute_grad_norm": "clipping, health checks and metrics need the gradient norm: delete it",
    "zero_optimization.load_from_fp32_weights": "resume would restart from half-precision weights: delete it",
}


def refuse_unsupported(draft: Draft) -> None:
    """Values that DeepSpeed knows and this trainer can't run correctly, each with the reason."""
    for path, reason in _REFUSED_SWITCHES.items():
        if draft.get(path) is True:
            draft.problem(path, f"true is not supported: {reason}")
    for path, reason in _REFUSED_OFF.items():
        if draft.get(path) is False:
            draft.problem(path, f"false is not supported: {reason}")
    if draft.get("gradient_allreduce_op") == "sum":
        draft.problem(
            "gradient_allreduce_op",
            '"sum" is not supported: the loss is already divided by the global number of '
            "trainable tokens, in one place, which assumes the mean over ranks: delete it",
        )
    if draft.get("zero_optimization.zenflow"):
        draft.problem(
            "zero_optimization.zenflow",
            "ZenFlow applies part of each update late, so a step is no longer the update of its own batch: delete it",
        )
    if draft.get("checkpoint.writer"):
        draft.problem("checkpoint.writer", "DeepSpeed 0.19.8's writers save files that can't be loaded back: delete it")
    if draft.get("datastates_ckpt") not in (None, False, AUTO):
        draft.problem("datastates_ckpt", "this trainer writes its own verified checkpoints: delete it")
    _refuse_parallelism(draft)
    _refuse_prescale(draft)


def _refuse_parallelism(draft: Draft) -> None:
    size = draft.get("sequence_parallel_size", 1)
    if isinstance(size, int) and size > 1:
        draft.problem(
            "sequence_parallel_size", f"{size} is not supported: a row of at most a few thousand tokens fits one GPU"
        )
    tensor = draft.get("tensor_parallel")
    width = 0 if not isinstance(tensor, Mapping) else tensor.get("autotp_size") or _tp_size(tensor)
    if isinstance(width, int) and width > 1:
        draft.problem(
            "tensor_parallel",
            f"size {width} is not supported: a model of this size fits one GPU many times over, "
            "and splitting its matrices only adds communication: delete the section",
        )


def _tp_size(tensor: Mapping[str, Any]) -> Any:
    inner = tensor.get("tensor_parallel") or tensor.get("tp") or tensor
    return inner.get("tp_size", 0) if isinstance(inner, Mapping) else 0


def _refuse_prescale(draft: Draft) -> None:
    """Scaling before the reduction: proven here without ZeRO; with stage 2 DeepSpeed stops at start-up."""
    if draft.get("zero_optimization.stage", 0) in (0, AUTO) and not draft.on("fp16"):
        return
    for key, default in (("prescale_gradients", False), ("gradient_predivide_factor", 1.0)):
        value = draft.get(key, default)
        if value not in (default, AUTO):
            why = ", as which fp16 runs here" if draft.get("zero_optimization.stage", 0) in (0, AUTO) else ""
            draft.problem(
                key,
                f"{str(value).lower()} is not supported with ZeRO{why}: stage 2 stops at start-up "
                "(reduce_scatter), and stage 1 is not proven here: delete it",
            )


def note_unused(draft: Draft) -> None:
    """Sections that are legal and have no effect here, said once."""
    unused = {
        "activation_checkpointing": "DeepSpeed applies it only to models that call its checkpoint function; "
        "set `gradient_checkpointing: true` in the YAML",
        "pipeline": "the model is not a PipelineModule",
        "autotuning": "it belongs to `deepspeed --autotuning`",
        "data_efficiency": "it is off",
        "tensor_parallel": "its size is 1",
        "expert_parallel": "it is off",
        "hybrid_engine": "it is off",
    }
    for section, reason in unused.items():
        if draft.values.get(section):
            draft.find("section-unused", f'the JSON\'s "{section}" has no effect here: {reason}', f'delete "{section}"')
        draft.values.pop(section, None)
