"""Every number of a run: to metrics.jsonl, to the console and to trackers, from one record, so that they never
disagree.

Contract. Only rank 0 writes; on other ranks every call returns at once. One call of `step` is one line of
metrics.jsonl, whether the loop calls it at each step or at its log cadence. Nothing in here stops a run: a
full disk, a missing login or a dead network becomes one finding.

Known weakness: the time to the end (ETA) is the mean pace since the first report; it lags when the pace
changes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minimind.base.findings import Finding
from minimind.config.run import steps_of
from minimind.training.health.ladder import Rollback, describe_rollback
from minimind.training.record.advice import Adviser
from minimind.training.record.best import Best
from minimind.training.record.console import ConsoleLog, Ending
from minimind.training.record.file import FILE_NAME, MetricsFile, read_metrics
from minimind.training.record.trackers.start import start_trackers
from minimind.training.record.trackers.tracker import Tracker
from minimind.training.values import EvalMetrics, RunSummary, StepMetrics, evaluations, perplexity

if TYPE_CHECKING:
    from minimind.config.run import RunConfig
    from minimind.training.record.samples import Written

PROGRESS_SECONDS = 10.0  # between two looks at an evaluation that takes long


class Metrics:
    """The one place that a training loop reports to."""

    def __init__(
        self,
        run_dir: Path,
        rank: int,
        run_config: RunConfig,
        total_steps: int,
        resumed_step: int | None = None,
        dry_run: bool = False,
        best: Best | None = None,
        console: ConsoleLog | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """With `resumed_step` metrics.jsonl is cut back to that step, and trackers go on with their runs.
        `best`: the run's own, which is read here and told of losses elsewhere; a rollback replaces it.

        A dry run prints, and touches neither the disk nor a tracker.
        """
        self.active = rank == 0
        self.best = best or Best()
        self._trackers: list[Tracker] = []
        if not self.active:
            return
        self._summary: RunSummary | None = None
        self._progress_said = clock()
        self._total, self._clock, self._started = total_steps, clock, clock()
        self._first: tuple[int, float] | None = None  # step and time of the first report
        self._last: StepMetrics | None = None
        self._evaluated: tuple[int, float] | None = None  # step and loss
        self._write_failed = False
        self.adviser = Adviser(run_dir)
        self._console = console or ConsoleLog(total_steps, steps_of(run_config.logging_steps, total_steps))
        self._file: MetricsFile | None = None
        if dry_run:
            return
        self._file = MetricsFile(run_dir / FILE_NAME, resumed_step)
        for record in read_metrics(self._file.path):
            if record["kind"] == "eval" and record.get("loss") is not None:
                self._evaluated = (record["step"], record["loss"])
        self._trackers = start_trackers(run_dir, run_config, resumed_step)

    def header(self, summary: RunSummary) -> None:
        """Say what will happen, before it happens."""
        if not self.active:
            return
        self._summary = summary
        self.adviser.gradient_clipping = summary.gradient_clipping
        facts = asdict(summary)
        facts["task"] = facts.pop("kind")  # "kind" names the sort of line
        self._write("run", {"step": summary.resumed_step or 0, **facts})
        self._console.header(summary)

    def step(self, metrics: StepMetrics) -> None:
        if not self.active:
            return
        record = {**asdict(metrics), "ppl": perplexity(metrics.loss)}
        sources = record.pop("sources")
        self._write("train", record)
        for source in sources:
            self._write("source", {"step": metrics.step, **source})
        if self._first is None or metrics.tokens_per_second is None:  # several steps may be reported at once
            self._first = (metrics.step, self._clock())
        self._last = metrics
        self._console.step(metrics, record["ppl"], self._eta(metrics.step))
        record.update({f"loss of {source['source']}": source["loss"] for source in sources})
        self._to_trackers("train", record)

    def evaluating(self, done: int, total: int) -> None:
        """Batch ``done`` of the ``total`` of an evaluation comes next; shown while it takes long."""
        now = self._clock() if self.active else 0.0
        if not self.active or done == 0:
            self._progress_said = now
        elif now - self._progress_said >= PROGRESS_SECONDS:
            self._progress_said = now
            self._console.evaluating(done, total)

    def evaluation(self, result: EvalMetrics, step: int) -> None:
        """A held-out evaluation after optimizer step `step`, which `best` has been told of."""
        if not self.active:
            return
        self._evaluated = (step, result.loss)
        record = {
            "step": step,
            "loss": result.loss,
            "ppl": perplexity(result.loss),
            "bits_per_byte": result.bits_per_byte,
            "tokens": result.num_tokens,
            "best": self.best.step == step,
        }
        self._write("eval", record)
        self._console.evaluation(record)
        self._to_trackers("eval", record)

    def samples(self, written: Written | Finding) -> None:
        """What the samples of an evaluation cost, or why there are none. On rank 0, which wrote them."""
        if isinstance(written, Finding):
            self.finding(written)
            return
        self._write("samples", written._asdict())
        self._console.samples(written)

    def finding(self, finding: Finding) -> None:
        if not self.active:
            return
        finding = self.adviser.complete(finding)
        values = {k: v if math.isfinite(v) else str(v) for k, v in finding.values.items()}
        self._write("finding", asdict(finding) | {"values": values})
        self._console.finding(finding)
        for tracker in self._trackers:
            tracker.alert(finding)

    def recovery(self, record: Mapping[str, Any]) -> None:
        """A rung of the recovery ladder: ``step``, ``rung``, ``trouble``, ``samples`` and what else it changed."""
        if self.active:
            self._write("recovery", record)

    def rollback(self, rollback: Rollback) -> None:
        """A rollback, as a record and as a finding. The trackers go on: later steps replace the earlier ones."""
        self.recovery({"step": rollback.to_step, **asdict(rollback)})
        self.finding(describe_rollback(rollback))

    def close(self, model: Path | None = None, reason: str = "finished") -> None:
        """End the run: where the model is (None: none was written), what to type next. A second call does nothing."""
        if not self.active:
            return
        self.active = False
        seconds = self._clock() - self._started
        step = self._last.step if self._last else 0
        self._write("end", {"step": step, "reason": reason, "seconds": round(seconds, 3)})
        for tracker in self._trackers:
            tracker.finish(failed=model is None)
        self._tracker_findings()
        if self._file:
            self._file.close()
        best = None if self.best.step is None or self.best.loss is None else (self.best.step, self.best.loss)
        ending = Ending(reason, seconds, model, last=self._last, evaluated=self._evaluated, best=best)
        self._console.close(self._summary, ending)

    def _to_trackers(self, section: str, record: Mapping[str, Any]) -> None:
        if not self._trackers:
            return
        numbers = {f"{section}/{k}": float(v) for k, v in record.items() if k != "step" and v is not None}
        for tracker in self._trackers:
            tracker.log(numbers, record["step"])
        self._tracker_findings()

    def _tracker_findings(self) -> None:
        for finding in [finding for tracker in self._trackers for finding in tracker.findings()]:
            self._console.finding(finding)
            self._write("finding", asdict(finding))

    def _eta(self, step: int) -> float | None:
        # From the first report on: compilation and warm-up don't count, evaluations and saves do.
        if self._first is None or step <= self._first[0]:
            return None
        pace = (self._clock() - self._first[1]) / self._work(self._first[0], step)
        return pace * self._work(step, self._total) if step < self._total else 0.0

    def _work(self, after: int, upto: int) -> float:
        """The steps from one to another, and the evaluations between them counted as steps.

        That after the last one is known to come and not measured yet when it matters, and may be the longest of all.
        """
        summary = self._summary
        if summary is None or summary.eval_steps is None:
            return upto - after
        return upto - after + summary.evaluation_cost * evaluations(after, upto, self._total, summary.eval_steps)

    def _write(self, kind: str, record: Mapping[str, Any]) -> None:
        if self._file is None:
            return
        try:
            self._file.append({"kind": kind, **record, "time": round(time.time(), 3)})
        except OSError as error:
            if not self._write_failed:  # said once; the numbers still go to the console and to trackers
                self._write_failed = True
                self._console.finding(Finding("metrics-not-written", str(error), "free space; training goes on"))
