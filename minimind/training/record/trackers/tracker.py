"""What every tracker is, and the one way to keep its package at arm's length.

Contract. All of a package runs on one background thread, fed by a queue; `log`, `alert` and the constructor return at
once. A package that is missing, raises, or waits for a dead network never stops a run or holds it up: it is told once
by `findings`, on the caller's thread, and training goes on. `finish` waits at most `FINISH_SECONDS`.

Known weakness: a queue that is not emptied (10,000 entries) drops what comes after, which is told at the end;
metrics.jsonl has every number.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from minimind.base.files import subdirectory
from minimind.base.findings import Finding
from minimind.base.secrets import mask_text

if TYPE_CHECKING:
    from minimind.config.run import RunConfig

FINISH_SECONDS = 30.0
QUEUE_SIZE = 10_000
_Job = Callable[[Any], None]  # gets the package's run


@dataclass(frozen=True)
class Beginning:
    """What a tracker begins with. ``id``: the run's name there, the same after a resume; ``resumed_step``: None for a
    new run; ``facts``: the settings, the DeepSpeed JSON, hardware, versions and git revision, as JSON values.
    """

    run_dir: Path
    run_config: RunConfig
    id: str
    resumed_step: int | None
    facts: dict[str, Any]

    @property
    def name(self) -> str:
        return self.run_config.run_name or self.run_dir.name


class Tracker(Protocol):
    """What a run tells its numbers to, on rank 0; made from a `Beginning`. None of it may raise or take long."""

    def log(self, numbers: Mapping[str, float], step: int) -> None: ...
    def alert(self, finding: Finding) -> None: ...
    def findings(self) -> list[Finding]: ...
    def finish(self, failed: bool = False) -> None: ...


class Background:
    """A tracker whose package works on a thread. A subclass names it and says how it begins, logs, alerts and ends."""

    name: str  # the package's, in findings
    folder: str  # what it writes below the run directory
    left: str  # the advice where it fails, after "metrics.jsonl has every number"; {folder}: the path, quoted

    def __init__(self, beginning: Beginning, enabled: bool = True) -> None:
        self._beginning = beginning
        self._found: queue.SimpleQueue[Finding] = queue.SimpleQueue()
        self._jobs: queue.Queue[_Job | None] = queue.Queue(QUEUE_SIZE)
        self._dropped = 0
        self._failed_exit = False
        self._thread: threading.Thread | None = None
        if enabled:
            # A daemon: an upload that hangs must not keep a finished run alive.
            self._thread = threading.Thread(target=self._work, name=self.name, daemon=True)
            self._thread.start()

    # What a subclass says; all of it runs on the thread and may raise.

    def begin(self) -> Any:
        """The package's run, or None where none could be begun, which has been told."""
        raise NotImplementedError

    def send(self, run: Any, numbers: Mapping[str, float], step: int) -> None:
        raise NotImplementedError

    def send_alert(self, run: Any, finding: Finding) -> None:
        raise NotImplementedError

    def end(self, run: Any, failed: bool) -> None:
        raise NotImplementedError

    # What a run calls.

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        """Queue `numbers` for optimizer step `step`."""
        row = dict(numbers)
        self._put(lambda run: self.send(run, row, step))

    def alert(self, finding: Finding) -> None:
        self._put(lambda run: self.send_alert(run, finding))

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
            self.tell("behind", f"{self.name} took too long: {self._dropped} rows were not logged there")
        with contextlib.suppress(queue.Full):  # still stuck: told just below
            self._jobs.put(None, timeout=FINISH_SECONDS)
        thread.join(FINISH_SECONDS)
        if thread.is_alive():
            self.tell("slow", f"{self.name} has not finished within {FINISH_SECONDS:.0f} s; the rest stays local")

    def tell(self, what: str, message: str) -> None:
        """A finding ``NAME-WHAT``."""
        self._found.put(Finding(f"{self.name}-{what}", message, f"metrics.jsonl has every number{self.left}"))

    def _put(self, job: _Job) -> None:
        if self._thread is None:
            return
        try:
            self._jobs.put_nowait(job)
        except queue.Full:
            self._dropped += 1

    def _work(self) -> None:
        run = self._begun()
        while (job := self._jobs.get()) is not None:
            if run is not None and not self._try(job, run):
                run = None
        if run is not None:
            self._try(lambda run: self.end(run, self._failed_exit), run)

    def _begun(self) -> Any:
        try:
            subdirectory(self._beginning.run_dir, self.folder)
        except OSError as error:  # a link: the package would follow it
            self.tell("missing", f"not logging to {self.name}: {error.filename}: {error.strerror}")
            return None
        try:
            return self.begin()
        except ImportError as error:
            self.tell("missing", f"not logging to {self.name}, it can't be imported: {first_line(error)}")
        except (Exception, SystemExit) as error:  # broken: another protobuf, no home directory
            self.tell("failed", f"not logging to {self.name}: {first_line(error)}")
        return None

    def _try(self, job: _Job, run: Any) -> bool:
        try:
            job(run)
        except (Exception, SystemExit) as error:  # whatever the package raises, training goes on
            self.tell("failed", f"{self.name} stopped logging: {first_line(error)}")
            return False
        return True


def first_line(error: BaseException) -> str:
    return mask_text((str(error).strip().splitlines() or [type(error).__name__])[0])


def quietly(name: str, value: str) -> None:
    """A package's environment variable, where the user has not set it."""
    os.environ.setdefault(name, value)
