"""SwanLab: online, else offline (files below RUN/swanlab, for ``swanlab sync``), else nothing, each step told."""

from __future__ import annotations

import atexit
import contextlib
import shlex
import sys
from collections.abc import Mapping
from typing import Any

from minimind.base.findings import Finding
from minimind.base.secrets import mask_command
from minimind.training.record.trackers.tracker import Background, Beginning, first_line


class SwanlabRun(Background):
    """One SwanLab run, begun or continued. Steps may come again after a rollback: SwanLab takes them in any order."""

    name = folder = "swanlab"

    def __init__(self, beginning: Beginning) -> None:
        self.left = f"; `swanlab sync {shlex.quote(str(beginning.run_dir))}/swanlab/run-*` sends an offline run"
        super().__init__(beginning, beginning.run_config.swanlab_mode != "disabled")

    def begin(self) -> Any:
        """The run in the mode asked for, else offline, else None."""
        import swanlab

        _hush()
        for mode in dict.fromkeys((self._beginning.run_config.swanlab_mode, "offline")):
            try:
                run = _init(swanlab, self._beginning, mode)
            except Exception as error:  # no key, no network, a refused project: one finding, next mode
                then = "not logging to swanlab" if mode == "offline" else "logging offline"
                self.tell(f"not-{mode}", f"swanlab can't start {mode}, {then}: {first_line(error)}")
            else:
                _let_go(run)
                return run
        return None

    def send(self, run: Any, numbers: Mapping[str, float], step: int) -> None:
        run.log(dict(numbers), step=step)

    def send_alert(self, run: Any, finding: Finding) -> None:
        text = f"{finding.code}: {finding.message}\n{finding.advice}"
        run.log_text(key="finding", data=text, step=finding.step or 0)

    def end(self, run: Any, failed: bool) -> None:
        run.finish(state="crashed", error="see the findings") if failed else run.finish()


def _init(swanlab: Any, beginning: Beginning, mode: str) -> Any:
    secret = mask_command(sys.argv) != sys.argv
    settings = swanlab.Settings(
        interactive=False,  # no questions: a terminal may be there, and nobody before it
        terminal={"proxy_type": "none"},
        # The facts have the revision; what SwanLab records of the process holds the command line.
        probe={"git": False, "runtime": not secret},
    )
    return swanlab.init(
        id=beginning.id,
        resume="allow",
        project=beginning.run_config.swanlab_project,
        name=beginning.name,
        log_dir=str(beginning.run_dir / "swanlab"),
        mode=mode,
        config=beginning.facts,
        settings=settings,
    )


def _hush() -> None:
    """The console belongs to the progress line. SwanLab 0.10 has no setting for it."""
    with contextlib.suppress(ImportError, AttributeError):
        from swanlab.sdk.internal.pkg import console

        console.c.quiet = True


def _let_go(run: Any) -> None:
    """SwanLab 0.10 ends its run at exit and in ``sys.excepthook``, too, and would wait for a dead network there."""
    with contextlib.suppress(AttributeError):
        atexit.unregister(run._handle_atexit)
        sys.excepthook = run._sys_origin_excepthook
