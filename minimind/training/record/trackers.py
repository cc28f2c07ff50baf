"""wandb, kept at arm's length: a missing package, login or network never stops a run or holds it up.

Contract. All of wandb runs on one background thread, fed by a queue; `log`, `alert` and the constructor
return at once. What goes wrong is told by `findings`, on the caller's thread: online falls back to offline
(files below RUN/wandb, for `wandb sync`), offline to nothing. `finish` waits at most `FINISH_SECONDS`.

Known weakness: a queue that wandb does not empty (10,000 entries) drops what comes after, which is told at
the end; metrics.jsonl has every number.
"""

from __future__ import annotations

import contextlib
import os
import pkgutil
import queue
import shlex
import sys
import threading
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from minimind.base.files import subdirectory
from minimind.base.findings import Finding
from minimind.base.secrets import mask_command, mask_text
from minimind.config.run import TRACKERS

if TYPE_CHECKING:
    from minimind.config.run import RunConfig

INIT_SECONDS = 15.0
FINISH_SECONDS = 30.0
QUEUE_SIZE = 10_000
_Job = Callable[[Any], None]  # gets the wandb run


class Tracker(Protocol):
    """What a run tells its numbers to, on rank 0. None of it may stop a run, raise or take long."""

    id: str  # kept in checkpoints, so that a resumed run goes on under it

    def log(self, numbers: Mapping[str, float], step: int) -> None: ...
    def alert(self, finding: Finding) -> None: ...
    def findings(self) -> list[Finding]: ...
    def finish(self, failed: bool = False) -> None: ...


def start_tracker(run_dir: Path, run_config: RunConfig, run_id: str | None = None) -> Tracker:
    """The tracker that ``report_to`` names among ``TRACKERS`` of config/run/values.py."""
    make: Callable[[Path, RunConfig, str | None], Tracker] = pkgutil.resolve_name(TRACKERS[run_config.report_to])
    return make(run_dir, run_config, run_id)


class WandbLog:
    """One wandb run, created or (with `run_id`) continued."""

    def __init__(self, run_dir: Path, run_config: RunConfig, run_id: str | None = None) -> None:
        """`run_id`: the id kept by the checkpoint that is resumed; None makes a new one."""
        self.id = run_id or uuid.uuid4().hex[:8]
        self._found: queue.SimpleQueue[Finding] = queue.SimpleQueue()
        self._jobs: queue.Queue[_Job | None] = queue.Queue(QUEUE_SIZE)
        self._dropped = 0
        self._failed_exit = False
        self._thread: threading.Thread | None = None
        if run_config.wandb_mode != "disabled":
            self._options = _init_options(run_dir, run_config, self.id)
            # A daemon: an upload that hangs must not keep a finished run alive.
            self._thread = threading.Thread(target=self._work, name="wandb", daemon=True)
            self._thread.start()

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        """Queue `numbers` for optimizer step `step`."""
        row = {**numbers, "step": step}
        # Not wandb's own step: that one may only grow, and a resumed run repeats steps.
        self._put(lambda run: run.log(row))

    def alert(self, finding: Finding) -> None:
        self._put(lambda run: run.alert(title=finding.code, text=f"{finding.message}\n{finding.advice}"))

    def findings(self) -> list[Finding]:
        """What went wrong since the last call."""
        found = []
        while not self._found.empty():
            found.append(self._found.get())
        return found

    def finish(self, failed: bool = False) -> None:
        """Send what is queued and end the run, within `FINISH_SECONDS`. Later calls do nothing."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._failed_exit = failed
        if self._dropped:
            self._tell("wandb-behind", f"wandb took too long: {self._dropped} rows were not logged there")
        with contextlib.suppress(queue.Full):  # still stuck: told just below
            self._jobs.put(None, timeout=FINISH_SECONDS)
        thread.join(FINISH_SECONDS)
        if thread.is_alive():
            self._tell("wandb-slow", f"wandb has not finished within {FINISH_SECONDS:.0f} s; the rest stays local")

    def _put(self, job: _Job) -> None:
        if self._thread is None:
            return
        try:
            self._jobs.put_nowait(job)
        except queue.Full:
            self._dropped += 1

    def _tell(self, code: str, message: str) -> None:
        command = f"wandb sync {shlex.quote(str(self._options['dir']))}/wandb/*"
        advice = f"metrics.jsonl has every number; `{command}` sends an offline run"
        self._found.put(Finding(code, message, advice))

    def _work(self) -> None:
        run = self._start()
        while (job := self._jobs.get()) is not None:
            if run is not None and not self._try(job, run):
                run = None
        if run is not None:
            self._try(lambda run: run.finish(exit_code=int(self._failed_exit)), run)

    def _try(self, job: _Job, run: Any) -> bool:
        try:
            job(run)
        except Exception as error:  # whatever wandb raises, training goes on
            self._tell("wandb-failed", f"wandb stopped logging: {_first_line(error)}")
            return False
        return True

    def _start(self) -> Any:
        """The wandb run in the mode asked for, else offline, else None."""
        # wandb's own telemetry would hold the exit up for 20 s when the server does not answer (seen with 0.31.0).
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        try:
            subdirectory(Path(self._options["dir"]), "wandb")
        except OSError as error:  # a link: wandb would follow it
            self._tell("wandb-missing", f"not logging to wandb: {error.filename}: {error.strerror}")
            return None
        try:
            import wandb

            wandb.setup(settings=wandb.Settings(silent=True))  # the console belongs to the progress line
        except Exception as error:  # not installed, or broken (another protobuf, no home directory)
            self._tell("wandb-missing", f"not logging to wandb, it can't be imported: {_first_line(error)}")
            return None
        for mode in dict.fromkeys((self._options["mode"], "offline")):
            try:
                return _init(wandb, self._options | {"mode": mode})
            except Exception as error:  # no login, no network, a refused project: one finding, next mode
                then = "logging offline" if mode == "online" else "not logging to wandb"
                self._tell(f"wandb-not-{mode}", f"wandb can't start {mode}, {then}: {_first_line(error)}")
                # Its service still holds the id ("run ID is in use") and would wait for the server at exit.
                with contextlib.suppress(Exception, SystemExit):
                    wandb.teardown(exit_code=1)
        return None


def _init(wandb: Any, options: dict[str, Any]) -> Any:
    # Asks neither a person nor a server: is there a key at all? wandb.init would prompt on a terminal.
    if options["mode"] == "online" and not wandb.login(prompt=False, verify=False):
        raise RuntimeError("no login (run `wandb login`, or set WANDB_API_KEY)")
    settings = wandb.Settings(
        init_timeout=INIT_SECONDS,
        finish_timeout=FINISH_SECONDS,
        silent=True,
        console="off",
        disable_git=True,  # environment.json has the revision
        x_disable_meta=mask_command(sys.argv) != sys.argv,  # it has the command line, and would upload a secret
    )
    run = wandb.init(**options, settings=settings)
    run.define_metric("step")
    run.define_metric("*", step_metric="step")
    return run


def _init_options(run_dir: Path, run_config: RunConfig, run_id: str) -> dict[str, Any]:
    return {
        "id": run_id,
        "resume": "allow",
        "project": run_config.wandb_project,
        "name": run_config.run_name or run_dir.name,
        "dir": str(run_dir),
        "mode": run_config.wandb_mode,
        "config": run_config.model_dump(mode="json"),
    }


def _first_line(error: BaseException) -> str:
    return mask_text((str(error).strip().splitlines() or [type(error).__name__])[0])
