"""TensorBoard: event files below RUN/tensorboard, for ``tensorboard --logdir``. No network, no login."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from minimind.base.findings import Finding
from minimind.training.record.trackers.tracker import Background, Beginning


class TensorboardRun(Background):
    """One directory of event files. Steps that a resume or a rollback repeats replace those that were there."""

    name = folder = "tensorboard"

    def __init__(self, beginning: Beginning) -> None:
        self.left = f"; `tensorboard --logdir {shlex.quote(str(beginning.run_dir / self.folder))}` shows what there is"
        self._last = 0
        super().__init__(beginning)

    def begin(self) -> Any:
        step = self._beginning.resumed_step
        writer = self._writer(None if step is None else step + 1)
        text = json.dumps(self._beginning.facts, indent=2, ensure_ascii=False, default=str)
        writer.add_text("run", f"```\n{text}\n```", step or 0)
        return {"writer": writer}

    def send(self, run: Any, numbers: Mapping[str, float], step: int) -> None:
        if step < self._last:  # gone back: a new file says that the later steps of the old ones no longer count
            run["writer"].close()
            run["writer"] = self._writer(step)
        self._last = step
        for name, value in numbers.items():
            run["writer"].add_scalar(name, value, step)

    def send_alert(self, run: Any, finding: Finding) -> None:
        run["writer"].add_text(
            "finding", f"**{finding.code}**: {finding.message}\n\n{finding.advice}", finding.step or 0
        )

    def end(self, run: Any, failed: bool) -> None:
        run["writer"].close()

    def _writer(self, purge_step: int | None) -> Any:
        """``purge_step``: steps from there on that earlier files hold are left out by TensorBoard."""
        from torch.utils.tensorboard import SummaryWriter

        return SummaryWriter(str(self._beginning.run_dir / self.folder), purge_step=purge_step)
