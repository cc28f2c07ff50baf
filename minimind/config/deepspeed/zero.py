"""The ``zero_optimization`` section: the stage that runs, offload, bucket sizes. Stage 3's own keys: partitioned.py."""

from __future__ import annotations

from minimind.config.deepspeed.lint import AUTO, Draft
from minimind.config.deepspeed.partitioned import check_partitioned, keep_in_memory
from minimind.config.run import RunConfig


def resolve_zero(
    draft: Draft, precision: str, accumulation: str, run: RunConfig, num_parameters: int, world_size: int
) -> tuple[int, bool]:
    """The stage that runs, and whether optimizer states live in CPU memory. ``accumulation``: the gradients' dtype."""
    stage = draft.get("zero_optimization.stage", 0)
    stage = 0 if stage == AUTO else stage
    if not 0 <= stage <= 3:
        draft.problem("zero_optimization.stage", f"expected 0, 1, 2 or 3, got {stage!r}")
        return 0, False
    offload = _settle_offload(draft, stage)
    stage = _right_stage(draft, precision, accumulation, stage, offload)
    zero = draft.values.setdefault("zero_optimization", {})
    zero["stage"] = stage
    if stage == 3:
        check_partitioned(draft, run, world_size)
    else:
        _drop_offload_param(draft)
    _cap_buckets(draft, run, num_parameters)
    return stage, offload


def _right_stage(draft: Draft, precision: str, accumulation: str, stage: int, offload: bool) -> int:
    """The nearest stage at which DeepSpeed computes what the JSON says."""
    if precision in _STAGE_0 and stage == 0:
        stage, (code, why) = 1, _STAGE_0[precision]
        draft.find(
            code,
            f"{precision} with ZeRO stage 0 runs as stage 1: {why}",
            'write "zero_optimization": {"stage": 1} to keep this silent',
        )
    if accumulation != precision and stage == 1 and (offload or precision == "fp16"):
        stage = 2
        where = f"{precision} with CPU offload" if offload else precision
        draft.find(
            "fp32-accumulation-stage2",
            f"{where} at ZeRO stage 1 runs as stage 2: at stage 1 DeepSpeed 0.19.8 accumulates these gradients in "
            f"{precision}, though grad_accum_dtype is fp32",
            f'write "zero_optimization": {{"stage": 2}}, or "grad_accum_dtype": "{precision}" to accumulate in that',
        )
    return stage


_STAGE_0 = {
    "fp16": (
        "fp16-stage0",
        "at stage 0 DeepSpeed 0.18.3 to 0.19.8 divides gradients by a loss scale that it never multiplied in "
        "(65,536 times too small)",
    ),
    "bf16": (
        "bf16-stage0",
        "at stage 0 DeepSpeed 0.19.8 makes one optimizer step on zero gradients before the first (the first AdamW "
        "update is 0.744 of the true one), and accumulates gradients in bf16",
    ),
}


def _settle_offload(draft: Draft, stage: int) -> bool:
    """Whether optimizer states live in CPU memory; what asks for another place is said."""
    section, where = "zero_optimization.offload_optimizer", "zero_optimization.offload_optimizer.device"
    device = draft.get(where, "none")
    if device in ("cpu", "nvme") and stage == 0:
        text = f"{section} has no effect: DeepSpeed offloads from stage 1 on"
        draft.find("section-unused", text, "delete it, or set the stage to 2")
        draft.drop(section)
        return False
    if device == AUTO:
        draft.drop(section)
    elif device == "nvme" and stage == 3:
        # tests/training/engine/test_nvme.py
        why = "DeepSpeed 0.19.8 reads other gradients back than it wrote to the disk"
        keep_in_memory(draft, section, "optimizer's states", why)
    elif device == "nvme":
        text = f"{where} nvme is cpu: at stages 1 and 2 DeepSpeed keeps the states in CPU memory"
        draft.unused("setting-dropped", where, text, 'write "cpu"')
        draft.set(where, "cpu")
    ratio = draft.get(f"{section}.ratio", 1.0)
    if isinstance(ratio, (int, float)) and ratio < 1:
        why = (
            "DeepSpeed's part on the device keeps its first learning rate, and no checkpoint holds its moments"
            if stage == 3
            else "DeepSpeed has it only at stage 3"
        )
        text = f"{section}.ratio {ratio} is not used: all states are in CPU memory ({why})"
        draft.unused("setting-dropped", f"{section}.ratio", text, "delete it")
        draft.drop(f"{section}.ratio")
    return device in ("cpu", "nvme")


def _drop_offload_param(draft: Draft) -> None:
    """Below stage 3 DeepSpeed ignores it."""
    if draft.get("zero_optimization.offload_param.device", "none") not in ("none", AUTO):
        message = "zero_optimization.offload_param has no effect: DeepSpeed offloads parameters only at stage 3"
        draft.find("section-unused", message, "delete offload_param, or set the stage to 3")
    draft.drop("zero_optimization.offload_param")


def _cap_buckets(draft: Draft, run: RunConfig, num_parameters: int) -> None:
    """Buckets no larger than the model: DeepSpeed allocates them in full (5e8 elements, 1 GB in half
    precision).
    """
    hidden = run.model.hidden_size
    if draft.get("zero_optimization.reduce_bucket_size") == AUTO:
        draft.set("zero_optimization.reduce_bucket_size", hidden * hidden)  # Hugging Face's rule
    for name in ("reduce_bucket_size", "allgather_bucket_size"):
        path = f"zero_optimization.{name}"
        given = draft.get(path)
        if isinstance(given, int) and given <= 0:
            draft.problem(path, f"{given} is not a size: use at most the model's {num_parameters:,} parameters")
        elif isinstance(given, int) and given > num_parameters:
            draft.find(
                "bucket-capped",
                f"{path} {given:,} is more than the model's {num_parameters:,} parameters: lowered to "
                "that, because DeepSpeed allocates the whole bucket",
                f"write {num_parameters}",
                given=given,
                used=num_parameters,
            )
        if given is None or given == AUTO or (isinstance(given, int) and given > num_parameters):
            draft.set(path, num_parameters)
