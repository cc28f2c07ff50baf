"""Weights & Biases: online, else offline (files below RUN/wandb, for ``wandb sync``), else nothing, each step told."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Mapping
from typing import Any

from minimind.base.findings import Finding
from minimind.base.secrets import mask_command
from minimind.training.record.trackers.tracker import FINISH_SECONDS, Background, Beginning, first_line, quietly

INIT_SECONDS = 15.0


class WandbRun(Background):
    """One wandb run, begun or continued."""

    name = folder = "wandb"

    def __init__(self, beginning: Beginning) -> None:
        self.left = f"; `wandb sync {shlex.quote(str(beginning.run_dir))}/wandb/*` sends an offline run"
        super().__init__(beginning, beginning.run_config.wandb_mode != "disabled")

    def begin(self) -> Any:
        """The wandb run in the mode asked for, else offline, else None."""
        # wandb's own telemetry would hold the exit up for 20 s when the server does not answer (seen with 0.31.0).
        quietly("WANDB_ERROR_REPORTING", "false")
        import wandb

        wandb.setup(settings=wandb.Settings(silent=True))  # the console belongs to the progress line
        for mode in dict.fromkeys((self._beginning.run_config.wandb_mode, "offline")):
            try:
                return _init(wandb, self._beginning, mode)
            except Exception as error:  # no login, no network, a refused project: one finding, next mode
                then = "logging offline" if mode == "online" else "not logging to wandb"
                self.tell(f"not-{mode}", f"wandb can't start {mode}, {then}: {first_line(error)}")
                # Its service still holds the id ("run ID is in use") and would wait for the server at exit.
                with contextlib.suppress(Exception, SystemExit):
                    wandb.teardown(exit_code=1)
        return None

    def send(self, run: Any, numbers: Mapping[str, float], step: int) -> None:
        # Not wandb's own step: that one may only grow, and a resumed run repeats steps.
        run.log({**numbers, "step": step})

    def send_alert(self, run: Any, finding: Finding) -> None:
        run.alert(title=finding.code, text=f"{finding.message}\n{finding.advice}")

    def end(self, run: Any, failed: bool) -> None:
        run.finish(exit_code=int(failed))


def _init(wandb: Any, beginning: Beginning, mode: str) -> Any:
    # Asks neither a person nor a server: is there a key at all? wandb.init would prompt on a terminal.
    if mode == "online" and not wandb.login(prompt=False, verify=False):
        raise RuntimeError("no login (run `wandb login`, or set WANDB_API_KEY)")
    settings = wandb.Settings(
        init_timeout=INIT_SECONDS,
        finish_timeout=FINISH_SECONDS,
        silent=True,
        console="off",
        disable_git=True,  # the facts have the revision
        x_disable_meta=mask_command(sys.argv) != sys.argv,  # it has the command line, and would upload a secret
    )
    run = wandb.init(
        id=beginning.id,
        resume="allow",
        project=beginning.run_config.wandb_project,
        name=beginning.name,
        dir=str(beginning.run_dir),
        mode=mode,
        config=beginning.facts,
        settings=settings,
    )
    run.define_metric("step")
    run.define_metric("*", step_metric="step")
    return run
