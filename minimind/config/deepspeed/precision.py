"""Precision: the ``fp16``, ``bf16`` and ``data_types`` sections against the YAML and the hardware."""

from __future__ import annotations

from minimind.base.hardware import Hardware, advised_config, best_precision
from minimind.config.deepspeed.agreement import say_winner, settle
from minimind.config.deepspeed.lint import AUTO, Draft
from minimind.config.run import RunConfig


def resolve_precision(draft: Draft, run: RunConfig, hardware: Hardware, emulate: bool) -> str:
    """The precision the JSON asks for, with "auto" filled from the run's ``fp16``/``bf16`` or else from the
    hardware. A section that the JSON lacks states nothing: the run's flag decides, as in Hugging Face.
    """
    _autocast_as_section(draft)
    for name in ("fp16", "bf16"):
        settled = settle(draft, run, f"{name}.enabled", name)
        if settled is True and draft.get(f"{name}.enabled") is None:
            draft.set(f"{name}.enabled", True)
    _fill_enabled(draft, run, hardware)
    for name, other in (("fp16", "bf16"), ("bf16", "fp16")):
        if getattr(run, name) is True and draft.on(other):
            _one_precision(draft, run, name, other)
    if draft.on("fp16") and draft.on("bf16"):
        draft.problem("fp16.enabled", "fp16 and bf16 are both enabled: keep one")
    if draft.on("fp16"):
        _fill_scaler(draft, run)
        _check_fp16(draft, hardware, emulate)
        return "fp16"
    _say_scaler_unused(draft, run)
    if draft.on("bf16"):
        if not hardware.bf16:
            better = best_precision(hardware)
            draft.find(
                "bf16-slow",
                f"{hardware.name or hardware.device_type} has no native bf16: correct, but slow",
                f"use {advised_config(draft.source.name, draft.kind, better)} for speed",
            )
        _keep_overflow_check(draft)
        return "bf16"
    return "fp32"


def _autocast_as_section(draft: Draft) -> None:
    """``torch_autocast`` -> the section of its dtype. DeepSpeed 0.19.8 clips and reports gradients that are still
    multiplied by the loss scale under it; the section has the same fp32 masters, and half weights in every product.
    """
    if not draft.on("torch_autocast"):
        draft.drop("torch_autocast")
        return
    given = str(draft.get("torch_autocast.dtype", "bf16")).removeprefix("torch.")
    name = next((short for short in ("fp16", "bf16") if given in _DTYPE_NAMES[short]), None)
    if name is None:
        draft.problem("torch_autocast.dtype", f'expected "bfloat16" or "float16", got {given!r}')
    elif not draft.on("fp16") and not draft.on("bf16"):
        draft.set(f"{name}.enabled", True)
        draft.find(
            "autocast-as-section",
            f"torch_autocast with {given} runs as the {name} section: fp32 masters as there, norms in {name} too",
            f'write "{name}": {{"enabled": true}} instead',
        )
    draft.drop("torch_autocast")


_SCALER = ("initial_scale_power", "loss_scale_window", "hysteresis")  # of the JSON's fp16 section, and of the YAML


def _fill_scaler(draft: Draft, run: RunConfig) -> None:
    for name in _SCALER:
        value = settle(draft, run, f"fp16.{name}", name)
        if value is not None:
            draft.set(f"fp16.{name}", value)


def _say_scaler_unused(draft: Draft, run: RunConfig) -> None:
    given = [name for name in _SCALER if getattr(run, name) is not None]
    if given:
        where = " and ".join(f"{name} ({run.place(name)})" for name in given)
        draft.find("setting-unused", f"{where}: without fp16 there is no loss scale", "delete it, or set fp16: true")


def _one_precision(draft: Draft, run: RunConfig, name: str, other: str) -> None:
    """``name`` is asked for by the run and ``other`` enabled in the JSON: the command line wins, a YAML does not."""
    if run.commanded(name):
        say_winner(draft, run, f"{other}.enabled", name=name, given=True, wanted=True)
    else:
        draft.problem(
            f"{other}.enabled",
            f"true in the JSON but {name} is true {run.origin(name)}: a run has one precision: change one of them",
        )
    draft.set(f"{other}.enabled", False)


def _keep_overflow_check(draft: Draft) -> None:
    """Off, stage 2 applies NaN gradients (runtime/zero/stage_1_and_2.py ``step``)."""
    if draft.get("bf16.check_grad_overflow") is False:
        draft.drop("bf16.check_grad_overflow")
        draft.find(
            "overflow-check",
            "bf16.check_grad_overflow stays on: without it DeepSpeed 0.19.8 applies a NaN gradient to every weight",
            "delete check_grad_overflow",
        )


