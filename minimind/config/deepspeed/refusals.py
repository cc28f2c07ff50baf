"""What DeepSpeed knows and this trainer refuses, each with the true reason, and what is legal but without
effect here.

A reason is either what DeepSpeed 0.19.8 does with the value, or what this trainer would have to prove and does
not.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from minimind.config.deepspeed.lint import AUTO, Draft
from minimind.config.run import RunConfig

# path: why a true (or "on") value is refused
_REFUSED_SWITCHES = {
    "expert_parallel.enabled": "the model has no experts",
    "weight_quantization.enabled": "it is for inference",
    "zero_optimization.legacy_stage1": "DeepSpeed itself refuses it (removed in 0.5.9): delete it",
}
_REFUSED_OFF = {
    "managed_gradient_accumulation": "this trainer relies on DeepSpeed stepping once a window: delete it",
}
# (path, value): what happens instead; no update of a weight is another for it, or only a more exact one
_DROPPED = {
    ("hybrid_engine.enabled", True): "it is for generation inside training, and nothing is generated",
    ("compile.deepcompile", True): "DeepSpeed applies it in engine.compile(); torch.compile is `compile: on` in the "
    "YAML",
    ("checkpoint.load_universal", True): "--resume goes on from any layout's checkpoint by itself",
    ("checkpoint.use_node_local_storage", True): "all shards of a checkpoint are written into one directory, which "
    "every node must see",
    ("zero_optimization.elastic_checkpoint", True): "every checkpoint can be resumed on another number of ranks",
    ("zero_optimization.compute_grad_norm", False): "clipping, health checks and metrics need the norm, which is "
    "computed",
    ("zero_optimization.load_from_fp32_weights", False): "a resumed run takes the fp32 masters, which are exact",
    ("zero_optimization.offload_optimizer.super_offload", True): "it is ZeRO stage 3's on CUDA, and updates weights "
    "before the norm is known; the states are offloaded, and updated after it",
    ("fp16.fp16_master_weights_and_grads", True): "masters and gradients' sums are kept in fp32",
    ("bf16.bf16_master_weights_and_grads", True): "masters are kept in fp32: bf16 would lose updates below 1/256 of "
    "a weight",
    ("bf16.bf16_optimizer_states", True): "Adam's moments are kept in fp32: bf16 rounds a change of 1/1000 to nothing",
    ("bf16.immediate_grad_update", True): "gradients are added after each backward pass, to the same sum",
}
_CHECKPOINTS = "this trainer writes its own verified checkpoints, in the background"
_DROPPED_SECTIONS = {
    "checkpoint.writer": _CHECKPOINTS,
    "datastates_ckpt": _CHECKPOINTS,
    "zero_optimization.zenflow": "it applies a part of each update steps later to hide the offload's time; here every "
    "update is whole, and applied in its own step",
}


def refuse_unsupported(draft: Draft) -> None:
    """Values that DeepSpeed knows and this trainer can't run correctly, each with the reason."""
    for path, reason in _REFUSED_SWITCHES.items():
        if draft.get(path) is True:
            draft.problem(path, f"true is not supported: {reason}")
    for (path, value), instead in _DROPPED.items():
        if draft.get(path) is value:
            text = f"{path} {str(value).lower()} is not used: {instead}"
            draft.unused("setting-dropped", path, text, "delete it")
            draft.drop(path)
    for path, reason in _REFUSED_OFF.items():
        if draft.get(path) is False:
            draft.problem(path, f"false is not supported: {reason}")
    if draft.get("gradient_allreduce_op") == "sum":
        draft.problem(
            "gradient_allreduce_op",
            '"sum" is not supported: the loss is already divided by the global number of '
            "trainable tokens, in one place, which assumes the mean over ranks: delete it",
        )
    for path, instead in _DROPPED_SECTIONS.items():
        if draft.get(path) not in (None, False, AUTO, {}):
            draft.unused("setting-dropped", path, f"{path} is not used: {instead}", "delete it")
        draft.drop(path)
    _drop_data_efficiency(draft)
    _drop_parallelism(draft)
    _drop_prescale(draft)


def _drop_data_efficiency(draft: Draft) -> None:
    """Its switch alone does nothing; and what is below it acts in DeepSpeed's own loader, or in converted layers."""
    section = draft.get("data_efficiency")
    if not isinstance(section, Mapping) or str(section.get("enabled")).lower() != "true":
        return
    for (outer, inner), where in _DATA_EFFICIENCY.items():
        path = f"data_efficiency.{outer}.{inner}.enabled"
        on = [draft.get(f"data_efficiency.{outer}.enabled", False), draft.get(path)]
        if all(str(value).lower() == "true" for value in on):
            text = f"{path} true is not used: DeepSpeed applies it in {where}: the order of the samples is a function "
            draft.unused("setting-dropped", path, f"{text}of seed and epoch, and every token is trained", "delete it")


