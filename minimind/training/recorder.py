"""From step results to metrics, reading the device only at the log cadence.

Losses and gradient norms stay on the device until ``flush``, which brings an interval's losses to the host in one
transfer and sums them over the ranks in one message; so every step has its line in metrics.jsonl and no step waits for
the log.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from minimind.training.metrics import StepMetrics
from minimind.training.step import StepResult

HISTORY = 128  # steps of scales and norms kept for a post-mortem


@dataclass
class Progress:
    """Where a run stands: what a checkpoint must carry besides DeepSpeed's own state.

    ``step`` counts attempted optimizer steps and alone decides the data; ``skipped`` those not applied.
    """

    step: int = 0
    tokens: int = 0
    skipped: int = 0
    consecutive_skips: int = 0
    best_loss: float | None = None
    best_step: int | None = None
    evaluations_without_gain: int = 0
    wandb_id: str | None = None
    history: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=HISTORY))
    health: dict[str, Any] = field(default_factory=dict)  # Health.state() as of the last save

    def advance(self, result: StepResult) -> None:
        """Count one more step."""
        update = result.update
        self.step += 1
        self.tokens += result.tokens if update.applied else 0
        self.skipped += not update.applied
        self.consecutive_skips = 0 if update.applied else self.consecutive_skips + 1
        self.history.append({"step": self.step, **asdict(update)})

    def state(self) -> dict[str, Any]:
        """A picklable copy for the checkpoint; reads from the device the norms that are still there."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        history = [{**entry, "grad_norm": float(entry["grad_norm"])} for entry in self.history]
        return {**values, "history": history}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Progress:
        """The progress that ``state()`` described."""
        return cls(**{**state, "history": deque(state["history"], maxlen=HISTORY)})


class Recorder:
    """Collects results and hands them to ``report`` as StepMetrics, in order.

    ``steps_per_epoch`` turns steps into epochs; ``sum_over_ranks`` adds host numbers over the ranks.
    """

    def __init__(
        self,
        report: Callable[[StepMetrics], None],
        sum_over_ranks: Callable[[list[float]], list[float]],
        steps_per_epoch: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._report, self._sum, self._clock = report, sum_over_ranks, clock
        self._steps_per_epoch = steps_per_epoch
        self._pending: list[tuple[StepResult, Progress]] = []
        self._since = clock()
        self._trusted = False  # the first interval holds warm-up and compilation

    def add(self, result: StepResult, progress: Progress) -> None:
        """Take one finished step; nothing is read from the device."""
        snapshot = Progress(progress.step, progress.tokens, progress.skipped)
        self._pending.append((result, snapshot))

    def flush(self) -> list[float]:
        """Report all pending steps; returns their losses. Every rank must call it at the same steps."""
        if not self._pending:
            return []
        sums = self._sum(torch.stack([result.loss_sum for result, _ in self._pending]).double().tolist())
        seconds = self._clock() - self._since
        tokens = sum(result.tokens for result, _ in self._pending)
        speed = tokens / seconds if self._trusted and seconds > 0 else None
        losses = [
            total / max(result.tokens, 1) for total, (result, _) in zip(sums, self._pending, strict=True)
        ]
        for loss, (result, progress) in zip(losses, self._pending, strict=True):
            self._report(self._metrics(loss, result, progress, speed, seconds))
        self._pending, self._trusted = [], True
        self.restart_clock()
        return losses

    def restart_clock(self) -> None:
        """Leave the time since the last flush (an evaluation, a save) out of the next interval."""
        self._since = self._clock()

    def _metrics(
        self, loss: float, result: StepResult, progress: Progress, speed: float | None, seconds: float
    ) -> StepMetrics:
        update, norm = result.update, float(result.update.grad_norm)
        return StepMetrics(
            step=progress.step,
            tokens=progress.tokens,
            loss=loss,
            grad_norm=None if math.isnan(norm) and update.applied else norm,
            lr=update.lr,
            loss_scale=update.loss_scale,
            skipped=progress.skipped,
            applied=update.applied,
            tokens_per_second=speed,
            seconds=seconds,
            epoch=progress.step / self._steps_per_epoch,
        )