def _fill_enabled(draft: Draft, run: RunConfig, hardware: Hardware) -> None:
    """``"enabled": "auto"`` -> the YAML's flag; unset there, Hugging Face would say false (fp32), we take the
    hardware's.
    """
    open_sections = [name for name in ("bf16", "fp16") if draft.get(f"{name}.enabled") == AUTO]
    if not open_sections:
        return
    taken = draft.on("fp16") or draft.on("bf16") or run.fp16 is True or run.bf16 is True
    native = [name for name in open_sections if getattr(hardware, name) and getattr(run, name) is not False]
    for name in open_sections:
        wish = getattr(run, name)
        draft.set(f"{name}.enabled", wish if wish is not None else not taken and native[:1] == [name])
    if not taken:
        chosen = next((name for name in open_sections if draft.on(name)), "fp32")
        draft.find(
            "precision-auto",
            f'"auto" precision: {chosen}, by the hardware ({hardware.describe()})',
            "set fp16 or bf16 in the YAML or by --set, or name the precision in the JSON",
        )


def _check_fp16(draft: Draft, hardware: Hardware, emulate: bool) -> None:
    device = hardware.name or hardware.device_type
    if not hardware.fp16 and not emulate:
        better = advised_config(draft.source.name, draft.kind, best_precision(hardware))
        draft.problem(
            "fp16.enabled", f"{device} has no fp16: use {better}, or add --emulate-fp16 to try this config slowly"
        )
    elif not hardware.fp16:
        draft.find("fp16-emulated", f"{device} has no fp16: it is emulated", "for trying out a config, not for speed")
    _check_loss_scale(draft)


def _check_loss_scale(draft: Draft) -> None:
    power, scale = draft.get("fp16.initial_scale_power", 16), draft.get("fp16.loss_scale", 0)
    lowest, window = draft.get("fp16.min_loss_scale", 1), draft.get("fp16.loss_scale_window", 1000)
    if not all(isinstance(value, (int, float)) for value in (power, scale, lowest, window)):
        return  # "auto": DeepSpeed's default
    if scale != 0:
        return
    if power > 127:  # fp32, which DeepSpeed keeps the scale in, ends at 2^128
        draft.problem("fp16.initial_scale_power", "a scale above 2^127 is infinite: use 16")
        return
    if power > 20:
        draft.find(
            "scale-power-high",
            f"fp16.initial_scale_power {power}: the first {power - 16} or so steps will overflow and be skipped",
            "use 16, the scale finds its level by itself",
            initial_scale_power=power,
        )
    if lowest <= 0 or window <= 0:
        draft.problem("fp16", f"min_loss_scale ({lowest}) and loss_scale_window ({window}) must be positive")
    elif 2.0**power < lowest:
        draft.problem(
            "fp16.initial_scale_power", f"the first scale 2^{power} is below min_loss_scale {lowest}: raise it"
        )
    if draft.get("fp16.hysteresis", 2) == 0:
        draft.problem(
            "fp16.hysteresis",
            "0 means that DeepSpeed never lowers the scale, so one overflow skips every later step: use 1 or more",
        )


_DTYPE_NAMES = {"fp16": ("fp16", "float16", "half"), "bf16": ("bf16", "bfloat16"), "fp32": ("fp32", "float32", "float")}


def resolve_data_types(draft: Draft, precision: str) -> str:
    """The gradients' dtype over a step's micro-batches: fp32, or the precision's own (fp16's default, and what bf16
    has to be asked for). Another half precision is dropped: DeepSpeed would round each gradient to it, or ignore it,
    by stage.
    """
    parameters = draft.get("data_types.param_dtype")
    if parameters not in (None, AUTO) and _short(parameters) != precision:
        draft.problem(
            "data_types.param_dtype", f"{parameters} contradicts the enabled precision {precision}: delete it"
        )
    usual = "fp32" if precision == "bf16" else precision
    given = draft.get("data_types.grad_accum_dtype")
    wanted = usual if given in (None, AUTO) else _short(given)
    if wanted not in ("fp32", precision):
        draft.find(
            "accumulation-dtype",
            f"data_types.grad_accum_dtype {given} with {precision}: DeepSpeed rounds every gradient to {wanted} at "
            f"ZeRO stage 1 and ignores it at stage 2; {usual} is used",
            "delete grad_accum_dtype",
        )
        wanted = usual
    draft.drop("data_types.grad_accum_dtype")
    if wanted != precision or precision == "bf16":
        draft.set("data_types.grad_accum_dtype", wanted)
    return wanted


def _short(dtype: object) -> str:
    """DeepSpeed's spellings of a dtype ("torch.float32", "float") -> "fp32"."""
    plain = str(dtype).removeprefix("torch.")
    return next(short for short, names in _DTYPE_NAMES.items() if plain in names)
