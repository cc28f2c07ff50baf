"""The one module that runs DeepSpeed: everything that 0.19.8 does differently from what one would expect is here.
Which private parts that takes, and the check that they are there: deepspeed_fixes.py.

What is corrected, each with a test in tests/training/engine/test_engine.py:

- fp16 and the step on which the loss scale grows: ZeRO updates the scale before it unscales the gradients
  (runtime/zero/stage_1_and_2.py ``step``), which halves that update. Here the scale is updated after the step.
- fp32 at stage 0 applies NaN gradients and reports no norm. Here the norm is computed and a non-finite one skips.
- A checkpoint's pickled loss scaler, clipping and parameter groups override the new configuration on load
  (``_load_global_state``). Here the configuration wins and only the scaler's running state is taken.
- DeepSpeed loads a checkpoint only into the layout that wrote it (ranks, wrapper, precision). Here another layout gets
  whole fp32 tensors (checkpoint/layouts.py).
- ``deepspeed_shm_comm`` is compiled at every CPU start (48 s) although gloo does the same work.
- ZeRO-2 with offload and fp32 accumulation keeps the gradients of a skipped step (stage_1_and_2.py ``step`` drops
  ``averaged_gradients`` without offload only), so that one NaN skips every later step. Here they are dropped.
- A step that is skipped at stage 3 leaves the parameters that stay whole cut (stage3.py ``step`` returns before
  ``_post_step``); a resumed run then meets them in another order than it has recorded, and DeepSpeed raises "tracing
  error". Here they are gathered (parameters.py).
- The lock of a build that was killed makes every later build wait for ever. Here it is noticed and removed (builds.py).
- DeepSpeedCPUAdam's bias corrections after a resume differ in the last bit from an uninterrupted run's.
- ``backward`` divides by the accumulation steps of the config; the loss is divided in step.py only, and a window may
  be shorter than the config says, so the boundary is set by hand and ``scale_wrt_gas`` is off.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from minimind.base.errors import UserError
from minimind.training.engine import deepspeed_fixes

if not torch.cuda.is_available():
    os.environ.setdefault("DS_ACCELERATOR", "cpu")  # otherwise it warns that it found none
if problem := deepspeed_fixes.version_problem():  # before the first import of a private part
    raise UserError(problem)

import deepspeed
from deepspeed.accelerator import get_accelerator
from deepspeed.ops.op_builder.builder import OpBuilder
from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler
from torch import nn

from minimind.base.launcher import free_port, rendezvous
from minimind.model.cpu.allocator import keep_freed_memory
from minimind.training.checkpoint.layouts import Block, Layout, fill, read_model_states, read_portable
from minimind.training.checkpoint.snapshot import Snapshot, capture
from minimind.training.engine.builds import guard_builds
from minimind.training.engine.optimizers import build_optimizer, parameter_groups
from minimind.training.engine.parameters import parameters_of
from minimind.training.engine.schedule import ScheduleApplier
from minimind.training.process.ranks import Control

if TYPE_CHECKING:
    from minimind.config.deepspeed import Resolved
    from minimind.data.store.batches import Batch

CHECKPOINT_TAG = "engine"
CLIENT_STATE_KEY = "trainer"  # save_checkpoint merges client_state into its own keys: keep ours under one
SCRIPTS = Path(deepspeed.__file__).parent / "utils"


@dataclass(frozen=True)
class Update:
    """What one optimizer step did.

    ``grad_norm``: L2 norm of the true gradient, unscaled and before clipping; non-finite on a skipped step. On a GPU a
    0-d tensor, not yet read.
    ``lr``: the rate this step used (or would have used). ``loss_scale``: the scale its gradients carried; None
    without fp16. ``exhausted``: an overflow at the smallest allowed scale, which can't be healed by skipping.
    """

    applied: bool
    grad_norm: float | torch.Tensor
    lr: float
    loss_scale: float | None
    exhausted: bool = False


def start_processes(emulate_fp16: bool = False) -> None:
    """Join the ranks that the launcher started, or be the only one. Call once, before building an Engine.

    Raises UserError where the installed DeepSpeed is not the one that the corrections here were proven with, and where
    the launcher's port is taken.
    """
    deepspeed_fixes.check_private_names()
    deepspeed_fixes.quiet_deepspeed()
    deepspeed_fixes.import_muon_uncompiled()
    guard_builds(OpBuilder)
    if "RANK" not in os.environ:  # `python launch/pretrain.py`, without a launcher
        os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1")
        os.environ["MASTER_PORT"] = str(free_port())
    if get_accelerator().device_name() == "cpu":
        # gloo does what this kernel does; DeepSpeed would compile it at every first start.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        keep_freed_memory()
        if emulate_fp16:
            get_accelerator().is_fp16_supported = lambda: True
    if not dist.is_initialized():
        get_accelerator().set_device(int(os.environ["LOCAL_RANK"]))
        backend = get_accelerator().communication_backend_name()
        with rendezvous():
            deepspeed.init_distributed(dist_backend=backend, verbose=False)
        deepspeed_fixes.use_todays_collectives()


class Engine:
    """A DeepSpeed engine around ``model``, with the corrections of this module's docstring."""

    def __init__(self, model: nn.Module, resolved: Resolved, factor: Callable[[int], float]) -> None:
        """Build optimizer, ZeRO wrapper and schedule. ``factor``: share of the peak rate by applied step."""
        self.resolved = resolved
        self.control = Control()
        self.rank, self.world_size = self.control.rank, self.control.world_size
        ours = resolved.scheduler is None  # a `scheduler` section runs as DeepSpeed runs it
        schedule: Callable[[torch.optim.Optimizer], ScheduleApplier] | None = (
            (lambda optimizer: ScheduleApplier(optimizer, factor)) if ours else None
        )
        self.ds, self.optimizer, _, self.scheduler = deepspeed.initialize(
            model=model,
            optimizer=_make_optimizer(model, resolved),
            lr_scheduler=schedule,
            config=resolved.config,
            dist_init_required=False,
        )
        deepspeed_fixes.check_wrapper(self.optimizer)
        self.module: nn.Module = self.ds.module
        self.device: torch.device = self.ds.device
        self._pending_overflow: bool | None = None
        self._scaler_update = self.optimizer._update_scale if hasattr(self.optimizer, "loss_scaler") else None
        if self._scaler_update is not None:
            self.optimizer._update_scale = self._postpone_scale_update
        self._bare = resolved.stage == 0  # in fp32: half precision runs at stage 1 or more
        if self._bare:  # it would read all gradients again for the norm that `_update_bare` has
            self.ds.clip_fp32_gradients = lambda: None
        self._parameters = parameters_of(self.ds, resolved.stage, resolved.offload)
        if self.world_size == 1:
            # DeepSpeed copies all gradients into one tensor, reduces it over one rank and copies them back: 3% of a
            # step of the 26M model on a CPU, for the same bits.
            self.ds.buffered_allreduce_fallback = lambda *_, **__: None

    # One optimizer step: forward and backward for each micro-batch, then update.

    def forward(self, batch: Batch, last: bool) -> torch.Tensor:
        """Loss summed over the batch's trainable tokens: fp32, 0-d, on the device.

        ``last``: this micro-batch ends the step. DeepSpeed must know before forward and backward: the ranks reduce
        in that backward (stages 0 and 1 only there).
        """
        loss: torch.Tensor = self._call(batch, last)
        return loss

    def forward_by_row(self, batch: Batch, last: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """As ``forward``, and each row's part of the loss: fp32 [rows], detached, on the device."""
        loss, rows = self._call(batch, last, by_row=True)
        return loss, rows

    def _call(self, batch: Batch, last: bool, **options: bool) -> Any:
        self.ds.set_gradient_accumulation_boundary(last)
        batch = batch.to(self.device)
        inputs = (batch.input_ids, batch.labels, batch.position_ids, batch.document_ids)
        return self.ds(*inputs, **options)

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradient of ``loss`` to the step's; DeepSpeed takes the mean over ranks and scales for fp16."""
        self.ds.backward(loss, scale_wrt_gas=False)

    def update(self) -> Update:
        """Apply the accumulated gradients, or skip them if they are not finite."""
        lr, scale = self.lr, self.loss_scale
        if self._bare:
            return self._update_bare(lr)
        self.ds.step()
        exhausted, applied = self._apply_scale_update(), self.ds.was_step_applied()
        if not applied:
            self._parameters.after_skip()
        return Update(applied, _unread(self.ds.get_global_grad_norm()), lr, scale, exhausted)

    def _update_bare(self, lr: float) -> Update:
        """fp32 at stage 0: the raw optimizer, to which DeepSpeed gives neither a norm nor a finite check."""
        parameters = [p for p in self.module.parameters() if p.grad is not None]
        total = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        norm, clip = _number(total), self.resolved.gradient_clipping
        if norm - norm != 0.0:  # inf or NaN
            self.ds.zero_grad()
            return Update(False, norm, lr, None)
        if clip:
            nn.utils.clip_grads_with_norm_(parameters, clip, total)
        self.ds.step()
        return Update(True, norm, lr, None)

    @property
    def lr(self) -> float:
        """The learning rate of the coming step (the first group's)."""
        return float(self.ds.basic_optimizer.param_groups[0]["lr"])

    @property
    def loss_scale(self) -> float | None:
        """The scale that the coming backward multiplies the loss with; None without fp16."""
        if self.resolved.precision != "fp16":
            return None
        return float(self.optimizer.loss_scaler.cur_scale)

    def _postpone_scale_update(self, overflow: bool = False) -> None:
        self._pending_overflow = bool(overflow)

    def _apply_scale_update(self) -> bool:
        """Update the loss scale after the step, as torch.amp does. True: overflow at the smallest scale."""
        overflow, self._pending_overflow = self._pending_overflow, None
        if overflow is None or self._scaler_update is None:
            return False
        scaler = self.optimizer.loss_scaler
        if overflow and isinstance(scaler, DynamicLossScaler) and _at_floor(scaler):
            scaler.last_overflow_iter = scaler.cur_iter
            scaler.cur_iter += 1
            return True
        self._scaler_update(overflow)
        return False

    def broken_parameters(self) -> list[str]:
        """Names of the weights that hold a NaN or inf; waits for the device once. All ranks call it."""
        return self._parameters.broken(self.sum_over_ranks)

    def sum_over_ranks(self, values: list[float]) -> list[float]:
        """Element-wise sum of host numbers over the ranks."""
        return self.control.sum(values)

    def barrier(self) -> None:
        """Wait until every rank is here."""
        self.control.barrier()

    # Checkpoints: DeepSpeed's own files; checkpoint/writer.py writes them in the background, atomic and verified.

    def snapshot(self, state: dict[str, Any]) -> Snapshot:
        """This rank's checkpoint files as they are now; all ranks call it. ``state``: picklable, ours."""
        return capture(self.ds, CHECKPOINT_TAG, {CLIENT_STATE_KEY: state}, SCRIPTS)

    def save(self, directory: Path, state: dict[str, Any]) -> None:
        """Write this rank's files below ``directory`` at once; all ranks call it."""
        self.snapshot(state).write(directory)

    def load(self, directory: Path) -> dict[str, Any]:
        """Restore from ``directory``; returns the state given to save. The present configuration wins.

        Written by the same layout (ranks, precision, ZeRO stage, offload) the run goes on bit for bit; from another
        one through whole fp32 tensors (checkpoint/layouts.py), which rounds nothing but the order of sums changes.
        Raises UserError, before anything is loaded, where that can't be done.
        """
        saved = read_model_states(directory / CHECKPOINT_TAG)
        theirs = Layout.of(saved["ds_config"], saved["dp_world_size"])
        scaler = getattr(self.optimizer, "loss_scaler", None)
        if theirs == Layout.of(self.resolved.config, self.world_size):
            self._load_as_it_is(directory)
        else:
            self._load_portably(directory / CHECKPOINT_TAG, saved)
        if scaler is not None:
            self.optimizer.loss_scaler = _with_state_of(scaler, self.optimizer.loss_scaler)
        self._resume_schedule(saved["global_steps"] - saved["skipped_steps"])
        state: dict[str, Any] = saved[CLIENT_STATE_KEY]
        return state

    def _load_as_it_is(self, directory: Path) -> None:
        """By DeepSpeed, which takes settings too; the present ones are put back."""
        groups = self.ds.basic_optimizer.param_groups
        fresh = [_settings(group) for group in groups]
        mine = {
            name: getattr(self.optimizer, name)
            for name in ("clip_grad", "dynamic_loss_scale")
            if hasattr(self.optimizer, name)
        }
        path, _ = self.ds.load_checkpoint(str(directory), tag=CHECKPOINT_TAG, load_lr_scheduler_states=False)
        if path is None:
            raise RuntimeError(f"{directory}: DeepSpeed loaded nothing")
        for group, settings in zip(self.ds.basic_optimizer.param_groups, fresh, strict=True):
            group.update(settings)
        for name, value in mine.items():
            setattr(self.optimizer, name, value)

    def _load_portably(self, directory: Path, saved: dict[str, Any]) -> None:
        """Masters, moments and step cut for this layout, weights from the masters, DeepSpeed's counters."""
        state = read_portable(directory, blocks := self._blocks())
        part = self.rank if self.resolved.stage else 0
        fill(self.ds.basic_optimizer, self._masters(), blocks, state, part)
        self._parameters.follow(state)
        for name in ("global_steps", "global_samples", "skipped_steps"):
            setattr(self.ds, name, saved[name])
        if hasattr(self.optimizer, "loss_scaler"):
            self.optimizer.loss_scaler = state.loss_scaler

    def _blocks(self) -> list[list[Block]]:
        """What each tensor of the optimizer holds, by parameter group."""
        return self._parameters.blocks()

    def _masters(self) -> list[list[torch.Tensor]]:
        """This rank's fp32 tensors that the optimizer changes: those of ``_blocks``."""
        return self._parameters.masters()

    def _resume_schedule(self, applied: int) -> None:
        """Go on after ``applied`` steps. The rates are those of the present configuration."""
        if isinstance(self.scheduler, ScheduleApplier):
            self.scheduler.load_state_dict({"applied_steps": applied})
        elif applied:  # DeepSpeed's schedulers count from -1 and are functions of that count
            self.scheduler.step(applied - 1)

    def compile(self) -> None:
        """torch.compile the module; parameter names stay (DeepSpeed compiles in place)."""
        self.ds.compile()

    @property
    def compiled(self) -> bool:
        """Whether the first step compiles the module."""
        return bool(self.ds.is_compiled)

    def weights(self) -> dict[str, torch.Tensor]:
        """The model's weights on the CPU, in the training precision, under their Llama names; all ranks call it.

        At ZeRO stage 3 the first rank has them and the others get none: they would not fit everywhere.
        """
        return self._parameters.weights()

    def close(self) -> None:
        """Release DeepSpeed's hooks and buffers."""
        self.ds.destroy()


def _make_optimizer(model: nn.Module, resolved: Resolved) -> torch.optim.Optimizer:
    spec = resolved.optimizer
    if resolved.offload and spec.type.lower() in ("adam", "adamw"):
        from deepspeed.ops.adam import DeepSpeedCPUAdam

        names = ("lr", "betas", "eps", "bias_correction")
        params = {name: spec.params[name] for name in names if name in spec.params}
        groups = parameter_groups(model, spec.type, spec.params)
        cpu_adam: torch.optim.Optimizer = DeepSpeedCPUAdam(groups, adamw_mode=spec.type.lower() == "adamw", **params)
        cpu_adam.register_step_pre_hook(_forget_bias_corrections)
        return cpu_adam
    return build_optimizer(model, spec.type, spec.params)


def _forget_bias_corrections(optimizer: Any, args: Any, kwargs: Any) -> None:
    """Make DeepSpeedCPUAdam compute beta**step afresh.

    It multiplies a kept power by beta at each step but calls pow() after a resume (csrc/includes/cpu_adam.h
    ``IncrementStep``); the two round differently, so a resumed run would drift from an uninterrupted one. An update
    of nothing at a far step makes the next one call pow(), always.
    """
    group, nothing = optimizer.param_groups[0], torch.empty(0)
    optimizer.ds_opt_adam.adam_update(
        optimizer.opt_id, 1 << 40, group["lr"], *group["betas"], group["eps"], 0.0, True, *[nothing] * 4
    )


def _settings(group: dict[str, Any]) -> dict[str, Any]:
    """A parameter group's hyperparameters: what the configuration decides."""
    return {name: value for name, value in group.items() if name not in ("params", "step")}


def _with_state_of(fresh: Any, loaded: Any) -> Any:
    """The configured scaler, going on from where the checkpoint's scaler of the same kind stood."""
    if isinstance(fresh, DynamicLossScaler) and isinstance(loaded, DynamicLossScaler):
        for name in ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis"):
            setattr(fresh, name, getattr(loaded, name))
        fresh.cur_scale = max(fresh.cur_scale, fresh.min_scale)
        fresh.cur_hysteresis = min(fresh.cur_hysteresis, fresh.delayed_shift)
    return fresh


def _at_floor(scaler: DynamicLossScaler) -> bool:
    """Whether one more overflow would have to go below the smallest scale (DeepSpeed raises there)."""
    patience_gone = scaler.delayed_shift == 1 or scaler.cur_hysteresis == 1
    return bool(patience_gone and scaler.cur_scale <= scaler.min_scale)


def _number(value: Any) -> float:
    return float("nan") if value is None else float(value)


def _unread(value: Any) -> float | torch.Tensor:
    """A number, or on a device the tensor that holds it: reading it here would wait for the whole update.

    DeepSpeed itself waits once a step, before the update: to know whether the gradients are finite.
    """
    on_device = isinstance(value, torch.Tensor) and value.device.type != "cpu"
    return value.detach() if on_device else _number(value)
