"""Saving while training goes on: a snapshot on all ranks, then one background thread a rank writes it.

The training loop waits for the copy to host memory only. The threads agree over a process group of their own, so they
may be anywhere between two steps of the main threads: all ranks' files are on the disk, rank 0 writes the manifest,
renames, points ``latest`` (and ``best``) at the new checkpoint, and only then deletes old ones. A failure on any rank
fails the attempt on all; it is repeated from the same snapshot, then given up and reported, and training goes on.

Where hosts share no disk, a rank that does not see the first one's files sends its own to it (transfer.py), piece by
piece as torch writes them, and keeps none: the first host's directory is complete, and byte for byte what a shared one
would hold. Why the threads may send and gather while the main threads train: the writer's group is gloo's and nobody
else's, with sockets and an order of messages of its own, so nothing of one can be taken for the other's, and gloo waits
without Python's lock; the files come from the snapshot, host memory that no step touches; and within the group every
rank calls the same in the same order, the senders one after the other by rank, whatever has failed on the way: who
can't write takes the rest and drops it, who can't read says so, and the gather after it gives all the first error.
A crash leaves what it leaves on a shared disk, an ``.incomplete-`` directory on the first host.

Contract. All ranks call ``save`` at the same steps. One save is in flight at most: the next one waits for it.
``finish`` must be called before the process ends: the threads are daemons, and an unfinished one is an
``.incomplete-`` directory that nobody uses. Cost: host memory for one snapshot. Weakness: on separate disks all of a
checkpoint goes through the first host's network and disk, in the background.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence, Set
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from minimind.base.defaults import BEST, LATEST
from minimind.base.files import remove_files, subdirectory
from minimind.base.findings import Finding
from minimind.training.checkpoint.directory import (
    Checkpoint,
    clean_up,
    directories,
    is_ours,
    point,
    pointed,
    publish,
    remove_debris,
)
from minimind.training.checkpoint.snapshot import Snapshot
from minimind.training.checkpoint.space import FULL, require_space
from minimind.training.checkpoint.transfer import FileFacts, Inbox, outbox
from minimind.training.process.watchdog import SAVE, WRITE, Watchdog

TRIED_AGAIN = "training goes on, and the next save tries again"
NO_MORE = "the run has ended and saves no more; what comes after the newest complete one is lost unless it is in final/"
PAUSES = (1.0, 10.0)  # seconds before the second and the third attempt
PATIENCE = 1.0  # seconds between two beats of a thread that waits for the save in flight


class SupportsSnapshot(Protocol):
    """What saving needs of an engine; tests give it a fake one."""

    def snapshot(self, state: dict[str, Any]) -> Snapshot: ...


class Agreement(Protocol):
    """What the threads need of ``engine.Control``, on a group that only they use."""

    rank: int

    def gather(self, value: Any) -> list[Any]: ...
    def first_does(self, work: Callable[[], Any]) -> Any: ...
    def send(self, data: bytearray, to: int) -> None: ...
    def receive(self, source: int) -> bytes: ...


@dataclass
class _Job:
    """One save. ``manifest`` lacks the files until they are written."""

    step: int
    snapshot: Snapshot
    manifest: dict[str, Any]
    best: bool
    protected: set[Path]
    published: bool = False
    errors: list[OSError] = field(default_factory=list)


class Saver:
    """Writes the checkpoints of one run, one after the other."""

    def __init__(
        self,
        engine: SupportsSnapshot,
        agreement: Agreement,
        run_dir: Path,
        keep: int,
        protected: set[Path],
        watchdog: Watchdog | None = None,
        apart: Sequence[int] = (),
        complete: Callable[[Checkpoint | None], None] = lambda _: None,
    ) -> None:
        """``keep``: save_total_limit. ``protected``: never deleted; may be added to while the run goes on. ``apart``:
        the ranks that do not see the first one's disk. ``complete`` is told which checkpoint is the last complete one:
        the first rank's before any other's."""
        self._apart, self._complete = apart, complete
        self._watchdog = watchdog or Watchdog()
        self.protected = protected
        self._engine, self._agreement, self._run_dir, self._keep = engine, agreement, run_dir, keep
        self._thread: threading.Thread | None = None
        self._saved = True
        self._findings: list[Finding] = []
        self._error: BaseException | None = None

    def save(
        self,
        step: int,
        state: dict[str, Any],
        about: dict[str, Any],
        best: bool = False,
        needed: Set[Path] = frozenset(),
    ) -> None:
        """Take a snapshot and return; all ranks call it.

        ``state`` goes through the engine (picklable); ``about`` into the manifest (JSON), to be read before loading.
        ``needed``: checkpoints that this save must not delete either.
        """
        self.finish()
        manifest = {"step": step, "about": about}
        job = _Job(step, self._engine.snapshot(state), manifest, best, {*self.protected, *needed})
        self._thread = threading.Thread(target=self._run, args=(job,), name=f"save-{step}", daemon=True)
        self._thread.start()

    def follow(self, engine: SupportsSnapshot, checkpoint: Checkpoint | None) -> None:
        """Save another engine's states from now on: the run was built again, from ``checkpoint``, the last one now."""
        self._engine = engine
        self._complete(checkpoint)
        if checkpoint is not None:
            self.protected.add(checkpoint.path)

    @property
    def writing(self) -> bool:
        """Whether a save is in flight."""
        return self._thread is not None and self._thread.is_alive()

    def poll(self, last: bool = False) -> list[Finding]:
        """What there is to report since the last call. Raises what a thread died of, if it was no OSError.

        ``last``: the run has ended, no save comes after this.
        """
        self._raise_pending()
        found = self._findings[:]
        del self._findings[: len(found)]  # the thread may have added one since
        return [replace(f, advice=f.advice.replace(TRIED_AGAIN, NO_MORE)) for f in found] if last else found

    def finish(self) -> bool:
        """Wait for the save in flight; whether the last one is complete. Raises what a thread died of."""
        while self._thread is not None:
            self._thread.join(PATIENCE)
            self._watchdog.beat(SAVE)  # whether the save gets on is seen by the beats of its own thread
            if not self._thread.is_alive():
                self._thread = None
        self._raise_pending()
        return self._saved

    def _raise_pending(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self, job: _Job) -> None:
        try:
            self._saved = self._attempts(job)
        except BaseException as error:  # raised again in the training loop
            self._saved, self._error = False, error
        finally:
            self._watchdog.rest()

    def _attempts(self, job: _Job) -> bool:
        """Write the checkpoint, up to three times; whether it is complete. The same on all ranks."""
        for pause in (*PAUSES, None):
            try:
                self._write(job)
                break
            except OSError as error:
                job.errors.append(error)
                if pause is None:
                    self._give_up(job)
                    return job.published
                time.sleep(pause)
        if job.errors:
            self._findings.append(_retried(job))
        self._clean_up(job)
        return True

    def _write(self, job: _Job) -> None:
        """One attempt. Raises OSError, the first that happened on any rank, on all ranks."""
        self._beat()
        temporary, final = directories(self._run_dir, job.step)
        if not job.published:
            num_bytes = sum(self._agreement.gather(job.snapshot.num_bytes))
            self._agreement.first_does(lambda: _make_room(self._run_dir, temporary, num_bytes))
            job.manifest["files"] = self._write_files(job.snapshot, temporary)
            self._agreement.first_does(lambda: publish(temporary, final, job.manifest))
            job.published = True
        self._agreement.first_does(lambda: self._point(final, job))
        if self._agreement.rank:
            self._complete(Checkpoint(final, job.step))

    def _point(self, final: Path, job: _Job) -> None:
        point(self._run_dir / LATEST, final)
        if job.best:
            point(self._run_dir / BEST, final)
        self._complete(Checkpoint(final, job.step))

    def _write_files(self, snapshot: Snapshot, directory: Path) -> dict[str, dict[str, Any]]:
        """All ranks' files; what the manifest says of them. Raises OSError, the same on all ranks."""
        box = Inbox(directory)
        try:
            self._deliver(snapshot, box)
        except Exception as failure:  # raised below, on every rank
            box.error = failure
        if self._agreement.rank == 0:
            for source in self._apart:
                box.receive(lambda source=source: self._agreement.receive(source), self._beat)  # type: ignore[misc]
        files, error = box.facts, box.error
        reports: list[tuple[dict[str, FileFacts], Exception | None]] = self._agreement.gather((files, error))
        first = next((error for _, error in reports if error is not None), None)
        if first is not None:
            raise first
        every = {name: facts for written, _ in reports for name, facts in written.items()}
        return {name: asdict(every[name]) for name in sorted(every)}  # whoever wrote which

    def _deliver(self, snapshot: Snapshot, box: Inbox) -> None:
        """Bring this rank's files to the first rank's disk: written into ``box``, or sent there."""
        if self._agreement.rank in self._apart:
            with outbox(lambda data: self._agreement.send(data, 0)) as sending:
                snapshot.send(sending, self._beat)
        else:
            box.facts.update(snapshot.write(box.directory, self._beat))

    def _beat(self) -> None:
        self._watchdog.beat(WRITE)

    def _give_up(self, job: _Job) -> None:
        """Report the failure, and leave nothing half written."""
        if not job.published and self._agreement.rank == 0:
            with contextlib.suppress(OSError):
                remove_files(directories(self._run_dir, job.step)[0], is_ours)
        self._findings.append(_not_saved(job, pointed(self._run_dir / LATEST)))

    def _clean_up(self, job: _Job) -> None:
        """Delete what save_total_limit no longer keeps; the new checkpoint is complete by now."""

        def delete() -> None:
            remove_debris(self._run_dir)
            clean_up(self._run_dir, self._keep, job.protected)

        try:
            self._agreement.first_does(delete)
        except OSError as error:
            self._findings.append(_not_deleted(job.step, error))


