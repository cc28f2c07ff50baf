"""From a DeepSpeed JSON and a RunConfig to the one dict that ``deepspeed.initialize`` gets.

``resolve`` reads and lints the JSON, fills ``"auto"`` from the YAML as Hugging Face's Trainer does, compares
what both set, solves the batch triple, and makes explicit what DeepSpeed 0.19.8 would otherwise default, ignore
or get wrong (clipping, fp16 at stage 0, bucket sizes, gradient accumulation dtype). All problems come in one
UserError; everything changed or surprising comes back as a Finding. Imports neither torch nor deepspeed.
Weakness: value ranges are checked only where a wrong one is known to train wrongly; the rest is left to
DeepSpeed itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from minimind.base.defaults import ENGINE
from minimind.base.findings import Finding
from minimind.base.hardware import Hardware, kind_by_name
from minimind.base.problems import raise_problems
from minimind.config.deepspeed.agreement import settle
from minimind.config.deepspeed.batch import BatchSizes, solve_batch
from minimind.config.deepspeed.lint import AUTO, Draft, check_names_and_types, modernise
from minimind.config.deepspeed.obsolete import drop_obsolete
from minimind.config.deepspeed.optimizer import OptimizerSpec, resolve_optimizer
from minimind.config.deepspeed.precision import resolve_data_types, resolve_precision
from minimind.config.deepspeed.refusals import note_monitors, note_unused, refuse_unsupported
from minimind.config.deepspeed.scheduler import (
    fill_total_steps,
    own_schedule_findings,
    resolve_scheduler,
    scheduler_findings,
)
from minimind.config.deepspeed.source import JsonSource, read_source
from minimind.config.deepspeed.zero import resolve_zero
from minimind.config.run import RunConfig


@dataclass(frozen=True)
class Resolved:
    """A config that is ready to run.

    ``config`` goes to ``deepspeed.initialize`` (the optimizer is not in it: the engine builds it from
    ``optimizer``, with decay and no-decay groups; ``scheduler`` is in it if the JSON has one). ``offload``
    means optimizer states in CPU memory.
    """

    config: dict[str, Any]
    micro_batch_size: int
    accumulation: int
    world_size: int
    precision: str  # "fp16" | "bf16" | "fp32"
    stage: int
    offload: bool
    optimizer: OptimizerSpec
    gradient_clipping: float
    scheduler: dict[str, Any] | None
    source: str
    batch_reason: str
    findings: list[Finding] = field(default_factory=list)

    @property
    def train_batch_size(self) -> int:
        """Rows (packed sequences) of one optimizer step, over all ranks."""
        return self.micro_batch_size * self.accumulation * self.world_size

    @property
    def offload_param(self) -> bool:
        """Whether the weights live in CPU memory between their uses (stage 3)."""
        zero = self.config.get("zero_optimization", {})
        return bool(zero.get("offload_param", {}).get("device") == "cpu")

    def explain_batch(self, row_length: int) -> str:
        """``effective batch: 8 micro x 4 accumulation x 1 rank = 32 sequences of 512 = 16,384 tokens per
        step``.
        """
        ranks = f"{self.world_size} rank{'s' if self.world_size > 1 else ''}"
        tokens = self.train_batch_size * row_length
        return (
            f"effective batch: {self.micro_batch_size} micro x {self.accumulation} accumulation x {ranks} = "
            f"{self.train_batch_size:,} sequences of {row_length:,} = {tokens:,} tokens per step "
            f"({self.batch_reason})"
        )

    def with_total_steps(self, total_steps: int, run: RunConfig) -> Resolved:
        """Fill the scheduler's ``"auto"`` step counts, known only once the data is, and say what does not fit them."""
        if self.scheduler is None:
            remarks = own_schedule_findings(total_steps, run)
            return replace(self, findings=[*self.findings, *remarks])
        scheduler = fill_total_steps(self.scheduler, total_steps, run)
        findings = [*self.findings, *scheduler_findings(scheduler, total_steps)]
        config = {**self.config, "scheduler": scheduler}
        return replace(self, scheduler=scheduler, config=config, findings=findings)

    def with_fixed_scale(self, loss_scale: float) -> Resolved:
        """The same run with a loss scale that never changes; fp16 only."""
        return replace(self, config={**self.config, "fp16": {"enabled": True, "loss_scale": loss_scale}})

    def in_fp32(self) -> Resolved:
        """The same run in fp32, at its ZeRO stage."""
        dropped = ("fp16", "bf16", "data_types", "communication_data_type")
        config = {key: value for key, value in self.config.items() if key not in dropped}
        return replace(self, config=config, precision="fp32")

    @property
    def dynamic_scale(self) -> bool:
        """Whether this is fp16 with a loss scale that adapts."""
        return self.precision == "fp16" and not self.config["fp16"].get("loss_scale", 0)


def resolve(
    path_or_dict: str | Path | Mapping[str, Any] | JsonSource,
    run: RunConfig,
    world_size: int,
    hardware: Hardware,
    emulate_fp16: bool = False,
    num_parameters: int | None = None,
    defaults: Mapping[str, float] | None = None,
    kind: str | None = None,
    strict: bool = False,
) -> Resolved:
    """Resolve a DeepSpeed config for ``run`` on ``world_size`` ranks.

    ``num_parameters`` defaults to those of ``run.model``. ``kind``: "pretrain" or "sft" (None: by the JSON's name);
    it decides which rate an "auto" means and which JSONs are advised. ``defaults`` replaces some of the defaults.
    ``strict``: a key of the JSON that is not used is a problem instead of a finding.
    Raises one UserError listing every problem as ``file:line: key: what``.
    """
    source = read_source(path_or_dict)
    draft = Draft(source, source.values, kind=kind or kind_by_name(source.name), strict=strict)
    _lint(draft)
    solved = _solve(
        draft,
        run,
        world_size,
        hardware,
        emulate_fp16=emulate_fp16 or run.emulate_fp16,
        num_parameters=num_parameters or run.model.num_parameters(),
        fallback={**ENGINE, **(defaults or {})},
    )
    _note_what_has_no_effect(draft, run)
    raise_problems(draft.problems, source.name)
    return _resolved(draft, solved, run, world_size)


