"""From step results to metrics, reading the device only at the log cadence.

Losses and gradient norms stay on the device until ``flush``, which brings an interval's to the host in one transfer
and sums the losses over the ranks in one message; so every step has its line in metrics.jsonl and no step waits for
the log. The loss of each weighted source is the mean over its trainable tokens of the whole interval, on all ranks,
reported with its last step.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from minimind.training.engine.step import StepResult
from minimind.training.record.best import Best
from minimind.training.values import SourceLoss, StepMetrics

if TYPE_CHECKING:  # the engine imports DeepSpeed, which takes seconds
    from minimind.training.engine.engine import Update

HISTORY = 128  # steps of scales and norms kept for a post-mortem
# What Best's values were called when they stood in Progress itself.
EARLIER = {"best_loss": "loss", "best_step": "step", "evaluations_without_gain": "without_gain"}


@dataclass
class Progress:
    """Where a run stands: what a checkpoint must carry besides DeepSpeed's own state.

    ``step`` counts attempted optimizer steps and alone decides the data; ``skipped`` those not applied.
    """

    step: int = 0
    tokens: int = 0
    skipped: int = 0
    consecutive_skips: int = 0
    best: Best = field(default_factory=Best)
    evaluated_step: int = 0  # the last step with an evaluation
    history: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=HISTORY))
    health: dict[str, Any] = field(default_factory=dict)  # Health.state() as of the last save
    watch: dict[str, Any] = field(default_factory=dict)  # Watch.state(), the same

    def advance(self, result: StepResult) -> None:
        """Count one more step."""
        update = result.update
        self.step += 1
        self.tokens += result.tokens if update.applied else 0
        self.skipped += not update.applied
        self.consecutive_skips = 0 if update.applied else self.consecutive_skips + 1
        self.history.append({"step": self.step, **asdict(update)})

    @property
    def applied(self) -> int:
        """Steps whose update was applied: where the learning-rate schedule stands."""
        return self.step - self.skipped

    def state(self) -> dict[str, Any]:
        """A picklable copy for the checkpoint; reads from the device the norms that are still there."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        norms = read([entry["grad_norm"] for entry in self.history])
        history = [{**entry, "grad_norm": norm} for entry, norm in zip(self.history, norms, strict=True)]
        return {**values, "best": self.best.state(), "history": history}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Progress:
        """The progress that ``state()`` described, also in the words of an earlier version."""
        values = dict(state)
        values.pop("wandb_id", None)  # trackers.json has it now
        earlier = {new: values.pop(old) for old, new in EARLIER.items() if old in values}
        best = Best.from_state(values.get("best", earlier))
        return cls(**{**values, "best": best, "history": deque(state["history"], maxlen=HISTORY)})


def read(values: Sequence[float | torch.Tensor]) -> list[float]:
    """The values as numbers of the host. Tensors (of one element, on one device) are read in one transfer, which waits
    for the device once."""
    tensors = [value.double().reshape(()) for value in values if isinstance(value, torch.Tensor)]
    numbers = iter(torch.stack(tensors).tolist() if tensors else ())
    return [next(numbers) if isinstance(value, torch.Tensor) else value for value in values]


class Recorder:
    """Collects results and hands them to ``report`` as StepMetrics, in order.

    ``steps_per_epoch`` turns steps into epochs; ``sum_over_ranks`` adds host numbers over the ranks; ``sources``
    names the weighted sources, whose losses are reported if the steps were run with ``by_source``.
    """

    def __init__(
        self,
        report: Callable[[StepMetrics], None],
        sum_over_ranks: Callable[[list[float]], list[float]],
        steps_per_epoch: int,
        clock: Callable[[], float] = time.monotonic,
        sources: Sequence[str] = (),
    ) -> None:
        self._sources = sources
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
        count = len(self._pending)
        found = read([result.loss_sum for result, _ in self._pending] + [r.update.grad_norm for r, _ in self._pending])
        own, norms = found[:count], found[count:]
        sums = self._sum([*own, *self._by_source()])
        seconds = self._clock() - self._since
        tokens = sum(result.tokens for result, _ in self._pending)
        speed = tokens / seconds if self._trusted and seconds > 0 else None
        losses = [total / max(result.tokens, 1) for total, (result, _) in zip(sums[:count], self._pending, strict=True)]
        reports = [
            self._metrics(loss, replace(result.update, grad_norm=norm), progress, speed, seconds)
            for loss, norm, (result, progress) in zip(losses, norms, self._pending, strict=True)
        ]
        reports[-1] = replace(reports[-1], sources=self._source_losses(sums[count:]))
        for report in reports:
            self._report(report)
        self._pending, self._trusted = [], True
        self.restart_clock()
        return losses

    def _by_source(self) -> list[float]:
        """This rank's summed loss of each source in the interval, then the trainable tokens of each."""
        rows = [result.rows for result, _ in self._pending if result.rows is not None]
        count = len(self._sources)
        nats, tokens = [0.0] * count, [0.0] * count
        if not rows or not count:
            return []
        losses = torch.cat([step.losses for step in rows]).double().tolist()  # one transfer
        placed = (pair for step in rows for pair in zip(step.sources, step.tokens, strict=True))
        for loss, (source, number) in zip(losses, placed, strict=True):
            if source >= 0:
                nats[source] += loss
                tokens[source] += number
        return [*nats, *tokens]

    def _source_losses(self, sums: Sequence[float]) -> tuple[SourceLoss, ...]:
        """From the summed output of ``_by_source``; a source of which nothing was trained is left out."""
        nats, tokens = sums[: len(sums) // 2], sums[len(sums) // 2 :]
        counted = zip(self._sources, nats, tokens, strict=True) if sums else ()
        return tuple(SourceLoss(name, nat / count, int(count)) for name, nat, count in counted if count)

    def restart_clock(self) -> None:
        """Leave the time since the last flush (an evaluation, a save) out of the next interval."""
        self._since = self._clock()

    def _metrics(
        self, loss: float, update: Update, progress: Progress, speed: float | None, seconds: float
    ) -> StepMetrics:
        """``update``: with its norm as a number."""
        norm = float(update.grad_norm)
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