def _make_room(run_dir: Path, temporary: Path, num_bytes: int) -> None:
    """A fresh directory for ``num_bytes`` of files; leftovers go first, they may be what fills the disk."""
    subdirectory(run_dir, temporary.parent.name)
    remove_debris(run_dir)
    require_space(temporary.parent, num_bytes)
    subdirectory(temporary.parent, temporary.name)  # still there if it holds what is not of a save


def _reason(error: OSError) -> str:
    what = error.strerror or str(error)
    return f"{what}: {error.filename}" if error.filename else what


def _not_saved(job: _Job, newest: Path | None) -> Finding:
    """Three attempts failed. ``newest``: what `latest` names."""
    error = job.errors[-1]
    last_good = f"the newest complete one is {newest.name}" if newest else "there is no complete one yet"
    cure = "free space there" if error.errno in FULL else "check the disk"
    if job.published:
        last_good = "it is complete and --resume finds it, but `latest` could not be replaced"
    return Finding(
        code="checkpoint-not-saved",
        message=f"the checkpoint of step {job.step} was not saved after {len(job.errors)} attempts: "
        f"{_reason(error)}; {last_good}",
        advice=f"{cure}: {TRIED_AGAIN}",
        step=job.step,
        values={"attempts": len(job.errors), "errno": error.errno or 0},
    )


def _retried(job: _Job) -> Finding:
    return Finding(
        code="checkpoint-retried",
        message=f"the checkpoint of step {job.step} was saved after {len(job.errors)} failed attempts: "
        f"{_reason(job.errors[-1])}",
        advice="the checkpoint is complete; check the disk before it fails for good",
        step=job.step,
        values={"attempts": len(job.errors) + 1, "errno": job.errors[-1].errno or 0},
    )


def _not_deleted(step: int, error: OSError) -> Finding:
    return Finding(
        code="checkpoint-not-deleted",
        message=f"an old checkpoint could not be deleted: {_reason(error)}",
        advice="delete it by hand; the new one is complete",
        step=step,
        values={"errno": error.errno or 0},
    )