_DATA_EFFICIENCY = {
    ("data_sampling", "curriculum_learning"): "its own data loader, which is not used",
    ("data_sampling", "dynamic_batching"): "its own data loader, which is not used",
    ("data_routing", "random_ltd"): "layers that its convert_to_random_ltd() has replaced, and here are none",
}


def _drop_parallelism(draft: Draft) -> None:
    """One model over several ranks: here every rank has rows of its own, and ZeRO splits the model. DeepSpeed counts
    these ranks as others in ``train_batch_size``, so that no number of the batch changes (runtime/config.py).
    """
    tensor = draft.get("tensor_parallel")
    width = 0 if not isinstance(tensor, Mapping) else tensor.get("autotp_size") or _tp_size(tensor)
    if isinstance(width, int) and width > 1:
        text = f"tensor_parallel of size {width} is not used: a model of this size fits one GPU many times over"
        draft.unused("parallelism-dropped", "tensor_parallel", f"{text}, {_OWN_ROWS}", "delete it")
    draft.drop("tensor_parallel")


_OWN_ROWS = "so every rank trains rows of its own, and a step has the rows of all ranks"


def _tp_size(tensor: Mapping[str, Any]) -> Any:
    inner = tensor.get("tensor_parallel") or tensor.get("tp") or tensor
    return inner.get("tp_size", 0) if isinstance(inner, Mapping) else 0


def _drop_prescale(draft: Draft) -> None:
    """When gradients are divided by the ranks: proven here without ZeRO; with it DeepSpeed mostly stops at start-up."""
    without_zero = draft.get("zero_optimization.stage", 0) in (0, AUTO)
    if without_zero and not any(draft.on(name) for name in ("fp16", "bf16", "torch_autocast")):
        return
    for key, default in (("prescale_gradients", False), ("gradient_predivide_factor", 1.0)):
        value = draft.get(key, default)
        if value not in (default, AUTO):
            why = ", as which half precision runs here" if without_zero else ""
            text = f"{key} {str(value).lower()} is not used: under ZeRO{why} gradients are divided after their sum"
            draft.unused("setting-dropped", key, f"{text}, to the same mean", "delete it")
            draft.drop(key)


def note_unused(draft: Draft) -> None:
    """Sections that are legal and have no effect here, said once."""
    unused = {
        "activation_checkpointing": "DeepSpeed applies it only to models that call its checkpoint function; "
        "set `gradient_checkpointing: true` in the YAML",
        "pipeline": "the model is not a PipelineModule",
        "autotuning": "it belongs to `deepspeed --autotuning`",
        "data_efficiency": "it changes nothing",
        "expert_parallel": "it is off",
        "hybrid_engine": "nothing is generated",
        "weight_quantization": "it is for inference",
    }
    for section, reason in unused.items():
        if draft.values.get(section):
            text = f'the JSON\'s "{section}" has no effect here: {reason}'
            draft.find("section-unused", text, f'delete "{section}"')
        draft.values.pop(section, None)
    draft.drop("compile")  # of deepcompile, which is off
    draft.drop("aio.use_gds")  # DeepSpeed stops at it without CUDA


def note_monitors(draft: Draft, run: RunConfig) -> None:
    """DeepSpeed's own monitors log no loss; its wandb would call wandb.init a second time and stop offline runs."""
    for name in ("wandb", "comet"):
        if draft.on(name):
            advice = "set `report_to: wandb` in the YAML" if "wandb" not in run.report_to else f'delete "{name}"'
            draft.find(
                "monitor-off",
                f"the JSON's {name} monitor is switched off: DeepSpeed's monitors log no loss, and this "
                "trainer logs to wandb itself",
                advice,
            )
        draft.drop(name)
    for name in ("tensorboard", "csv_monitor"):
        if draft.on(name):
            draft.find(
                "monitor-no-loss",
                f"DeepSpeed's {name} gets learning rate and loss scale, but no loss",
                f"for the loss: minimind report {shlex.quote(str(run.output_dir))}",
            )
    _note_comms_logger(draft)


def _note_comms_logger(draft: Draft) -> None:
    """DeepSpeed logs each operation if ``verbose``; its table needs a call that its engine never makes."""
    if draft.on("comms_logger") and draft.get("comms_logger.verbose") is not True:
        draft.find(
            "monitor-silent",
            "comms_logger shows nothing: without verbose DeepSpeed only counts, and its comm.log_summary(), which "
            "prints, is not called",
            'write "verbose": true to see every operation, or delete comms_logger',
        )