def _lint(draft: Draft) -> None:
    """Known names, right types, and nothing old or refused is left of it."""
    drop_obsolete(draft)
    check_names_and_types(draft)
    modernise(draft)
    refuse_unsupported(draft)


@dataclass(frozen=True)
class _Solved:
    """Each part that JSON and YAML decide together; None: the draft has the problem."""

    precision: str
    stage: int
    offload: bool
    batch: BatchSizes | None
    optimizer: OptimizerSpec | None
    clipping: float
    scheduler: dict[str, Any] | None


def _solve(
    draft: Draft,
    run: RunConfig,
    world_size: int,
    hardware: Hardware,
    emulate_fp16: bool,
    num_parameters: int,
    fallback: Mapping[str, float],
) -> _Solved:
    """Fill "auto", compare what both set, make explicit what DeepSpeed would choose. Each part uses those before it."""
    precision = resolve_precision(draft, run, hardware, emulate_fp16)
    accumulation = resolve_data_types(draft, precision)
    stage, offload = resolve_zero(
        draft, precision, accumulation, run=run, num_parameters=num_parameters, world_size=world_size
    )
    batch = solve_batch(draft, run, world_size, fallback)
    optimizer = resolve_optimizer(draft, run, fallback)
    clipping = _clipping(draft, run, fallback)
    scheduler = resolve_scheduler(draft, run, optimizer)
    return _Solved(precision, stage, offload, batch, optimizer, clipping=clipping, scheduler=scheduler)


def _resolved(draft: Draft, solved: _Solved, run: RunConfig, world_size: int) -> Resolved:
    """What a draft without problems comes to."""
    batch, optimizer = solved.batch, solved.optimizer
    assert batch is not None  # a missing part has put a problem into the list
    assert optimizer is not None
    return Resolved(
        config=_engine_config(draft, batch, world_size, solved.clipping, solved.scheduler),
        micro_batch_size=batch.micro,
        accumulation=batch.accumulation,
        world_size=world_size,
        precision=solved.precision,
        stage=solved.stage,
        offload=solved.offload,
        optimizer=optimizer,
        gradient_clipping=solved.clipping,
        scheduler=solved.scheduler,
        source=draft.source.name,
        batch_reason=batch.reason,
        findings=[*run.remarks, *draft.findings],
    )


def _engine_config(
    draft: Draft, batch: BatchSizes, world_size: int, clipping: float, scheduler: dict[str, Any] | None
) -> dict[str, Any]:
    """The dict for ``deepspeed.initialize``: every key that was left to "auto" or to DeepSpeed has its value."""
    config = {key: value for key, value in draft.values.items() if key not in ("optimizer", "scheduler")}
    config.update(
        train_micro_batch_size_per_gpu=batch.micro,
        gradient_accumulation_steps=batch.accumulation,
        train_batch_size=batch.micro * batch.accumulation * world_size,
        gradient_clipping=clipping,
        steps_per_print=None,  # the trainer has its own progress line
        zero_allow_untested_optimizer=True,  # 8-bit and Lion classes are not on DeepSpeed's list; ours are tested
        zero_force_ds_cpu_optimizer=False,  # with offload, too
    )
    if scheduler is not None:
        config["scheduler"] = scheduler
    return config


def _clipping(draft: Draft, run: RunConfig, fallback: Mapping[str, float]) -> float:
    given = settle(draft, run, "gradient_clipping", "max_grad_norm")
    if given is None and draft.get("gradient_clipping") == AUTO:
        return fallback["max_grad_norm"]
    if given is None:
        draft.find(
            "clip-default",
            'no "gradient_clipping" in the JSON: DeepSpeed clips at 1.0 (since 0.19.3; before, not at all)',
            'write "gradient_clipping": 1.0, or 0.0 to switch clipping off',
        )
        return 1.0
    if given < 0:
        draft.problem("gradient_clipping", f"{given} is negative: use 1.0, or 0.0 to switch clipping off")
    return float(given)


def _note_what_has_no_effect(draft: Draft, run: RunConfig) -> None:
    """What is left of the draft and is not used, or not as one would think."""
    note_monitors(draft, run)
    note_unused(draft)
    _drop_unfilled_auto(draft, draft.values, "")


def _drop_unfilled_auto(draft: Draft, section: dict[str, Any], prefix: str) -> None:
    """DeepSpeed drops "auto" in some sections and dies on it in others; without the key its default applies in
    all.
    """
    for key, value in list(section.items()):
        if isinstance(value, dict) and f"{prefix}{key}" not in ("optimizer", "scheduler"):
            _drop_unfilled_auto(draft, value, f"{prefix}{key}.")
        elif value == AUTO and f"{prefix}{key}" not in _SOLVED_ELSEWHERE:
            del section[key]
            draft.find(
                "auto-default",
                f'"{prefix}{key}": "auto" has no YAML counterpart: DeepSpeed\'s default applies',
                "write a value to choose one",
            )


_SOLVED_ELSEWHERE = {
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "gradient_clipping",
}
